"""Cells of one process behind Landlock and a strict filter of system calls, for containers that refuse namespaces."""

from dataclasses import dataclass

from draftgate.quality.sandbox import layout
from draftgate.quality.sandbox.cage import Cage
from draftgate.quality.sandbox.limits import Limits
from draftgate.quality.sandbox.seccomp import filter_program

__all__ = ["Landlock"]


@dataclass(frozen=True, slots=True)
class Landlock:
    """The interpreter fences itself in before it becomes the program: no second process, no place to write to."""

    name: str = "landlock"

    def cage(self, limits: Limits) -> Cage:
        """Command line and plan of the fence for one cell."""
        plan = {"readable": layout.readable(), "devices": list(layout.DEVICES), "filter": filter_program(alone=True)}
        uid = layout.fresh_uid()
        counted = 0 if uid is not None else layout.tasks_of_user()
        return Cage(layout.interpreter(), uid, walls="fence", plan=plan, one_ends_all=False, counted=counted)
