"""Run a program as a script."""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["load", "run"]


def run(job: dict[str, Any]) -> None:
    """The role that runs `job["source"]` from beginning to end."""
    load(job["source"])


def load(source: str) -> dict[str, Any]:
    """Run a script and give its names; what it raises is printed without the frames of this package, and ends all."""
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__dict__["__builtins__"] = builtins
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), main.__dict__)
    # The edge of a process: the traceback is the answer.
    except Exception as error:
        import linecache
        import traceback

        linecache.cache["<program>"] = (len(source), None, source.splitlines(keepends=True), "<program>")
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)
    return main.__dict__
