"""What a step of a running vLLM costs: every draft length is forced on it in turn, and timed.

The seconds are those of whole steps: scheduling, the verifying decode, the rule, and the drafting of as many tokens for
the next step. So `StepCost.draft_s` is 0, and a curve's point m holds the drafting of m - 1 tokens. Drafts that the
drafter does not find are filled up with arbitrary tokens: verifying costs the same whatever is verified.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import numpy as np

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.vllm.stepper import Stepper, Tick

__all__ = ["measure"]

Start = Callable[[Sequence[int], int], str]
Ticks = Generator[Tick, None, None]

_CONTEXT_TOK = 192  # prompt of each sequence: that of a typical short request
_OUTPUT_TOK = 256  # then it starts again, so that the context stays about as long
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 100


def measure(
    stepper: Stepper, start: Start, limit: Callable[[int], None], batches: Sequence[int], most: int, seconds: float
) -> StepCost:
    """Time steps that verify 1..most tokens a sequence at each batch size, for about `seconds` in all.

    Larger batches are measured up to fewer tokens a sequence, down to four, as the embedded engine's are.

    Args:
        stepper: takes the steps.
        start: (prompt, output tokens) -> name of an added request that runs to its limit.
        limit: puts a draft length in force.
    """
    share = seconds / len(batches)
    return StepCost({b: _curve(stepper, start, limit, b, max(min(4, most), most // b), share) for b in batches})


def _curve(
    stepper: Stepper, start: Start, limit: Callable[[int], None], batch: int, most: int, seconds: float
) -> Curve:
    """All draft lengths in turn, round after round: noise that drifts spreads over all of them alike."""
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    with closing(_endless(stepper, start, batch)) as ticks:
        while len(rounds) < _LEAST_ROUNDS or (time.perf_counter() < end and len(rounds) < _MOST_ROUNDS):
            rounds.append([_timed(stepper, ticks, limit, k) for k in range(most)])
    return Curve.from_samples(batch, np.array(rounds))


def _endless(stepper: Stepper, start: Start, batch: int) -> Ticks:
    """Decode steps of `batch` sequences, started again whenever one ends."""
    filler = [7 + i * 7919 % 997 for i in range(_CONTEXT_TOK)]
    while True:
        reading = {start(filler, _OUTPUT_TOK) for _ in range(batch)}
        with closing(stepper.ticks()) as ticks:
            for tick in ticks:
                if reading:
                    reading -= tick.news.keys()
                elif any(news.finish for news in tick.news.values()):
                    break
                else:
                    yield tick


def _timed(stepper: Stepper, ticks: Ticks, limit: Callable[[int], None], k: int) -> float:
    """Seconds of a step that verifies and drafts k tokens for each sequence."""
    limit(k)
    while True:
        next(ticks)  # drafts k tokens, and verifies what came before
        stepper.draft(k)
        tick = next(ticks)
        if all(news.drafted_n == k for news in tick.news.values()):  # else the sequences were started again
            return tick.seconds
