"""The app as a server: on this machine only unless told otherwise, behind an address that cannot be guessed, never in debug mode.

Everything (page, scripts, callbacks) lives under `/<token>/`; any other path is 404. No path that a browser sends is ever opened: the
models are those the server was started with, and a page names them by their place in that list.
"""

import secrets
import socket
import threading
from pathlib import Path
from typing import Any

from dash import Dash
from flask import Flask, Response
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from .callbacks import DEPENDS, register
from .engine import Engine
from .jobs import Jobs
from .layout import page

ASSETS = Path(__file__).parent / "assets"
LOCAL = "127.0.0.1"
LARGEST_REQUEST = 2**22


def make_app(engine: Engine, jobs: Jobs, token: str) -> Dash:
    """The app for these models under `/<token>/`."""
    flask = Flask("interp.explorer", static_folder=None)
    flask.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    app = Dash(
        "interp.explorer",
        server=flask,  # type: ignore[arg-type]  # a Flask app is what its documentation asks for
        url_base_pathname=f"/{token}/",
        assets_folder=str(ASSETS),
        title="Explorer",
        update_title="",
        suppress_callback_exceptions=True,  # parts of the page come and go
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        enable_mcp=False,
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = page(engine.names, DEPENDS)
    register(app, engine, jobs)
    policy = "; ".join(
        [
            "default-src 'self'",
            f"script-src 'self' {' '.join(app.csp_hashes())}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "frame-ancestors 'self' http://127.0.0.1:* http://localhost:* vscode-webview:",  # notebooks
            "form-action 'none'",
            "base-uri 'none'",
        ]
    )

    @flask.after_request
    def guard(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-store"
        return response

    @flask.errorhandler(404)
    def nothing(_: Any) -> tuple[str, int]:
        return "Nothing here. Open the whole address that the terminal shows; it holds a secret part.\n", 404

    return app


class Explorer:
    """A running explorer: `.url` opens it, `.close()` ends it. In a notebook it shows itself."""

    def __init__(self, engine: Engine, *, host: str = LOCAL, port: int = 0, token: str | None = None, height: int = 900) -> None:
        self.engine, self.jobs, self.height = engine, Jobs(), height
        token = secrets.token_urlsafe(16) if token is None else token
        app = make_app(engine, self.jobs, token)
        try:
            self._server: BaseWSGIServer = make_server(host, port, app.server, threaded=True, request_handler=_Quiet)
        except (OSError, SystemExit) as error:
            raise ValueError(
                f"port: cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}); choose another"
            ) from None
        named = LOCAL if host in ("0.0.0.0", "::") else host
        self.url = f"http://{f'[{named}]' if ':' in named else named}:{self._server.port}/{token}/"
        self._thread: threading.Thread | None = None

    def start(self) -> "Explorer":
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="interp-explorer", daemon=True)
        self._thread.start()
        return self

    def serve(self) -> None:
        """Serve until interrupted."""
        try:
            self._server.serve_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving, and stop what is still being computed."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self.jobs.close()

    def __repr__(self) -> str:
        return f"Explorer of {', '.join(self.engine.names)} at {self.url}"

    def _repr_html_(self) -> str:
        size = f'width="100%" height="{self.height}" style="border:0"'
        return f'<iframe src="{self.url}" {size} title="Explorer" allow="clipboard-write"></iframe>'


class _Quiet(WSGIRequestHandler):
    """No line a request: the address in it is a secret, and the terminal is for errors. Connections are kept open between requests."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        if type == "error":
            super().log(type, "%s", message % args if args else message)


def free_port(host: str, wanted: int) -> int:
    """`wanted` when nobody listens there, else 0: any."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, wanted))
        except OSError:
            return 0
    return wanted
