"""Signs of life: for systemd by its notify socket, for Kubernetes by a small HTTP port."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from draftgate.errors import ConfigError

__all__ = ["notify", "serving"]


def notify(text: str) -> None:
    """Tell systemd, if it started us with Type=notify: READY=1, WATCHDOG=1, STOPPING=1, STATUS=... (sd_notify(3)).

    What cannot be delivered is dropped: the loop must not end because nobody listens.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        out.connect("\0" + path[1:] if path.startswith("@") else path)
        out.send(text.encode())


@contextmanager
def serving(address: str | None, alive: Callable[[], bool], ready: Callable[[], bool]) -> Iterator[int | None]:
    """Answer GET /healthz by `alive` and /readyz by `ready`, with 200 or 503, while the block runs.

    Args:
        address: HOST:PORT, or PORT for this machine alone; 0 takes a free port; None serves nothing.

    Yields:
        The port.

    Raises:
        ConfigError: it is no address, or cannot be listened on.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), _handler({"/healthz": alive, "/readyz": ready}))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"--health: cannot listen on {address!r}: {error}") from error
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(answers: dict[str, Callable[[], bool]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0  # of a client that opens a connection and says nothing

        def do_GET(self) -> None:
            """Answer a probe."""
            answer = answers.get(self.path)
            code = 404 if answer is None else 200 if answer() else 503
            body = {200: b"ok\n", 404: b"/healthz or /readyz\n", 503: b"no\n"}[code]
            self.send_response(code)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: not logged."""

    return Handler
