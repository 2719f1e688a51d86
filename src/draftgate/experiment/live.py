"""The live comparison: arms interleaved on the same prompts, block by block."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from draftgate.engines.base import Completion, Engine, Request
from draftgate.errors import TraceError
from draftgate.experiment.arms import BASELINE, Arm, require_distinct
from draftgate.experiment.rundir import BlockLog
from draftgate.experiment.watch import Watch
from draftgate.stats.sequence import Interval
from draftgate.stats.verdict import Verdict, compare, speedup

__all__ = ["Block", "Run", "arm_speedup", "run_blocks"]

_FIRST_LOOK = 12  # blocks before an arm can be dropped: t-based bounds are unreliable on a few skewed ratios


@dataclass(frozen=True, slots=True)
class Run:
    """One arm on one prompt.

    Attributes:
        tokens: output tokens.
        decode_s: seconds of all steps; prefill_s: seconds of the prompt, which the block's arms share.
        steps: steps; covered: those that drafted; drafted, accepted: draft tokens.
        status: what the output was judged to be (`quality.judgement.Status`); None when it was not.
    """

    arm: str
    tokens: tuple[int, ...]
    finish: str
    prefill_s: float
    decode_s: float
    steps: int
    covered: int
    drafted: int
    accepted: int
    status: str | None = None

    @classmethod
    def of(cls, arm: str, done: Completion, status: str | None = None) -> "Run":
        """Sum up a completion."""
        return cls(
            arm=arm,
            tokens=done.tokens,
            finish=done.finish,
            prefill_s=done.prefill_s,
            decode_s=done.decode_s,
            steps=len(done.steps),
            covered=sum(s.drafted_n > 0 for s in done.steps),
            drafted=sum(s.drafted_n for s in done.steps),
            accepted=sum(s.accepted for s in done.steps),
            status=status,
        )

    @property
    def step_tokens(self) -> int:
        """Tokens that steps committed: all but the first, which the prefill chose."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Block:
    """Every arm still compared, on one prompt, within seconds of each other."""

    prompt: str
    round: int
    seconds: float
    runs: tuple[Run, ...]

    def run(self, arm: str) -> Run | None:
        """The run of an arm, None when it was not run."""
        return next((r for r in self.runs if r.arm == arm), None)

    @classmethod
    def from_mapping(cls, data: dict[str, Any]) -> "Block":
        """What `asdict` wrote.

        Raises:
            KeyError, TypeError: it was not written by this version.
        """
        runs = tuple(Run(**{**row, "tokens": tuple(row["tokens"])}) for row in data["runs"])
        return cls(data["prompt"], data["round"], data["seconds"], runs)


def _read(log: BlockLog) -> list[Block]:
    try:
        return [Block.from_mapping(row) for row in log.read()]
    except (KeyError, TypeError) as error:
        raise TraceError(f"{log.path}: a block is not whole ({error!r}); remove the file to measure again") from error


def _log_ratios(blocks: Sequence[Block], arm: str) -> dict[str, list[float]]:
    """Log of (seconds per token of none / of the arm) by prompt, one number for each block that has both.

    Requests that ended with their first token took no step and have no speed.
    """
    out: dict[str, list[float]] = {}
    for block in blocks:
        none, run = block.run(BASELINE.name), block.run(arm)
        if none and run and none.step_tokens > 0 and run.step_tokens > 0:
            ratio = (none.decode_s / none.step_tokens) / (run.decode_s / run.step_tokens)
            out.setdefault(block.prompt, []).append(math.log(ratio))
    return out


def arm_speedup(blocks: Sequence[Block], arm: str, alpha: float, arms: int) -> Interval:
    """Anytime-valid interval of an arm's geometric-mean speedup over none; alpha is shared over `arms` arms.

    Paired within blocks, and rounds of one prompt are averaged: prompts are the independent units, and counting repeats
    as new prompts would make the interval too narrow. n is the number of prompts.
    """
    ratios = np.exp([np.mean(logs) for logs in _log_ratios(blocks, arm).values()])
    return speedup(ratios, np.ones(len(ratios)), alpha, arms)


