"""Windows from a growing JSONL file of windows or finished requests.

A line is a window, as `Window.to_mapping` gives it, or a finished request, as `lines` describes it. A line that cannot
be used is left out, and the others are used.
"""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from draftgate.control.fetch import SourceError
from draftgate.control.samples import WindowMaker
from draftgate.control.window import Window
from draftgate.errors import ConfigError, TraceError, require

if TYPE_CHECKING:
    from draftgate.control.lines import Request

__all__ = ["FileSource"]

_READ_BYTES = 8 << 20  # at one poll, so that a long file does not fill the memory
_IS_WINDOW = re.compile(rb'"requests"\s*:').search  # no request has such a key
_GROUPS = 64  # of workload and policy; names come from clients
_Group = tuple[str, str, bool]  # workload, policy, shadow


class FileSource:
    """Follows a file, also when it is replaced or cut.

    Attributes:
        left_out: how many lines the last poll could not use, and why the last of them; None when it used all.
    """

    def __init__(
        self,
        path: Path,
        size: int = 300,
        most_s: float = 60.0,
        from_start: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Name a file; what it holds already is passed over unless `from_start`.

        Args:
            size, most_s: of the windows made of requests; see `samples.WindowMaker`.

        Raises:
            MissingExtraError: msgspec is not installed.
        """
        require("msgspec", "control")
        from draftgate.control import lines

        self._request, self._samples = lines.request, lines.samples
        self.left_out: str | None = None
        self._path, self._size, self._most_s, self._clock = path, size, most_s, clock
        self._makers: dict[_Group, WindowMaker] = {}
        self._inode, self._offset = None if from_start else _identity(path), 0
        if self._inode is not None:
            self._offset = path.stat().st_size

    def poll(self) -> list[Window]:
        """Read what is new."""
        try:
            lines = self._new_lines()
        except OSError as error:
            raise SourceError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        windows: list[Window] = []
        faults: list[str] = []
        requests: dict[_Group, list[Request]] = {}
        for line in lines:
            try:
                row = _window(line) if _IS_WINDOW(line) else self._request(line)
            except (TraceError, ConfigError) as error:
                faults.append(str(error))
                continue
            if isinstance(row, Window):
                windows.append(row)
            else:
                requests.setdefault((row.workload, row.policy, row.shadow), []).append(row)
        self.left_out = f"{len(faults)} lines of {self._path}, the last as {faults[-1]}" if faults else None
        for key, group in requests.items():
            windows += self._maker(key).add(self._samples(group))
        windows += [w for maker in self._makers.values() for w in maker.flush(self._clock())]
        return sorted(windows, key=lambda w: w.end_s)

    def in_force(self) -> str | None:
        """Not known here."""
        return None

    def _new_lines(self) -> list[bytes]:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            inode = (status.st_dev, status.st_ino)
            if inode != self._inode or status.st_size < self._offset:
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _READ_BYTES:
            whole = len(data)  # no line is as long as that
        self._offset += whole
        return data[:whole].splitlines()

    def _maker(self, key: _Group) -> WindowMaker:
        if key not in self._makers:
            if len(self._makers) == _GROUPS:
                del self._makers[next(iter(self._makers))]  # the oldest
            workload, policy, shadow = key
            self._makers[key] = WindowMaker(workload, policy, self._size, self._most_s, shadow=shadow)
        return self._makers[key]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _window(line: bytes) -> Window:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(str(error)) from None
    if not isinstance(data, dict):
        raise TraceError("a line must be a JSON object")
    return Window.from_mapping(data)
