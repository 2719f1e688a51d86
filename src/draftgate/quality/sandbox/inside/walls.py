"""Namespaces, a root of its own, and a system-call filter, by the C library: what bubblewrap does, where there is none.

Steps and order follow bubblewrap's: new namespaces, a tmpfs as root, read-only binds, pivot_root, a process 1 that only
waits, so that the kernel ends every other process in there when it goes.
"""

from __future__ import annotations

import ctypes
import os

from draftgate.quality.sandbox.inside.kernel import (
    call,
    die_with_parent,
    filter_calls,
    give_up_capabilities,
    no_new_privileges,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

__all__ = ["close_behind", "enter"]

# From linux/sched.h and linux/mount.h; the same on every architecture.
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 1 << 17, 1 << 25, 1 << 26, 1 << 27
_NEWUSER, _NEWPID, _NEWNET = 1 << 28, 1 << 29, 1 << 30
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4

_INSIDE_UID = 65534


def enter(walls: dict[str, Any], wait_for: Callable[[int], NoReturn]) -> None:
    """Go behind the walls. Returns in a grandchild; this process and process 1 inside wait for it and end as it does.

    Args:
        walls: as `draftgate.quality.sandbox.native` writes them.
        wait_for: waits for a process and never returns.

    Raises:
        OSError: the kernel, or the policy of a container, refuses one of the steps; names it.
    """
    _unshare(walls["own_user"])
    _build(walls)
    for _ in ("outside", "process 1"):
        die_with_parent()
        if child := os.fork():
            give_up_capabilities()
            wait_for(child)
    os.setsid()


def close_behind(walls: dict[str, Any]) -> None:
    """Last step in the process that runs the role.

    Raises:
        OSError: the kernel refuses.
    """
    give_up_capabilities()
    no_new_privileges()
    filter_calls(walls["filter"])


def _unshare(own_user: bool) -> None:
    uid, gid = os.getuid(), os.getgid()
    flags = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | (_NEWUSER if own_user else 0)
    call("unshare", flags)
    if own_user:
        lines = {"setgroups": "deny", "uid_map": f"{_INSIDE_UID} {uid} 1", "gid_map": f"{_INSIDE_UID} {gid} 1"}
        for name, line in lines.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _build(walls: dict[str, Any]) -> None:
    """A root that holds what the interpreter needs, read-only, and one small writable place."""
    os.umask(0o022)
    _mount("none", "/", "", _REC | _PRIVATE)
    os.chdir(walls["base"])
    _mount("tmpfs", ".", "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    os.chdir(walls["base"])
    os.mkdir("old")
    call("pivot_root", b".", b"old")
    os.chdir("/")
    for path in walls["binds"]:
        _bind(path)
        _restrict(path)
    for path in walls["devices"]:
        _bind(path)
    for path, target in walls["links"]:
        os.symlink(target, path)
    os.mkdir("/tmp")
    room = f"mode=1777,size={walls['tmp_bytes']},nr_inodes={walls['tmp_files']}"
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, room)
    call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _mount("none", "/", "", _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    os.chdir("/tmp")


def _bind(path: str) -> None:
    source = f"/old{path}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    _mount(source, path, "", _BIND | _REC)


def _restrict(path: str) -> None:
    """Read-only with all that is mounted below; MS_REMOUNT would change the top mount alone."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    call("syscall", _MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, ctypes.sizeof(attributes))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
