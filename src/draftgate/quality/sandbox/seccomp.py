"""Which system calls a cell may make, as a classic BPF program (linux/seccomp.h, linux/filter.h).

The namespaces are the walls; the filter keeps code away from parts of the kernel that no test needs and that walls have
been climbed by: new namespaces, mounts, tracing, keys, BPF, io_uring, sockets. It also closes what no other limit
counts: memory files and System V shared memory. Refused calls fail with EPERM. Calls newer than `_LAST` fail with
ENOSYS, as on an older kernel, so that the list below stays complete.
"""

import errno
import platform
import struct
from collections.abc import Mapping

from draftgate.errors import MissingExtraError, nearest

__all__ = ["REFUSED", "filter_program"]

_LAST = 450
"""set_mempolicy_home_node, Linux 5.17."""

# name: (x86-64, every newer architecture), from asm/unistd_64.h and asm-generic/unistd.h
REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "fsconfig": (431, 431),
    "fspick": (433, 433),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    # parts of the kernel with a history
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    # memory that nothing counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # network, Unix sockets included (a socketpair stays, asyncio needs it)
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}

REFUSED_ALONE: Mapping[str, tuple[int | None, int | None]] = {
    # new processes and programs
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    # other processes of the user
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # what the user's processes share
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "shmdt": (67, 197),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # modes, owners, times and attributes of files, which Landlock does not rule on
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
"""Beyond that, what a process must not do that has only Landlock around it."""

_CLONE, _CLONE3, _IOCTL, _FCNTL, _PRLIMIT = (56, 220), (435, 435), (16, 29), (72, 25), (302, 261)
_CLONE_NEW, _CLONE_THREAD = 0x7E020000, 0x10000
"""Every CLONE_NEW* flag that clone(2) knows; the flag of a new thread."""
_IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TCGETS2 for isatty, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Not TIOCSTI, which types."""
_FCNTLS_ALONE = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: signals to whom one likes, and a watch on files."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; the low halves, little-endian
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06


def filter_program(alone: bool = False, machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter, 8 bytes each, for bubblewrap's --seccomp or prctl(2).

    Args:
        alone: for one process without namespaces around it: nothing that starts, signals or touches anything else.
        machine: as `platform.machine` tells; None for this one.

    Raises:
        MissingExtraError: the numbers of this architecture's system calls are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise MissingExtraError(f"no system-call table for {machine}; {nearest(machine, _ARCHITECTURES)}")
    column, code = _ARCHITECTURES[machine]
    refused = [*REFUSED.values(), *(REFUSED_ALONE.values() if alone else ())]
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, code, 1, 0),
        _step(_RETURN, _KILL),  # another architecture's calls, such as 32-bit ones, have other numbers
        _step(_LOAD, _NUMBER),
        *_answer(_GREATER, _LAST, _ERRNO | errno.ENOSYS),  # also the x32 calls, which have bit 30 set
        *_answer(_EQUAL, _CLONE3[column], _ERRNO | errno.ENOSYS),  # flags in memory; libraries fall back to clone
    ]
    for numbers in refused:
        if (number := numbers[column]) is not None:
            steps += _answer(_EQUAL, number, _REFUSED)
    steps += _when(
        _CLONE[column], _ARG0, _answer(_ANY_BIT, _CLONE_NEW, _REFUSED), _must(_ANY_BIT, _CLONE_THREAD, alone)
    )
    steps += _when(_IOCTL[column], _ARG1, *(_answer(_EQUAL, request, _ALLOW) for request in _IOCTLS), [_NO])
    if alone:
        steps += _when(_FCNTL[column], _ARG1, *(_answer(_EQUAL, command, _REFUSED) for command in _FCNTLS_ALONE))
        steps += _when(_PRLIMIT[column], _ARG0, _must(_EQUAL, 0, alone))
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, jump_if: int = 0, jump_else: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_if, jump_else, value)


_REFUSED = _ERRNO | errno.EPERM
_NO = _step(_RETURN, _REFUSED)


def _answer(test: int, value: int, answer: int) -> list[bytes]:
    """End with `answer` when the loaded word passes the test, else go on."""
    return [_step(test, value, 0, 1), _step(_RETURN, answer)]


def _must(test: int, value: int, applies: bool) -> list[bytes]:
    """Refuse when the loaded word fails the test, else go on."""
    return [_step(test, value, 1, 0), _NO] if applies else []


def _when(number: int, argument: int, *parts: list[bytes]) -> list[bytes]:
    """For one system call, load an argument, take `parts`, then allow; the others jump over."""
    steps = [_step(_LOAD, argument), *(step for part in parts for step in part), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(steps)), *steps]
