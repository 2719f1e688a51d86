"""The tests' side: run the tests against functions that live in another cell, and write the verdict.

Tests and program share no memory, so a program cannot replace an assertion, read what is expected, or report a verdict;
it can only answer calls. A verdict is written here, after the last test, to a pipe that the program's cell does not
have. No verdict is no pass.
"""

import builtins
import json
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, TracebackType
from typing import Any, NoReturn

from draftgate.quality.sandbox.inside.wire import Peer, Remote

__all__ = ["judge"]

_DETAIL_CHARS = 1000


def judge(job: dict[str, Any]) -> NoReturn:
    """Run `job["tests"]`; the verdict is a JSON list of outcome and detail."""
    verdict = os.fdopen(job["verdict"], "w")

    def end(outcome: str, detail: str) -> NoReturn:
        verdict.write(json.dumps([outcome, detail[:_DETAIL_CHARS]]))
        verdict.flush()
        os._exit(0)

    peer = _Tests(job, end)
    try:
        _run(job, peer)
    # The edge of a process: whatever the tests raise, an end of the process included, is a test that did not pass.
    except BaseException as error:
        end("failed", _told(error, job["tests"]))
    if not peer.calls:
        end("untested", "the tests never called the program")
    end("passed", "")


class _Tests(Peer):
    """Lets the program call functions that tests hand to it, and nothing else."""

    def __init__(self, job: dict[str, Any], end: Callable[[str, str], NoReturn]) -> None:
        reader, writer = os.fdopen(job["reader"], "rb"), os.fdopen(job["writer"], "wb")
        super().__init__(reader, writer, {"call": lambda function, *args, **kwargs: function(*args, **kwargs)})
        self._end, self._objects = end, sys.modules.get("draftgate.quality.sandbox.inside.objects")
        self.calls = 0

    def ask(self, operation: str, ref: int | None, *args: Any, **kwargs: Any) -> Any:
        self.calls += operation == "call"
        return super().ask(operation, ref, *args, **kwargs)

    def lost(self, reason: str) -> NoReturn:
        self._end("gone", f"the program {reason}")

    def represent(self, ref: int, kind: str, can_call: bool) -> Remote:
        if self._objects:
            stand_in: Remote = self._objects.Object(self, ref)
            return stand_in
        if not can_call:
            self._end("unsupported", f"a {kind} does not cross to the tests; see 'objects' in the problem format")
        return super().represent(ref, kind, can_call)

    def keep(self, value: object) -> int:
        if not callable(value):
            self._end("unsupported", f"the tests hand a {type(value).__qualname__} to the program, which cannot cross")
        return super().keep(value)


def _run(job: dict[str, Any], peer: _Tests) -> None:
    """The tests' own names come first, then the prompt's, then built-in ones; only what is left is the program's."""
    entry = job["entry_point"]
    code = compile(job["tests"], "<tests>", "exec", dont_inherit=True)
    names: dict[str, Any] = {"__name__": "tests"}
    exec(job["prompt"], names)
    wanted = {name for name in _mentioned(code) if name not in names and not hasattr(builtins, name)}
    names |= peer.ask("look", None, sorted(wanted | {entry} - {None}))
    if entry is not None and entry not in names:
        raise NameError(f"the program defines no {entry!r}")
    exec(code, names)
    functions = {name: value for name, value in names.items() if isinstance(value, FunctionType)}
    own = {name: value for name, value in functions.items() if value.__code__.co_filename == "<tests>"}
    if "check" in own and entry is not None:
        own["check"](names[entry])
    for name, function in own.items():
        if name.startswith("test") and not function.__code__.co_argcount:
            function()


def _mentioned(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)


def _told(error: BaseException, tests: str) -> str:
    """What went wrong, and the line of the tests where it did."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    lines = [number for name, number in _frames(error.__traceback__) if name == "<tests>"]
    if not lines:
        return text
    return f"{text} in line {lines[-1]} of the tests: {tests.splitlines()[lines[-1] - 1].strip()}"


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
