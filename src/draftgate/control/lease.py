"""One controller at a time: a lock file with a heartbeat.

The system frees the lock when its holder ends, however it ends, so a stand-by takes over at once. A holder that hangs
keeps the lock but stops its heartbeat; after `stale_s` a stand-by puts a new lock file in place of the old one. The old
holder notices before its next write, because the file at the path is no longer the one that it locked.

Both must see the same file system, with working flock: two machines need a shared volume that has it.
"""

import fcntl
import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from draftgate.errors import InputError

__all__ = ["Lease"]


class Lease:
    """The right to control, or a place in the queue.

    Attributes:
        holder: who holds it, as far as known.
    """

    def __init__(self, path: Path, clock: Callable[[], float], stale_s: float = 60.0) -> None:
        """Name a lock file; nothing is opened yet.

        Args:
            clock: seconds that never jump, such as `time.monotonic`.
            stale_s: time without a heartbeat after which the holder counts as hung.
        """
        self.path = path
        self.holder = "unknown"
        self._clock, self._stale_s = clock, stale_s
        self._file: int | None = None
        self._beat = b""
        self._beat_since_s = clock()
        self._beats = 0

    def held(self) -> bool:
        """Whether this process may control now; beats when it does, and tries to take over when not.

        Raises:
            InputError: the file cannot be opened or locked.
        """
        try:
            if self._file is not None and self._at_path(self._file):
                return self._beaten()
            self.release()
            return self._taken() or (self._hung() and self._replaced())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be locked: {error.strerror or error}; use a local disk") from error

    def release(self) -> None:
        """Let go, so that a stand-by takes over at once."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _taken(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._listen(os.pread(file, 4096, 0))
            os.close(file)
            return False
        if not self._at_path(file):  # replaced between opening and locking
            os.close(file)
            return False
        self._file = file
        return self._beaten()

    def _at_path(self, file: int) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        own = os.fstat(file)
        return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)

    def _beaten(self) -> bool:
        self._beats += 1
        line = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "beat": self._beats}).encode()
        if self._file is not None:
            os.pwrite(self._file, line.ljust(256), 0)
        return True

    def _listen(self, beat: bytes) -> None:
        if beat != self._beat:
            self._beat, self._beat_since_s = beat, self._clock()
        with suppress(ValueError, KeyError, TypeError):  # it is just being written
            data = json.loads(beat)
            self.holder = f"process {data['pid']} on {data['host']}"

    def _hung(self) -> bool:
        return self._clock() - self._beat_since_s > self._stale_s

    def _replaced(self) -> bool:
        self.path.unlink(missing_ok=True)
        return self._taken()
