"""One process that may read a few folders and do nothing else, by Landlock (landlock(7)): where namespaces are refused.

Landlock decides what may be opened; it does not hide names. What it does not rule on, such as modes and times of files,
signals, or new processes, the system-call filter for `alone` refuses.
"""

from __future__ import annotations

import ctypes
import os
import struct

from draftgate.quality.sandbox.inside.kernel import call, die_with_parent, filter_calls, no_new_privileges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["close_behind", "enter"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_GIVE_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_RIGHTS = {3: 15, 4: 15, 5: 16}
"""How many rights on files each version knows; 3 (Linux 6.2) is the first to rule on truncation, 5 the last to add."""
_NO_TCP, _NO_ABSTRACT_SOCKETS_NO_SIGNALS = 3, 3


def enter(fence: dict[str, Any], _: object) -> None:
    """Check, while errors can still be told, that the kernel can do this.

    Raises:
        OSError: it has no Landlock, or one that cannot rule on truncation.
    """
    version = call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), _GIVE_VERSION)
    if version < min(_RIGHTS):
        raise OSError(f"Landlock of version {version}, which lets files be truncated")
    fence["version"] = version


def close_behind(fence: dict[str, Any]) -> None:
    """Last step in the process that runs the role.

    Raises:
        OSError: the kernel refuses.
    """
    die_with_parent()
    version = fence["version"]
    handled = (1 << _RIGHTS.get(version, max(_RIGHTS.values()))) - 1
    attributes = (ctypes.c_uint64 * 3)(handled, _NO_TCP, _NO_ABSTRACT_SOCKETS_NO_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = call("syscall", _CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    for path in fence["readable"]:
        _allow(ruleset, path, _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE)
    for path in fence["devices"]:
        _allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    no_new_privileges()
    call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    filter_calls(fence["filter"])


def _allow(ruleset: int, path: str, rights: int) -> None:
    """These rights on a file, or on all that lies below a folder."""
    place = os.open(path, os.O_PATH)
    call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    os.close(place)
