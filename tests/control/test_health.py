import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from draftgate.control.health import notify, serving
from draftgate.errors import ConfigError


def code(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_probes_are_answered_by_what_is_true_now() -> None:
    ready = [False]
    with serving("127.0.0.1:0", lambda: True, lambda: ready[0]) as port:
        assert port is not None
        assert (code(port, "/healthz"), code(port, "/readyz"), code(port, "/else")) == (200, 503, 404)
        ready[0] = True
        assert code(port, "/readyz") == 200


def test_no_address_serves_nothing() -> None:
    with serving(None, lambda: True, lambda: True) as port:
        assert port is None


def test_addresses_that_cannot_be_listened_on_are_refused() -> None:
    for address in ("x", "127.0.0.1:x", "127.0.0.1:99999999", "no.such.host.invalid:0"):
        with pytest.raises(ConfigError, match="cannot listen"), serving(address, lambda: True, lambda: True):
            pass


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@draftgate-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if abstract else name)
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("name", [None, "", "relative", "/no/such/socket"])
def test_nobody_listening_is_no_error(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if name is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify("READY=1")
