"""The few calls that confinement needs and Python 3.11 does not have, by the C library."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["call", "die_with_parent", "filter_calls", "give_up_capabilities", "no_new_privileges"]

# From linux/prctl.h, linux/seccomp.h, linux/capability.h.
_SET_PDEATHSIG, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 22, 38
_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_SIGKILL = 9

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def call(name: str, *args: Any) -> int:
    """A function of the C library that says -1 when it fails.

    Raises:
        OSError: it failed; names it.
    """
    result = int(getattr(_libc, name)(*args))
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends; a change of user clears that."""
    call("prctl", _SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def give_up_capabilities() -> None:
    """All of them, for good in a process that starts no program."""
    call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())


def no_new_privileges() -> None:
    """None for this process and all that it starts: no setuid programs, no capabilities from files."""
    call("prctl", _SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def filter_calls(program: bytes) -> None:
    """Only the system calls that `program` lets through, from here on; new privileges must be ruled out before."""
    held = ctypes.create_string_buffer(program, len(program))
    wrapped = _Program(len(program) // 8, ctypes.addressof(held))
    call("prctl", _SET_SECCOMP, _FILTER, ctypes.byref(wrapped), 0, 0)
