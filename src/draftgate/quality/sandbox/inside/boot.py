"""What a new interpreter does first: narrow itself, say that it is ready, take its role."""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False  # importing typing would take a third of a start
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["become", "limit", "start", "wait_for"]

_OPEN_FILES = 64


def start(job: dict[str, Any]) -> None:
    """Narrow this process as `job` says and run its role. What follows the byte on `ready` is the role's doing."""
    walls = sys.modules.get(job["walls"])  # none where bubblewrap has built them before
    if walls:
        walls.enter(job["plan"], wait_for)
    if job["process_1"] and (child := os.fork()):
        wait_for(child)
    limit(job["limits"])
    become(job["uid"])
    if walls:
        walls.close_behind(job["plan"])
    os.write(job["ready"], b".")
    os.close(job["ready"])
    module, function = job["role"]
    getattr(sys.modules[module], function)(job)


def wait_for(child: int) -> NoReturn:
    """Do nothing but reap until the child ends, then end as it did, in a shell's way of saying so.

    As process 1 of its namespace this one takes all others with it: the kernel ends them before it lets it go.
    """
    os.closerange(0, 1 << 20)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def limit(limits: dict[str, int]) -> None:
    """Resource limits of this process and all that it starts. CPU time alone warns, by SIGXCPU, a second early."""
    for which, soft, hard in (
        (resource.RLIMIT_AS, limits["memory_bytes"], limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1),
        (resource.RLIMIT_FSIZE, limits["tmp_bytes"], limits["tmp_bytes"]),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def become(uid: int | None) -> None:
    """Give up root for a user that owns nothing: root reads everybody's files, and no process limit counts it."""
    if uid is not None and os.getuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
