"""What a way to confine has to provide: how to start one cell behind it."""

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftgate.quality.sandbox.limits import Limits

__all__ = ["Cage", "Walls", "sealed"]


@dataclass(frozen=True, slots=True)
class Cage:
    """How one cell is started: a command that ends in an interpreter, and what the code inside is told.

    Attributes:
        argv: command line; options of the interpreter come last.
        uid: user to become inside, None to stay who one is.
        fds: open files that the command needs; closed here after the start.
        process_1: the command makes the interpreter process 1 of its namespace, which then starts another for the role.
        walls: module of `inside` that does what the command has not done.
        plan: what that module is told.
        one_ends_all: the command's child ends with all that it started; otherwise its process group is ended.
        counted: processes from outside that the kernel counts towards the limit.
        cwd: where the command is started.
    """

    argv: tuple[str, ...]
    uid: int | None = None
    fds: tuple[int, ...] = ()
    process_1: bool = False
    walls: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    one_ends_all: bool = True
    counted: int = 0
    cwd: str = "/"


class Walls(Protocol):
    """A way to confine."""

    @property
    def name(self) -> str:
        """As shown to users."""
        ...

    def cage(self, limits: Limits) -> Cage:
        """A fresh cage for one cell."""
        ...


def sealed(data: bytes) -> int:
    """An open file in memory that holds `data`, and that nobody who gets it can change. The caller closes it."""
    fd = os.memfd_create("draftgate", os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd
