"""The interactive side of the ledger: a local app in the browser, or in an output cell of a notebook.

`view` (the state and its URL) <- `engine` (numbers, by the front door) <- `pictures`, `panels` (results drawn) <- `actions` (what a press
changes), `parts` (what each part of the page shows) <- `callbacks` (the wiring) <- `server`; `layout` is the page before anything is on it.
`jobs` and `worker` compute what takes long in processes of their own; `snippets` and `export` take a view away.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import Explorer

USUAL_PORT = 8050


def explore(*models: Any, height: int = 900, port: int = 0, device: str = "cpu", dtype: str = "float32") -> "Explorer":
    """Start the explorer in this process. As the last line of a notebook cell it is shown in the output.

    Args:
        models: loaded models, or what `load_model` takes; those that ship are offered too.
        height: of the output cell, in pixels.
        port: on this machine; 0 takes a free one.
        device, dtype: for the models that are still to be loaded.

    Returns:
        The running explorer: `.url` opens it in a browser, `.close()` ends it.

    Raises:
        ImportError: Dash is not installed (the extra `explore`).
        ValueError: no such model, or a port that is taken.
    """
    if isinstance(height, bool) or not isinstance(height, int) or height < 200:
        raise ValueError(f"height: a whole number of pixels, at least 200, is needed, got {height!r}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"port: a whole number from 0 to 65535 is needed, got {port!r}")
    server, engine = needed()
    asked = engine.Engine(engine.offered(list(models)), device=device, dtype=dtype)
    running: Explorer = server.Explorer(asked, port=port, height=height).start()
    return running


def serve(
    models: Sequence[str],
    *,
    host: str,
    port: int | None,
    token: str | None,
    device: str,
    dtype: str,
    on_ready: Callable[[str, tuple[str, ...]], None],
) -> None:
    """Serve until interrupted: what `interp explore` does.

    Args:
        models: what `load_model` takes; those that ship are offered too.
        host, port: where to listen; without a port 8050, or any where that is taken.
        token: the secret part of the address; None draws one.
        device, dtype: for loading.
        on_ready: called once with the address and the names that are offered.

    Raises:
        ValueError: no such model, a token that is no part of an address, a port that is taken, or Dash is not installed.
    """
    try:
        server, engine = needed()
    except ImportError as reason:
        raise ValueError(str(reason)) from None
    if token is not None and re.fullmatch(r"[A-Za-z0-9_-]{8,128}", token) is None:
        raise ValueError(f"--token: 8 to 128 letters, digits, _ or - are needed, got {token!r}")
    offered = engine.offered(list(models))
    chosen = server.free_port(host, USUAL_PORT) if port is None else port
    running = server.Explorer(engine.Engine(offered, device=device, dtype=dtype), host=host, port=chosen, token=token)
    on_ready(running.url, running.engine.names)
    running.serve()


def needed() -> tuple[Any, Any]:
    """The modules that need Dash.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        import dash  # noqa: F401
    except ImportError:
        raise ImportError("the explorer needs Dash: pip install 'addition-machine[explore]'") from None
    from . import engine, server

    return server, engine
