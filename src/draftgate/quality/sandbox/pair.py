"""A program and its tests in two cells, so that the program can fail its tests and do nothing else to them.

In one process, code under test can end the process with status 0, replace `assert`, the check, or what `==` means, or
search memory for whatever would make a verdict genuine. Here it shares neither memory nor process numbers nor files
with its tests, and sees of them only the arguments of its calls. What it sends back is taken as data (`inside.wire`).
"""

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass

from draftgate.quality.sandbox.cage import Walls
from draftgate.quality.sandbox.cell import Cell, last_line, watch
from draftgate.quality.sandbox.limits import Limits

__all__ = ["Case", "put_to_tests"]

_LAST_WORDS_S = 1.0
"""How long a program that hung up may take to end, so that its own end can be told from ours."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sources and names of one trial; see `draftgate.quality.humaneval.Problem`."""

    source: str
    tests: str
    prompt: str = ""
    entry_point: str | None = None
    objects: bool = False


def put_to_tests(case: Case, walls: Walls, limits: Limits) -> tuple[str, str]:
    """(outcome, detail); the outcome is "passed" only when the tests' own cell says so after the last test.

    Raises:
        DraftgateError: a cell could not be started.
    """
    (ask_out, ask_in), (answer_out, answer_in), (verdict, verdict_in) = (os.pipe() for _ in range(3))
    modules = ("wire", "objects") if case.objects else ("wire",)
    with ExitStack() as cells:
        try:
            judge = Cell(
                walls,
                limits,
                ("judge", "judge"),
                (*modules, "judge"),
                fds=(answer_out, ask_in, verdict_in),
                tells=(verdict,),
                tests=case.tests,
                prompt=case.prompt,
                entry_point=case.entry_point,
                reader=answer_out,
                writer=ask_in,
                verdict=verdict_in,
            )
            cells.callback(judge.end)
            program = Cell(
                walls,
                limits,
                ("program", "serve"),
                (*modules, "script", "program"),
                fds=(ask_out, answer_in),
                source=case.source,
                reader=ask_out,
                writer=answer_in,
            )
            cells.callback(program.end)
        finally:
            for fd in (ask_out, ask_in, answer_out, answer_in, verdict_in):
                os.close(fd)
        cut = watch([judge, program])
        said = judge.written(verdict)
        gone = said.startswith(b'["gone"')
        by_itself = gone and program.wait(_LAST_WORDS_S)
    if cut:
        return cut, f"over the limit of {cut}"
    tests_end = judge.outcome(None)
    if not said:
        return "failed", f"the tests ended without a verdict: {tests_end.kind} {last_line(tests_end.stderr)}".rstrip()
    outcome, detail = json.loads(said)
    if not gone:
        return outcome, detail
    program_end = program.outcome(None)
    kind = program_end.kind if by_itself and program_end.kind != "ok" else "failed"
    return kind, f"{detail}, {last_line(program_end.stderr)}".rstrip(", ")
