"""Cells behind namespaces that a small Python program of our own sets up (`inside/walls.py`)."""

import tempfile
from dataclasses import dataclass

from draftgate.quality.sandbox import layout
from draftgate.quality.sandbox.cage import Cage
from draftgate.quality.sandbox.limits import Limits
from draftgate.quality.sandbox.seccomp import filter_program

__all__ = ["Native"]

_TMP_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Native:
    """The interpreter builds its own walls before it becomes the program."""

    name: str = "native"

    def cage(self, limits: Limits) -> Cage:
        """Command line and plan of the walls for one cell."""
        uid = layout.fresh_uid()
        plan = {
            "own_user": uid is None,
            "base": tempfile.gettempdir(),
            "binds": layout.readable(),
            "devices": list(layout.DEVICES),
            "links": layout.links(),
            "tmp_bytes": limits.tmp_bytes,
            "tmp_files": _TMP_FILES,
            "filter": filter_program(),
        }
        return Cage(layout.interpreter(), uid, walls="walls", plan=plan)
