"""What a cell can see of the host: the interpreter, the libraries it is linked with, and four devices."""

import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["DEVICES", "ENVIRONMENT", "UID_MAP", "fresh_uid", "interpreter", "links", "readable", "tasks_of_user"]

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
}
"""All that a program finds in its environment. One hash seed: code that depends on a set's order repeats itself."""

_LIBRARIES = ("/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
_ROOT_LIBRARIES = ("/lib", "/lib64")  # links into /usr on most systems, folders on others
UID_MAP = Path("/proc/self/uid_map")
_UNUSED_UIDS = 1 << 27
_FIRST_UNUSED_UID = 1879048192
"""From here to 2^31 no distribution hands out user numbers (systemd, "Users, Groups, UIDs and GIDs")."""


def interpreter() -> tuple[str, ...]:
    """The interpreter that a virtual environment rests on, without site-packages or the current folder on its path."""
    program = getattr(sys, "_base_executable", None) or sys.executable  # venv's own way of finding it
    return (os.path.realpath(program), "-s", "-S", "-P")


def readable() -> list[str]:
    """Files and folders bound read-only, at their own paths; a folder comes before what lies in it."""
    paths = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix), *_LIBRARIES}
    paths |= {path for path in _ROOT_LIBRARIES if not os.path.islink(path)}
    existing = sorted(path for path in paths if os.path.exists(path))
    return [path for path in existing if not any(parent != path and _within(path, parent) for parent in existing)]


def links() -> list[tuple[str, str]]:
    """(path, target) of the links that lead to libraries."""
    return [(path, os.readlink(path)) for path in _ROOT_LIBRARIES if os.path.islink(path)]


def fresh_uid() -> int | None:
    """A user number that nobody has, so that a cell owns nothing and is counted alone; None when we cannot take one."""
    if os.getuid() != 0:
        return None
    lines = UID_MAP.read_text().splitlines()
    highest = max(int(first) + int(count) - 1 for first, _, count in map(str.split, lines))
    if highest >= _FIRST_UNUSED_UID + _UNUSED_UIDS:
        return _FIRST_UNUSED_UID + secrets.randbelow(_UNUSED_UIDS)
    # A container that maps fewer: a thousand of its last, below 65,534, which is nobody.
    return min(highest, 65_535) - 2 - secrets.randbelow(1000) if highest > 10_000 else None


def tasks_of_user() -> int:
    """Threads that this user runs now, which a limit of processes counts where no namespace or user of its own does."""
    uid, found = os.getuid(), 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            found += len(os.listdir(process / "task")) if process.stat().st_uid == uid else 0
    return found


def _within(path: str, parent: str) -> bool:
    return os.path.commonpath([path, parent]) == parent
