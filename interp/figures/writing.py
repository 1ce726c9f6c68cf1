"""Figures into files: HTML that works offline, images through kaleido; written to a temporary name, then renamed."""

import os
import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

IMAGE_FORMATS = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


def _require_figure(fig: Any) -> None:
    if not isinstance(fig, go.Figure):
        raise TypeError(f"fig: wants a plotly Figure (what the functions of interp.figures return), got {type(fig).__name__}")


def refuse_target(path: Path, name: str) -> None:
    """Raise ValueError if something that must not be replaced by a file sits at `path`; `name` is what the message calls it."""
    if path.is_dir():
        raise ValueError(f"{name}: {str(path)!r} is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{name}: {str(path)!r} is a device or a pipe, which a file would replace; name a regular file")


def write_atomic(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes `content` to a temporary file beside `path`, then renames it: nobody ever sees half a file.

    A symbolic link is followed: the file it points to is replaced, not the link.

    Raises ValueError when the folder does not exist, or when `path` is a folder, no regular file (a device, a pipe) or cannot be written.
    """
    target = Path(path).resolve()
    refuse_target(target, "output")
    if not target.parent.is_dir():
        raise ValueError(f"output: the folder {target.parent} does not exist; make it first or choose another place")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as e:
        raise ValueError(f"output: cannot write in {target.parent} ({e.strerror}); choose another place") from e
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes private files; the result gets the permissions of any newly created one
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except OSError as e:
        Path(temporary).unlink(missing_ok=True)
        raise ValueError(f"output: cannot write {target} ({e.strerror})") from e
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def write_html(fig: go.Figure, path: str | os.PathLike[str]) -> Path:
    """One HTML file with plotly.js inside (about 5 MB): opens offline. Returns the path.

    >>> import plotly.graph_objects as go
    >>> write_html(go.Figure(), "empty.html").name
    'empty.html'
    """
    _require_figure(fig)
    page = fig.to_html(include_plotlyjs=True, include_mathjax=False, full_html=True, config={"displaylogo": False, "responsive": True})
    return write_atomic(path, page.encode())


def write_image(fig: go.Figure, path: str | os.PathLike[str], *, scale: float = 2.0) -> Path:
    """A PNG, SVG, PDF, JPEG or WebP, by the ending of `path`, drawn by kaleido in a local browser; `scale` multiplies the pixels.
    Returns the path.

    Raises ValueError for an unknown ending, ImportError without kaleido, RuntimeError where no browser is found.

    >>> import plotly.graph_objects as go
    >>> write_image(go.Figure(), "figure.doc")
    Traceback (most recent call last):
    ValueError: path: figure.doc does not end in one of .png, .svg, .pdf, .jpg, .jpeg, .webp; for HTML use write_html
    """
    _require_figure(fig)
    target = Path(path)
    if target.suffix.lower() not in IMAGE_FORMATS:
        raise ValueError(f"path: {target.name} does not end in one of {', '.join(IMAGE_FORMATS)}; for HTML use write_html")
    try:
        import kaleido
        from kaleido.errors import ChromeNotFoundError
    except ImportError as e:
        raise ImportError("images need kaleido: pip install 'addition-machine[images]'; or use write_html, which needs nothing") from e
    kind = target.suffix.lower()[1:].replace("jpeg", "jpg")
    try:
        # MathJax would be fetched from the network, and no text of ours is TeX
        content = kaleido.calc_fig_sync(fig, {"format": kind, "scale": scale}, kopts={"mathjax": False})
    except ChromeNotFoundError as e:
        raise RuntimeError(
            "no Chrome or Chromium was found to draw the image: install one, or set BROWSER_PATH to its executable, "
            "or run plotly_get_chrome; write_html needs no browser"
        ) from e
    return write_atomic(target, content)
