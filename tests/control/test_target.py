import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from draftgate.control.fetch import SourceError
from draftgate.control.target import NO_POLICIES, FileChannel, HttpChannel
from draftgate.errors import ConfigError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, dump, loads, save

FIRST, SECOND = (PolicySet((Policy("mine", length=Fixed(k)),), "mine") for k in (3, 5))


class Server:
    """The policy route as vLLM with draftgate answers it; `lies` keeps what it had, `key` is asked for."""

    def __init__(self, lies: bool = False, key: str | None = None, garbage: bytes | None = None) -> None:
        self.policies, self.lies, self.key, self.garbage = FIRST, lies, key, garbage

    @contextmanager
    def up(self) -> Iterator[str]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer()

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not site.lies:
                    site.policies = loads(body, "body")
                self.answer()

            def answer(self) -> None:
                allowed = site.key is None or self.headers.get("Authorization") == f"Bearer {site.key}"
                reply = {"digest": site.policies.digest(), "policy": dump(site.policies)}
                body = site.garbage or json.dumps(reply).encode()
                self.send_response(200 if allowed and self.path == "/draftgate/policy" else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            http.server_close()
            thread.join()


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path / "policy.yaml")
    assert channel.in_force() == NO_POLICIES
    channel.write(FIRST)
    assert channel.in_force() == FIRST.digest()
    save(SECOND, tmp_path / "policy.yaml")
    assert channel.in_force() == SECOND.digest()
    (tmp_path / "policy.yaml").write_text("{")
    assert channel.in_force() == NO_POLICIES


def test_a_server_without_policies_is_known_to_have_none() -> None:
    with Server(garbage=b'{"digest": null, "policy": null}').up() as url:
        assert HttpChannel(url).in_force() == NO_POLICIES


@pytest.mark.parametrize("tail", ["", "/", "/v1"])
def test_a_server_takes_policies_and_says_what_it_has(tail: str) -> None:
    with Server(key="secret").up() as url:
        channel = HttpChannel(url + tail, "secret")
        assert channel.in_force() == FIRST.digest()
        channel.write(SECOND)
        assert channel.in_force() == SECOND.digest()


def test_a_server_that_keeps_other_policies_is_caught() -> None:
    with Server(lies=True).up() as url, pytest.raises(SourceError, match=f"{FIRST.digest()} is in force"):
        HttpChannel(url).write(SECOND)


def test_a_server_that_refuses_the_key_or_talks_nonsense_is_named() -> None:
    with Server(key="secret").up() as url, pytest.raises(SourceError, match="HTTP 401"):
        HttpChannel(url, "wrong").write(SECOND)
    for garbage in (b"[]", b"{}", b"x", b'{"digest": 3}'):
        with Server(garbage=garbage).up() as url, pytest.raises(SourceError, match="digest"):
            HttpChannel(url).in_force()


def test_a_server_that_is_gone_is_named() -> None:
    with Server().up() as url:
        pass
    with pytest.raises(SourceError, match=url):
        HttpChannel(url).in_force()


def test_only_http_addresses_are_servers() -> None:
    with pytest.raises(ConfigError, match="HTTP address"):
        HttpChannel("file:///etc")
