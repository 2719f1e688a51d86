"""A run on disk: what was asked, what was measured so far, and what came of it; safe to kill at any moment.

DIR/
  run.json             settings of the run; a resumed run must have the same
  cost.json            measured step cost
  WORKLOAD/trace/      recording (see trace.store)
  WORKLOAD/arms.json   arms of the live comparison, with their predictions
  WORKLOAD/live.jsonl  one line a block: every arm on one prompt
  WORKLOAD/policies/   one policy file an arm
  result.json, report.html
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError, InputError, TraceError
from draftgate.files import write_atomic

__all__ = ["BlockLog", "RunDirectory", "read_cost", "read_json", "recorded_threads", "write_json"]


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically.

    Raises:
        InputError: the place cannot be written.
    """
    write_atomic(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, None when the file does not exist.

    Raises:
        TraceError: it is damaged.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read: {error}; restore it, or start again in another --out") from error
    if not isinstance(data, dict):
        raise TraceError(f"{path}: holds no JSON object; restore it, or start again in another --out")
    return data


def read_cost(path: Path) -> StepCost | None:
    """Read measured step costs, None when the file does not exist.

    Raises:
        TraceError: it is damaged.
    """
    data = read_json(path)
    try:
        return None if data is None else StepCost.from_mapping(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def recorded_threads(path: Path) -> int | None:
    """CPU threads of the run in a folder: a thread count that was chosen by timing is kept when the run is resumed."""
    setup = (read_json(path / "run.json") or {}).get("setup") or {}
    threads: int | None = setup.get("threads")
    return threads


class RunDirectory:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        """Name a folder; nothing is read or written yet."""
        self.path = path

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[bool]:
        """Hold the folder, new or of a run with the same settings, so that two processes do not write it together.

        Yields:
            Whether a run was there and is resumed.

        Raises:
            ConfigError: a run with other settings is there (the message names the first that differs), or other files.
            InputError: the place cannot be written, or another process holds it.
        """
        with _lock(self.path / ".lock"):
            yield self._same(
                json.loads(json.dumps(settings))
            )  # as it will be read back: no tuples, no whole-number keys

    def _same(self, settings: Mapping[str, Any]) -> bool:
        before = read_json(self.path / "run.json")
        if before is None:
            if strange := sorted(p.name for p in self.path.iterdir() if not p.name.startswith(".")):
                raise ConfigError(f"{self.path}: holds '{strange[0]}' but no run.json; give a new or empty --out")
            write_json(self.path / "run.json", settings)
            return False
        if difference := next(_differences(before, settings), None):
            key, then, now = difference
            raise ConfigError(
                f"{self.path}: holds a run with {key} = {then!r}, not {now!r}; "
                "give the same settings to resume it, or another --out"
            )
        return True

    def of(self, workload: str) -> Path:
        """Folder of one workload; whatever its name, it is inside the run and none of the run's own files.

        >>> RunDirectory(Path("run")).of("../run.json").as_posix()
        'run/%2E%2E%2Frun%2Ejson'
        """
        return self.path / quote(workload, safe="").replace(".", "%2E")


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value before, value now) of every leaf that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield key, before, now


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file; the system lets go of it when the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{path.parent}: another draftgate process is using this run; wait, or give another --out"
            ) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be locked: {error.strerror or error}; use a local disk") from error
        yield


class BlockLog:
    """Blocks of measurements, one JSON line each; a line that a kill cut off is dropped and measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """All whole blocks; a torn last line is cut off the file.

        Raises:
            TraceError: a whole line is damaged.
            InputError: the file cannot be read or cut.
        """
        try:
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(self.path, whole)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        return [self._block(number, line) for number, line in enumerate(data[:whole].splitlines(), 1)]

    def _block(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            block = json.loads(line)
            if not isinstance(block, dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            raise TraceError(f"{self.path}:{number}: damaged: {error}; remove the file to measure again") from error
        return block

    def append(self, block: Mapping[str, Any]) -> None:
        """Add one block and wait until it is on disk.

        Raises:
            InputError: the place cannot be written, for instance because the disk is full; the log is as before.
        """
        line = json.dumps(block, allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    _write_all(file.fileno(), line)
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):  # the next reader cuts a torn line off as well
                        file.truncate(before)
                    raise
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from error


def _write_all(file: int, data: bytes) -> None:
    """Write all of it: a nearly full disk takes a part and says so only at the next try."""
    while data:
        data = data[os.write(file, data) :]
