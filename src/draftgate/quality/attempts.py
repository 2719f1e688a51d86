"""Completions put to their tests, in parallel, each result kept as soon as it is there.

The program runs in one cell and its tests in another (`sandbox.pair`). Results are lines of a file; the same call goes
on where an interrupted one stopped.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from draftgate.errors import WorkloadError, nearest
from draftgate.quality.humaneval import Problem
from draftgate.quality.sandbox import Limits, Sandbox
from draftgate.quality.sandbox.pair import Case, put_to_tests

__all__ = ["Attempt", "run_all", "run_tests"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One completion and what its tests said.

    Attributes:
        task_id: of the problem.
        index: which of the problem's completions, from 0.
        passed: every test ran and none failed.
        outcome: "passed"; "failed"; "untested", the tests never called the program; "unsupported", they need what does
            not cross (see `Problem.objects`); or how the program ended: "killed", "timeout", "memory", "output".
        detail: what failed where, or the last words of the program; "" when passed.
        seconds: from start to verdict, start of the cells included.
    """

    task_id: str
    index: int
    passed: bool
    outcome: str
    detail: str
    seconds: float


def run_tests(
    problem: Problem, completions: Iterable[str], sandbox: Sandbox, limits: Limits | None = None
) -> list[Attempt]:
    """Put completions of one problem to its tests, one after the other.

    Raises:
        DraftgateError: a cell could not be started.
    """
    return [_attempt(problem, i, text, sandbox, limits or Limits()) for i, text in enumerate(completions)]


def run_all(
    problems: Sequence[Problem],
    completions: Mapping[str, Sequence[str]],
    sandbox: Sandbox,
    out: Path,
    limits: Limits | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Attempt]:
    """Put many completions to their tests, in parallel; each result is a line of `out` as soon as it is there.

    Args:
        problems: where the tests are.
        completions: by task_id.
        sandbox: where programs and tests run.
        out: JSONL file. Results that it already holds for the same program, tests and limits are not run again.
        limits: of each cell.
        workers: pairs of cells at one time; None for one a processor.
        progress: called with (done, all) after each result, in the caller's thread.

    Returns:
        One attempt for each completion, in the order of `problems`.

    Raises:
        WorkloadError: completions for a problem that is not there, or a file that is none of ours.
        DraftgateError: a cell could not be started; what was finished is in the file.
    """
    limits = limits or Limits()
    tasks = dict(_tasks(problems, completions, limits))
    done = {key: attempt for key, attempt in _finished(out) if key in tasks}
    pool = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)))
    try:
        with out.open("a", encoding="utf-8") as file:
            futures: dict[Future[Attempt], str] = {
                pool.submit(_attempt, *task, sandbox, limits): key for key, task in tasks.items() if key not in done
            }
            for future in as_completed(futures):
                key = futures[future]
                done[key] = future.result()
                file.write(json.dumps({"key": key} | asdict(done[key])) + "\n")
                file.flush()
                if progress:
                    progress(len(done), len(tasks))
    finally:
        pool.shutdown(cancel_futures=True)
    return [done[key] for key in tasks]


def _tasks(
    problems: Sequence[Problem], completions: Mapping[str, Sequence[str]], limits: Limits
) -> Iterator[tuple[str, tuple[Problem, int, str]]]:
    """(key, arguments) of each attempt; the key changes with anything that could change the result."""
    known = {problem.task_id: problem for problem in problems}
    for task_id in completions:
        if task_id not in known:
            raise WorkloadError(f"completions for {task_id!r}, which is no problem; {nearest(task_id, known)}")
    for task_id, problem in known.items():
        for i, text in enumerate(completions.get(task_id, ())):
            parts = [i, asdict(problem), text, asdict(limits)]
            yield sha256(json.dumps(parts).encode()).hexdigest()[:16], (problem, i, text)


def _finished(out: Path) -> Iterator[tuple[str, Attempt]]:
    """Results that an earlier run left; a last line that it could not finish is cut off."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return
    data = out.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(out, whole)
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            record = json.loads(line)
            yield record.pop("key"), Attempt(**record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkloadError(f"{out}:{number}: is no result of a test run; choose another file") from error


def _attempt(problem: Problem, index: int, completion: str, sandbox: Sandbox, limits: Limits) -> Attempt:
    start = time.monotonic()
    case = Case(
        problem.program(completion), problem.tests, problem.own_code(), problem.tested(), objects=problem.objects
    )
    outcome, detail = put_to_tests(case, sandbox.walls, limits)
    seconds = round(time.monotonic() - start, 4)
    return Attempt(problem.task_id, index, outcome == "passed", outcome, detail, seconds)