def _schedule(requests: Sequence[Request], seed: int, rounds: int | None) -> Iterator[tuple[int, int, Request]]:
    """(round, number, request), each round in an order of its own."""
    for r in count() if rounds is None else range(rounds):
        for number, i in enumerate(np.random.default_rng([0, seed, r]).permutation(len(requests))):
            yield r, number, requests[i]


def _still_open(blocks: Sequence[Block], arms: Sequence[Arm], alpha: float, brief: Collection[str]) -> list[Arm]:
    """Arms that are not yet shown to be slower than none, after the first look without the `brief` ones."""
    if len(blocks) < _FIRST_LOOK:
        return list(arms)
    others = len(arms) - 1
    return [
        arm
        for arm in arms
        if arm.name == BASELINE.name
        or (arm.name not in brief and compare(arm_speedup(blocks, arm.name, alpha, others)) is not Verdict.WORSE)
    ]


def _settled(interval: Interval, margin: float) -> bool:
    """Whether more blocks would change nothing: better, worse, or within the margin of none."""
    if compare(interval) in (Verdict.BETTER, Verdict.WORSE):
        return True
    low, high = interval.low, interval.high
    return low is not None and high is not None and 1 - margin < low and high < 1 + margin


def _all_settled(
    blocks: Sequence[Block], arms: Sequence[Arm], alpha: float, brief: Collection[str], margin: float
) -> bool:
    lasting = [arm.name for arm in arms if arm.name != BASELINE.name and arm.name not in brief]
    return all(_settled(arm_speedup(blocks, name, alpha, len(arms) - 1), margin) for name in lasting)


def run_blocks(
    engine: Engine,
    requests: Sequence[Request],
    arms: Sequence[Arm],
    log: BlockLog,
    budget_s: float,
    seed: int,
    watch: Watch,
    alpha: float = 0.05,
    brief: Collection[str] = (),
    margin: float = 0.02,
    rounds: int | None = 4,
    judge: Callable[[Completion], str | None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Block]:
    """Run blocks until the budget is spent, the rounds are done, or every arm is settled after a whole round.

    Blocks already in the log count, with the seconds they took. Arms shown to be slower than none are dropped from
    later blocks; what was measured of them stays.

    Args:
        arms: the baseline and the others; within a block their order is random.
        budget_s: seconds of measuring in all, passed by one block at most; three blocks are run regardless.
        brief: arms that are only compared on the first prompts, because they will not be recommended anyway.
        judge: status of an output, asked outside the measured time.
        margin: an arm whose interval lies within 1 -+ margin is settled as a tie.

    Raises:
        ConfigError: two arms have the same name.
        TraceError: the log is damaged.
        InputError: the log cannot be written.
        EngineError: the engine failed.
    """
    require_distinct(arms)
    done = _read(log)
    finished = {(b.round, b.prompt) for b in done}
    spent = sum(b.seconds for b in done)
    watch.advance(spent)
    for r, number, request in _schedule(requests, seed, rounds):
        if (r, request.id) in finished:
            continue
        if spent >= budget_s and len(done) >= min(3, len(requests)):
            break
        if r > 0 and number == 0 and _all_settled(done, arms, alpha, brief, margin):
            break
        active = _still_open(done, arms, alpha, brief)
        if len(active) == 1 < len(arms):
            break
        begin = clock()
        order = np.random.default_rng([1, seed, r, number]).permutation(len(active))
        done_by = [(active[i].name, engine.generate([request], active[i].policy)[0]) for i in order]
        seconds = clock() - begin
        runs = tuple(Run.of(arm, completion, judge(completion)) for arm, completion in done_by)
        block = Block(request.id, r, seconds, runs)
        log.append(asdict(block))
        done.append(block)
        spent += block.seconds
        watch.advance(block.seconds, f"{len(done)} blocks, {len(active)} arms")
    return done
