"""The live comparison: arms interleaved on the same prompts, block by block."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np

from draftgate.engines.base import Completion, Engine, Request
from draftgate.experiment.arms import BASELINE, Arm
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

    @classmethod
    def of(cls, arm: str, done: Completion) -> "Run":
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
        """What `asdict` wrote."""
        runs = tuple(Run(**{**row, "tokens": tuple(row["tokens"])}) for row in data["runs"])
        return cls(data["prompt"], data["round"], data["seconds"], runs)


def arm_speedup(blocks: Sequence[Block], arm: str, alpha: float, arms: int) -> Interval:
    """Anytime-valid interval of an arm's speedup over none, paired by block; alpha is shared over `arms` arms."""
    pairs = [
        (none.decode_s / none.step_tokens, run.decode_s / run.step_tokens)
        for block in blocks
        if (none := block.run(BASELINE.name))
        and (run := block.run(arm))
        and none.step_tokens > 0
        and run.step_tokens > 0
    ]
    if not pairs:
        return Interval(None, None, None, 0, 1 - alpha, 1.0)
    none_s, arm_s = np.array(pairs).T
    return speedup(none_s, arm_s, alpha, arms)


def _schedule(requests: Sequence[Request], seed: int, rounds: int | None) -> Iterator[tuple[int, int, Request]]:
    """(round, number, request), each round in an order of its own."""
    for r in count() if rounds is None else range(rounds):
        for number, i in enumerate(np.random.default_rng([seed, r]).permutation(len(requests))):
            yield r, number, requests[i]


def _still_open(blocks: Sequence[Block], arms: Sequence[Arm], alpha: float) -> list[Arm]:
    """Arms that are not yet shown to be slower than none."""
    if len(blocks) < _FIRST_LOOK:
        return list(arms)
    others = len(arms) - 1
    return [
        arm
        for arm in arms
        if arm.name == BASELINE.name or compare(arm_speedup(blocks, arm.name, alpha, others)) is not Verdict.WORSE
    ]


def _settled(blocks: Sequence[Block], arms: Sequence[Arm], alpha: float, margin: float) -> bool:
    """Whether more blocks would change nothing: every arm is better, worse, or within the margin of none."""
    for arm in arms:
        if arm.name != BASELINE.name:
            interval = arm_speedup(blocks, arm.name, alpha, len(arms) - 1)
            bounded = interval.low is not None and interval.high is not None
            close = bounded and interval.low > 1 - margin and interval.high < 1 + margin  # type: ignore[operator]
            if compare(interval) not in (Verdict.BETTER, Verdict.WORSE) and not close:
                return False
    return True


def run_blocks(
    engine: Engine,
    requests: Sequence[Request],
    arms: Sequence[Arm],
    log: BlockLog,
    budget_s: float,
    seed: int,
    watch: Watch,
    alpha: float = 0.05,
    margin: float = 0.02,
    rounds: int | None = 4,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Block]:
    """Run blocks until the budget is spent, the rounds are done, or every arm is settled after a whole round.

    Blocks already in the log count, with the seconds they took. Arms shown to be slower than none are dropped from
    later blocks; what was measured of them stays.

    Args:
        arms: the baseline and the others; within a block their order is random.
        budget_s: seconds of measuring in all; at least one whole round of up to three blocks is run regardless.
        margin: an arm whose interval lies within 1 -+ margin is settled as a tie.
    """
    done = [Block.from_mapping(row) for row in log.read()]
    finished = {(b.round, b.prompt) for b in done}
    spent = sum(b.seconds for b in done)
    watch.advance(spent)
    for r, number, request in _schedule(requests, seed, rounds):
        if (r, request.id) in finished:
            continue
        if spent >= budget_s and len(done) >= min(3, len(requests)):
            break
        if r > 0 and number == 0 and _settled(done, arms, alpha, margin):
            break
        begin = clock()
        active = _still_open(done, arms, alpha)
        order = np.random.default_rng([seed, r, number]).permutation(len(active))
        runs = tuple(Run.of(active[i].name, engine.generate([request], active[i].policy)[0]) for i in order)
        block = Block(request.id, r, clock() - begin, runs)
        log.append(asdict(block))
        done.append(block)
        spent += block.seconds
        watch.advance(block.seconds, f"{len(done)} blocks, {len(active)} arms")
    return done
