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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftgate.errors import ConfigError, InputError, TraceError
from draftgate.files import write_atomic

__all__ = ["BlockLog", "RunDirectory", "read_json", "write_json"]


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically.

    Raises:
        InputError: the place cannot be written.
    """
    write_atomic(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON, None when the file does not exist.

    Raises:
        TraceError: it is damaged.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read: {error}; remove it to measure again") from error


class RunDirectory:
    """One run's folder."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open a folder, new or of a run with the same settings.

        Raises:
            ConfigError: a run with other settings is there; the message names the first that differs.
            InputError: the place cannot be written.
        """
        self.path = path
        before = read_json(path / "run.json")
        self.resumed = before is not None
        if before is None:
            write_json(path / "run.json", dict(settings))
            return
        for key in sorted(settings.keys() | before.keys()):
            if before.get(key) != settings.get(key):
                raise ConfigError(
                    f"{path}: holds a run with {key} = {before.get(key)!r}, not {settings.get(key)!r}; "
                    "give the same settings to resume it, or another --out"
                )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run, so that two processes do not write it together.

        Raises:
            InputError: another process holds it.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(
                    f"{self.path}: another draftgate process is using this run; wait, or give another --out"
                ) from error
            yield

    def of(self, workload: str) -> Path:
        """Folder of one workload."""
        return self.path / workload


class BlockLog:
    """Blocks of measurements, one JSON line each; a line that a kill cut off is dropped and measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """All whole blocks; a torn last line is cut off the file.

        Raises:
            TraceError: a line before the last is damaged.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        blocks = []
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                blocks.append(json.loads(line))
            except ValueError as error:
                raise TraceError(f"{self.path}:{number}: damaged: {error}; remove the file to measure again") from error
        return blocks

    def append(self, block: Mapping[str, Any]) -> None:
        """Add one block and wait until it is on disk.

        Raises:
            InputError: the place cannot be written, for instance because the disk is full.
        """
        line = json.dumps(block, allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error
