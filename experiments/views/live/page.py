"""`fairbloom watch --page`: a page for a browser on this machine that follows what a folder shows."""

import json
import secrets
import threading
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fairbloom.errors import FairbloomError

from ..report.html import render
from .state import Snapshot, follow
from .view import page_of_snapshot

HOST = "127.0.0.1"

LINGER_SECONDS = 6.0
"""How long the page is served after the end, so that open ones show it."""

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page itself has the rest, and browsers keep both
}


def serve(folder: Path, port: int, interval: float) -> Snapshot:
    """Serve a page that follows what a folder shows until it is over; return how it ended."""
    snapshots = follow(folder, interval)
    snapshot = next(snapshots)
    content = _Content(snapshot)
    secret = secrets.token_urlsafe(16)
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, content, secret))
    except OSError as error:
        raise FairbloomError(f"port = {port} cannot be used: {error.strerror}; choose another (--port)") from error
    server.daemon_threads = True
    address = f"http://{HOST}:{server.server_address[1]}/{secret}/"
    print(f"{address} follows {folder}; Ctrl-C ends the page, and the run goes on", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for snapshot in snapshots:
            content.take(snapshot)
        content.end()
        time.sleep(LINGER_SECONDS)
    finally:
        server.shutdown()
        server.server_close()
    return snapshot


class _Content:
    """What the page shows, and which version of it that is."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._version, self._over = snapshot, 0, False

    def take(self, snapshot: Snapshot) -> None:
        """Take in what the folder shows now."""
        if snapshot != self._snapshot:
            self._snapshot, self._version = snapshot, self._version + 1

    def end(self) -> None:
        """Take in that nothing follows."""
        self._over = True

    def state(self) -> Mapping[str, object]:
        """Return the version, and whether it is the last."""
        over = self._over  # first, for then the version that is read next is the last indeed
        return {"version": self._version, "over": over}

    def page(self) -> str:
        """Return the page of the newest version."""
        script = Path(__file__).with_name("live.js").read_text(encoding="utf-8")
        return render(page_of_snapshot(self._snapshot), live=script)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its state, at an address that only who has started the command knows.

    Other names of this machine than its own are refused, so that no page of the web can reach this one by a name that
    leads here.
    """

    server_version, sys_version = "fairbloom", ""
    timeout = 10

    def __init__(self, content: _Content, secret: str, *arguments: object) -> None:
        self._content, self._secret = content, secret
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer a request."""
        port = self.connection.getsockname()[1]
        if self.headers.get_all("Host") not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif secrets.compare_digest(self.path.encode(), f"/{self._secret}/".encode()):
            self._answer(HTTPStatus.OK, self._content.page(), "text/html")
        elif secrets.compare_digest(self.path.encode(), f"/{self._secret}/state".encode()):
            self._answer(HTTPStatus.OK, json.dumps(self._content.state()), "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _answer(self, status: HTTPStatus, text: str = "", kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing of a request."""
