"""The best way to confine that works on this machine, found by trying."""

import tempfile
from dataclasses import dataclass
from functools import cache

from draftgate.errors import DraftgateError, MissingExtraError
from draftgate.quality.sandbox import layout
from draftgate.quality.sandbox.bubblewrap import Bubblewrap
from draftgate.quality.sandbox.cage import Cage, Walls
from draftgate.quality.sandbox.cell import Cell, watch
from draftgate.quality.sandbox.landlock import Landlock
from draftgate.quality.sandbox.limits import Limits, Outcome
from draftgate.quality.sandbox.native import Native

__all__ = ["Sandbox", "Unconfined", "find_sandbox", "obstacle"]

_PROBE = """
import os, socket, sys, threading
def write():
    os.mkdir("/probe")
    os.rmdir("/probe")
thread = threading.Thread(target=os.stat, args=("/",))
thread.start()
thread.join()
for attempt in (write, socket.socket, lambda: os.listdir("/proc"), lambda: open("/etc/passwd")):
    try:
        attempt()
    except OSError:
        continue
    sys.exit("the walls do not hold")
"""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Runs programs, each in a cell of its own. Threads may share one."""

    walls: Walls

    @property
    def name(self) -> str:
        """bubblewrap, native, landlock or unconfined."""
        return self.walls.name

    def run(self, program: str, limits: Limits | None = None, stdin: str = "") -> Outcome:
        """Run Python source as a script; see `draftgate.quality.sandbox` for what it cannot do.

        A status of 0 says that the program ended so, not that it is right: use `draftgate.quality.humaneval` for tests.

        Raises:
            DraftgateError: the cell could not be started.
        """
        role = ("script", "run")
        cell = Cell(self.walls, limits or Limits(), role, ("script",), stdin=stdin.encode(), source=program)
        cut: str | None = "killed"
        try:
            cut = watch([cell])
        finally:
            cell.end()
        return cell.outcome(cut)


@dataclass(frozen=True, slots=True)
class Unconfined:
    """No walls: limits of resources and the wall clock, nothing else."""

    name: str = "unconfined"

    def cage(self, limits: Limits) -> Cage:
        """A plain interpreter."""
        counted = layout.tasks_of_user()
        return Cage(layout.interpreter(), one_ends_all=False, counted=counted, cwd=tempfile.gettempdir())


def find_sandbox(allow_unsafe: bool = False) -> Sandbox:
    """Bubblewrap if it works here, else namespaces of our own, else Landlock.

    Args:
        allow_unsafe: where none works, run programs with resource limits only. They can then read, change and send
            whatever the user can.

    Raises:
        MissingExtraError: none works; says why, and what to install.
    """
    reasons = []
    for walls in (Bubblewrap(), Native(), Landlock()):
        reason = obstacle(walls)
        if reason is None:
            return Sandbox(walls)
        reasons.append(f"{walls.name}: {reason}")
    if allow_unsafe:
        return Sandbox(Unconfined())
    raise MissingExtraError(
        f"no sandbox for code that a model wrote ({'; '.join(reasons)}). Install bubblewrap (Debian, Ubuntu: apt-get "
        "install bubblewrap; Fedora: dnf install bubblewrap), or, in a container, allow user namespaces. Only where "
        "the machine itself may be lost, allow_unsafe runs it unconfined"
    )


@cache
def obstacle(walls: Walls) -> str | None:
    """Why these walls cannot be used here; None when a program that tries them finds that they hold."""
    try:
        outcome = Sandbox(walls).run(_PROBE)
    except DraftgateError as error:
        return str(error)
    return None if outcome.kind == "ok" else f"the probe ended as {outcome.kind}: {outcome.stderr.strip()}"
