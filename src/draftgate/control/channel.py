"""The channel: one policy file that a writer replaces and an engine watches.

It works wherever a file does: a local path, a shared volume, a mounted Kubernetes ConfigMap (whose files are symbolic
links into a folder that is swapped). Watching is one stat a poll, so an engine can poll between two steps.
"""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from draftgate.errors import ConfigError
from draftgate.policy.policyset import PolicySet, loads, save

__all__ = ["LIMIT_BYTES", "Channel"]

LIMIT_BYTES = 1 << 20  # what a ConfigMap may hold

# Younger than this, a file can change again without a new time stamp (FAT counts in 2 s), or be half written.
_FRESH_NS = 2_000_000_000

_Stamp = tuple[int, int, int, int, int]


class Channel:
    """Writes and watches one file that holds a policy set or a single policy.

    What cannot be used (missing, not plain YAML, not valid, over `LIMIT_BYTES`) leaves the last good set in place.

    Attributes:
        path: the file.
        current: the last good set that was read; None before the first.
        error: why the file as it is now is not in force; None when it is.
        refused: how often the file turned into something that cannot be used.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self.current: PolicySet | None = None
        self.error: str | None = None
        self.refused = 0
        self._now_ns = now_ns
        self._rested: _Stamp | None = None  # stamp of a file whose bytes are known and cannot change unseen
        self._read: bytes | None = None  # bytes at the last read
        self._judged: bytes | None = None  # bytes that were parsed last

    def write(self, policies: PolicySet) -> None:
        """Replace the file by one that holds this set, in one step.

        Raises:
            InputError: the place cannot be written.
        """
        save(policies, self.path)

    def poll(self) -> PolicySet | None:
        """The set that the file holds when it differs from `current`; None when nothing is new. Never raises.

        A file touched in the last two seconds may be half written, and half of `tau: 0.25` is the valid `tau: 0.2`. So
        such a change is taken at the second poll in a row that reads the same bytes; the first set is taken at once.
        """
        try:
            data = self._changed()
            policies = None if data is None else loads(data, str(self.path))
        except ConfigError as error:
            self.refused += str(error) != self.error
            self.error = str(error)
            return None
        if policies is None:
            return None
        self.error = None
        if policies == self.current:
            return None
        self.current = policies
        return policies

    def _changed(self) -> bytes | None:
        """Bytes that are to be judged: new since the last call, and whole."""
        try:
            if _stamp(os.stat(self.path)) == self._rested:
                return None
            stamp, data = _read(self.path)
        except (OSError, ConfigError) as error:
            # Whatever stands there next is judged anew, also if it is what stood there before.
            self._rested = self._read = self._judged = None
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{self.path}: cannot be read: {reason}") from None
        fresh = self._now_ns() - max(stamp[3:]) < _FRESH_NS
        again, self._read = data == self._read, data
        if fresh and not again and self.current is not None:
            return None
        self._rested = None if fresh else stamp
        if data == self._judged:
            return None
        self._judged = data
        return data


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: Path) -> tuple[_Stamp, bytes]:
    """One file's stamp before reading and its bytes, also when the path names another file in the meantime."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("not a file")
        data = file.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise ConfigError(f"larger than {LIMIT_BYTES} bytes; a policy set needs a few thousand")
        return _stamp(status), data
