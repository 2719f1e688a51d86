"""Against a server of this process that misbehaves on purpose; good answers are those of a real one in tests/vllm."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from draftgate.engines.vllm.client import Client, NotThere
from draftgate.errors import ConfigError, EngineError

ANSWERS = {
    "/ok": (200, b'{"a": 1}'),
    "/html": (200, b"<html>gateway</html>"),
    "/refused": (400, b'{"error": {"message": "max_tokens must be at least 1", "code": 400}}'),
    "/closed": (401, b'{"error": "Unauthorized"}'),
    "/broken": (500, b'{"detail": "engine died"}'),
    "/stream": (200, b'data: {"n": 1}\n\n: a comment\ndata: {"n": 2}\n\ndata: [DONE]\n\n'),
    "/cut": (200, b'data: {"n": 1}\n\n'),
    "/failing": (200, b'data: {"n": 1}\n\ndata: {"error": {"message": "out of memory"}}\n\n'),
}


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        if self.path == "/silent":
            self.server.released.wait(10)
            return
        code, body = ANSWERS.get(self.path, (404, b'{"detail": "Not Found"}'))
        if self.path == "/echo":
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            code, body = 200, json.dumps([self.command, json.loads(sent), self.headers["Authorization"]]).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.released = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.released.set()
    server.shutdown()
    server.server_close()


def test_values_go_and_come(url):
    assert Client(url).get("/ok") == {"a": 1}
    assert Client(f"{url}/v1/", "sesame").send("PUT", "/echo", {"k": 3}) == ["PUT", {"k": 3}, "Bearer sesame"]
    assert list(Client(url).events("/stream", {})) == [{"n": 1}, {"n": 2}]
    assert Client(url).answers("/ok")
    assert not Client(url).answers("/broken")


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        ("/nothing", NotThere, "HTTP 404: Not Found"),
        ("/refused", ConfigError, "HTTP 400: max_tokens must be at least 1"),
        ("/closed", ConfigError, "HTTP 401: Unauthorized; give the server's API key in DRAFTGATE_API_KEY"),
        ("/broken", EngineError, "HTTP 500: engine died"),
        ("/html", EngineError, "is not JSON: '<html>gateway"),
    ],
)
def test_refusals_say_what_the_server_said(path, kind, says, url):
    with pytest.raises(kind, match=says) as caught:
        Client(url).get(path)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("path", "says"), [("/cut", "broke off"), ("/failing", "out of memory"), ("/html", "broke off")]
)
def test_streams_that_end_badly(path, says, url):
    with pytest.raises(EngineError, match=says):
        list(Client(url).events(path, {}))


def test_silence_is_not_waited_for_forever(url):
    with pytest.raises(EngineError, match=r"silent for 0\.1 s"):
        Client(url, timeout_s=0.1).get("/silent")


def test_a_server_that_is_not_there():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with pytest.raises(EngineError, match=r"cannot be reached .*refused.*; is the server up"):
        Client(f"http://127.0.0.1:{port}").get("/ok")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "file:///etc/passwd"])
def test_only_http_addresses(url):
    with pytest.raises(ConfigError, match="--url must be an HTTP address"):
        Client(url)
