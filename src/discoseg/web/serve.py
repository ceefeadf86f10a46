"""The server process: its token, its address, and its end."""

import os
import secrets
import socket
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from discoseg.errors import UserError
from discoseg.web.annotator import Annotator
from discoseg.web.app import create_app
from discoseg.web.events import Hub
from discoseg.web.guard import Guard, is_loopback

STATIC = Path(__file__).parent / "static"


def require_page(static: Path) -> None:
    """Refuse to start without the page's viewer, which is built from npm's NiiVue."""
    viewer = static / "vendor" / "niivue.umd.js"
    if not viewer.is_file():
        raise UserError(f"{viewer} is missing: run 'make web' in a checkout of discoseg (needs npm)")


def serve(
    annotator: Annotator,
    *,
    static: Path,
    run: Path | None = None,
    preset: str = "default",
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
) -> None:
    """Serve a dataset until the process is interrupted; print the address, and open it in a ``browser``.

    ``static``, ``run`` and ``preset`` are those of :func:`discoseg.web.app.create_app`.
    """
    require_page(static)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    token = _token(annotator.out / ".token")
    app = create_app(annotator, static, run=run, preset=preset)
    guard = Guard(app, token=token, host=host, port=port)
    if not is_loopback(host):
        print(
            f"discoseg: warning: --host {host} lets other machines reach these images; "
            "who has the address with its token may change annotations, and nothing is encrypted",
            file=sys.stderr,
        )
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}/?token={token}"
    print(url, flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [url]).start()
    config = uvicorn.Config(
        guard, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3
    )
    with suppress(KeyboardInterrupt):  # which uvicorn raises once it has ended
        _Server(config, app.state.hub).run(sockets=[listening])
    annotator.store.close()


class _Server(uvicorn.Server):
    """Ends streams when it is told to end; it waits for them otherwise."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        self._hub.close()
        super().handle_exit(sig, frame)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)  # before the address is printed: who is quick waits instead of being refused
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on --host {host} --port {port}: {error}") from error
    return listening


def _token(path: Path) -> str:
    """Return the folder's token: kept, for the user alone to read, so that an open page survives a restart."""
    if path.is_file():
        kept = path.read_text(encoding="ascii", errors="replace").strip()
        if len(kept) >= 32:
            return kept
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token)
    return token
