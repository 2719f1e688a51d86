"""Processes below a process, as /proc tells them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["end_children", "resident_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Memory of all processes below `pid`, pages that they share counted for each."""
    return sum(_resident_bytes(child) for child in _below(pid))


def end_children(pid: int) -> None:
    """Kill the children of `pid`. One that ended meanwhile, and whose number went to another process, is left alone."""
    for child in _children(pid):
        try:
            handle = os.pidfd_open(child)
        except ProcessLookupError:
            continue
        try:
            if child in _children(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def _below(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _below(child)


def _children(pid: int) -> list[int]:
    # Each thread has a list of its own.
    return [int(child) for task in _tasks(pid) for child in _read(Path(f"/proc/{pid}/task/{task}/children")).split()]


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _resident_bytes(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
