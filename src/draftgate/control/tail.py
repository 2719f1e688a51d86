"""Windows from a growing JSONL file of windows or finished requests.

A line is a window, as `Window.to_mapping` gives it, or a finished request:

    {"id": "cmpl-7", "workload": "code", "policy": "mine", "end_s": 1.7e9, "steps": 40, "covered": 36, "drafted": 180,
     "accepted": 95, "committed": 135, "kept": [30, 25, 18, 12, 10], "seconds": 0.8, "valid": true}

and further `reached`, `offered`, `batch`, `latency_s`, `error`. Without `offered` all drafts count as equally long,
without `reached` as ended by a rejection only. A line that cannot be used is counted, and the others are.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.control.fetch import SourceError
from draftgate.control.samples import COUNTS, Samples, WindowMaker
from draftgate.control.window import Window
from draftgate.errors import ConfigError, TraceError, nearest

__all__ = ["FileSource"]

_READ_BYTES = 8 << 20  # at one poll, so that a long file does not fill the memory
_GROUPS = 64  # of workload and policy; names come from clients
_PLAIN = ("steps", "covered", "drafted", "accepted", "committed")
_KEYS = frozenset(
    {"id", "workload", "policy", "end_s", "kept", "reached", "offered", "seconds", "batch", "valid", "latency_s"}
    | {"error", *_PLAIN}
)


class FileSource:
    """Follows a file, also when it is replaced or cut.

    Attributes:
        unusable: lines left out so far; fault: why the last of them was.
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
        """
        self.unusable = 0
        self.fault: str | None = None
        self._path, self._size, self._most_s, self._clock = path, size, most_s, clock
        self._makers: dict[tuple[str, str], WindowMaker] = {}
        self._inode, self._offset = None if from_start else _identity(path), 0
        if self._inode is not None:
            self._offset = path.stat().st_size

    def poll(self) -> list[Window]:
        """Read what is new."""
        try:
            lines = self._new_lines()
        except OSError as error:
            raise SourceError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        rows = [row for line in lines if (row := self._row(line)) is not None]
        windows = [row for row in rows if isinstance(row, Window)]
        requests: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            if not isinstance(row, Window):
                requests.setdefault((row["workload"], row["policy"]), []).append(row)
        for key, group in requests.items():
            windows += self._maker(key).add(_samples(group))
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

    def _row(self, line: bytes) -> Window | Mapping[str, Any] | None:
        try:
            data = json.loads(line)
            if not isinstance(data, dict):
                raise TraceError("a line must be a JSON object")
            return Window.from_mapping(data) if "requests" in data else _request(data)
        except (ValueError, RecursionError, TraceError, ConfigError) as error:
            self.unusable += 1
            self.fault = str(error)
            return None

    def _maker(self, key: tuple[str, str]) -> WindowMaker:
        if key not in self._makers:
            if len(self._makers) == _GROUPS:
                del self._makers[next(iter(self._makers))]  # the oldest
            self._makers[key] = WindowMaker(*key, size=self._size, most_s=self._most_s)
        return self._makers[key]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _request(data: dict[str, Any]) -> Mapping[str, Any]:
    """A request's line, checked and with all keys."""
    if unknown := sorted(data.keys() - _KEYS):
        raise TraceError(f"a request has no '{unknown[0]}'; {nearest(unknown[0], _KEYS)}")
    if missing := [k for k in ("id", "end_s", "kept", *_PLAIN) if data.get(k) is None]:
        raise TraceError(f"a request needs '{missing[0]}'")
    kept = _counts(data["kept"])
    offered = _counts(data["offered"]) if "offered" in data else [data["covered"]] * len(kept)
    reached = _counts(data["reached"]) if "reached" in data else [data["covered"], *kept][: len(kept)]
    if not len(kept) == len(offered) == len(reached):
        raise TraceError("kept, reached and offered must be equally long")
    numbers = {k: _number(k, data.get(k)) for k in ("end_s", "seconds", "batch", "latency_s")}
    counts = [*_counts([data[k] for k in _PLAIN]), data.get("valid") is not None, data.get("valid") is True]
    names = {k: str(data.get(k, "")) for k in ("workload", "policy")}
    id_ = hash(str(data["id"]))
    return names | numbers | {"id": id_, "counts": [*counts, bool(data.get("error"))], "p": (kept, reached, offered)}


def _counts(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 1 << 40 for v in values):
        raise TraceError(f"counts must be whole numbers of 0 or more but got {values!r:.60}")
    return values


def _number(key: str, value: Any) -> float:
    if value is None:
        return 0.0 if key == "seconds" else float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise TraceError(f"{key} must be a number of 0 or more but got {value!r:.40}")
    return float(value)


def _samples(rows: Iterable[Mapping[str, Any]]) -> Samples:
    rows = list(rows)
    most = max(len(row["p"][0]) for row in rows)
    positions = [[part + [0] * (most - len(part)) for part in row["p"]] for row in rows]
    columns = (np.array([row[k] for row in rows], float) for k in ("seconds", "batch", "latency_s"))
    return Samples(
        np.array([row["id"] for row in rows], np.int64),
        np.array([row["end_s"] for row in rows], float),
        np.array([row["counts"] for row in rows], np.int64).reshape(len(rows), len(COUNTS)),
        np.array(positions, np.int64).reshape(len(rows), 3, most),
        *columns,
    )
