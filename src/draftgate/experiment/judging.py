"""What the outputs of a workload should be, whether they are, and what that says of an arm."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from draftgate.engines.base import Completion, lexed_language
from draftgate.errors import MissingExtraError
from draftgate.experiment.arms import BASELINE, Arm
from draftgate.experiment.live import Block, Run
from draftgate.quality.evidence import Evidence, Outcome, valid_tokens_per_s
from draftgate.quality.gate import FLOORS, Gate, GateResult
from draftgate.quality.judge import judge
from draftgate.quality.judgement import Status, Task
from draftgate.quality.passk import Problem, run_tests
from draftgate.quality.sandbox import Sandbox, find_sandbox
from draftgate.workload.prompt import Prompt, Workload

__all__ = ["GateSettings", "Judge", "gated", "make_judge", "quality_figures", "task_of", "workload_kind"]

Judge = Callable[[Completion], str | None]
"""Status of an output by name, None when nothing can be said of it."""

_STRUCTURED = frozenset({"json", "xml", "html", "yaml", "toml"})


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What the user asks of outputs.

    Attributes:
        floor: least valid rate; None takes the source's for the kind of workload.
        margin: loss of valid rate against no speculation that a lossy arm may have.
        run_tests: run the tests that prompts bring, in a sandbox.
    """

    floor: float | None = None
    margin: float = 0.05
    run_tests: bool = False

    def gate(self, workload: Workload, alpha: float, arms: int) -> Gate:
        """The gate of a workload, alpha shared by its arms."""
        floor = FLOORS[workload_kind(workload)] if self.floor is None else self.floor
        return Gate(floor, self.margin, alpha, max(arms, 1))


def workload_kind(workload: Workload) -> str:
    """ "structured", "code" or "chat", by what most prompts ask for."""
    kinds = [_kind(prompt) for prompt in workload.prompts]
    return max(sorted(set(kinds)), key=kinds.count)


def _kind(prompt: Prompt) -> str:
    if prompt.schema is not None or prompt.tools or prompt.language in _STRUCTURED:
        return "structured"
    return "code" if prompt.tests or lexed_language(prompt.language) not in (None, "markdown", "prose") else "chat"


def task_of(prompt: Prompt) -> Task:
    """What the output of a prompt should be; raw text is continued by it, a conversation is answered."""
    return Task(
        language=prompt.language,
        schema=prompt.schema,
        tools=prompt.tools,
        tests=prompt.tests,
        prefix=prompt.prompt or "",
        check=prompt.check,
    )


def make_judge(workload: Workload, settings: GateSettings, say: Callable[[str], None]) -> Judge:
    """A judge of a workload's outputs; without the extra `quality` one that says nothing, and `say` tells why.

    Raises:
        InputError: tests are to be run, and there is no sandbox to run them in.
    """
    tasks = {prompt.id: task_of(prompt) for prompt in workload.prompts}
    wants_tests = settings.run_tests and any(task.tests for task in tasks.values())
    sandbox = find_sandbox() if wants_tests else None
    try:
        for task in tasks.values():
            judge(task, "", "length")
    except MissingExtraError as error:
        say(f"{workload.name}: outputs are not judged: {error}")
        return lambda done: None
    return partial(_status, tasks, sandbox, {})


def _status(
    tasks: Mapping[str, Task], sandbox: Sandbox | None, known: dict[tuple[str, str, str], str | None], done: Completion
) -> str | None:
    """Judged once for every text: arms that agree, and rounds, repeat it."""
    key = done.request.id, done.text, done.finish
    if key not in known:
        known[key] = _judged(tasks[done.request.id], sandbox, done)
    return known[key]


def _judged(task: Task, sandbox: Sandbox | None, done: Completion) -> str | None:
    status = judge(task, done.text, done.finish).status
    if status is Status.VALID and task.tests and sandbox is not None:
        problem = Problem(done.request.id, task.prefix, task.tests, task.entry_point)
        status = Status.VALID if run_tests(problem, [done.text], sandbox)[0].passed else Status.INVALID
    return None if status is Status.UNCHECKED else status.value


def gated(arm: Arm, blocks: Sequence[Block], gate: Gate) -> GateResult | None:
    """The gate's verdict on an arm; None for the baseline, and where no output was judged."""
    outcomes = [] if arm.name == BASELINE.name else list(_outcomes(arm.name, blocks))
    return gate.decide(outcomes, arm.policy.lossless) if outcomes else None


def _outcomes(arm: str, blocks: Sequence[Block]) -> Iterator[Outcome]:
    for block in blocks:
        none, run = block.run(BASELINE.name), block.run(arm)
        if none and run and none.status and run.status:
            yield Outcome(block.prompt, _good(none.status, run.status), _good(run.status, none.status))


def _good(status: str, other: str) -> bool:
    """Valid, or cut at the token limit with nothing wrong so far: unless the other side finished in the same room."""
    return status == Status.VALID or (status == Status.TRUNCATED and other != Status.VALID)


def quality_figures(arm: Arm, blocks: Sequence[Block], gate: Gate) -> dict[str, Any]:
    """The quality part of an arm object; None where nothing was judged.

    "valid" counts outputs that were cut with nothing wrong so far as valid. Goodput is tokens of such outputs over the
    seconds of all judged ones.
    """
    judged = [(block.prompt, run) for block in blocks if (run := block.run(arm.name)) and run.status]
    runs = [run for _, run in judged]
    result = gated(arm, blocks, gate)
    return {
        "valid": _valid(judged, gate),
        "truncated": sum(run.status == Status.TRUNCATED for run in runs),
        "goodput_tok_s": valid_tokens_per_s(
            [run.step_tokens for run in runs], [run.decode_s for run in runs], [_sound(run) for run in runs]
        ),
        "quality": None if result is None else _plain(result, gate),
    }


def _sound(run: Run) -> bool:
    return run.status != Status.INVALID


def _valid(runs: Sequence[tuple[str, Run]], gate: Gate) -> dict[str, Any] | None:
    if not runs:
        return None
    i = Evidence.of(Outcome(prompt, None, _sound(run)) for prompt, run in runs).arm.interval(gate.alpha / gate.arms)
    return {"estimate": i.estimate, "low": i.low, "high": i.high, "n": i.n, "how": "measured"}


def _plain(result: GateResult, gate: Gate) -> dict[str, Any]:
    d = result.difference
    return {
        "verdict": result.verdict.value,
        "why": result.why,
        "difference": {"estimate": d.estimate, "low": d.low, "high": d.high, "n": d.n, "how": "measured"},
        "floor": gate.floor,
        "margin": gate.margin,
        "needed": result.needed,
    }
