"""Whether an arm's outputs are as good as without speculation: ok, failed, or not known yet.

All evidence is anytime-valid (`stats.betting`), so the gate may be asked after every block. What the verdicts mean,
their assumptions, error rates and power are in docs/statistics.md, "Quality".
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError
from draftgate.quality.evidence import Evidence, Outcome
from draftgate.stats.sequence import Interval, open_unit

__all__ = ["FLOORS", "Gate", "GateResult", "Quality"]

FLOORS: Mapping[str, float | None] = {"chat": None, "code": 0.95, "structured": 0.98}
"""Least valid-output rate by kind of workload, from the source article; structured is JSON, XML and tool calls."""

_MORE = np.unique(
    np.geomspace(1, 100_000, 600).round()
)  # how many more prompts to try: 2% apart, and up to where it helps

Flags = NDArray[np.bool_]


class Quality(StrEnum):
    """What is known about an arm's outputs."""

    OK = "ok"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict and the figures behind it.

    Attributes:
        verdict: ok, failed or inconclusive.
        valid, baseline_valid: valid rate of the judged outputs, by the arm and without speculation.
        difference: the arm's valid rate minus that without speculation, paired; 0.01 is one point.
        n: prompts that count in the difference.
        needed: about how many more prompts settle the verdict if the rates stay as they are; 0 when it is settled, None
            when unknown or beyond 100,000.
        why: the reason, in a sentence.
    """

    verdict: Quality
    valid: Interval
    baseline_valid: Interval
    difference: Interval
    n: int
    needed: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The promise that an arm's outputs have to keep.

    Attributes:
        floor: least valid rate, None where there is none to ask for; `FLOORS` has the source's.
        margin: loss of valid rate against no speculation that is accepted from a lossy arm; 0.05 is five points.
        alpha: chance of a wrong "ok", and of a wrong "failed", over all looks and arms. Every interval is two-sided,
            with half of it at each end.
        arms: arms compared with the same baseline; they share alpha (Bonferroni).

    >>> gate = Gate(floor=0.98)
    >>> result = gate.decide([Outcome(str(i), True, True) for i in range(120)], lossless=False)
    >>> result.verdict, result.needed
    (<Quality.INCONCLUSIVE: 'inconclusive'>, 129)
    """

    floor: float | None
    margin: float = 0.05
    alpha: float = 0.05
    arms: int = 1

    def __post_init__(self) -> None:
        if self.floor is not None:
            open_unit("floor", self.floor)
        open_unit("alpha", self.alpha)
        if not 0 <= self.margin < 1:
            raise ConfigError(f"margin must be at least 0 and below 1, but got {self.margin}; 0.05 is five points")
        if self.arms < 1:
            raise ConfigError(f"arms must be at least 1, but got {self.arms}")

    def decide(self, outcomes: Iterable[Outcome], lossless: bool) -> GateResult:
        """The verdict on one arm, as it stands now.

        Args:
            outcomes: every pair so far, in any order; pairs of one prompt are averaged.
            lossless: the arm draws from the target's law by construction. It is ok unless proven worse; a lossy arm is
                ok only once that is proven.
        """
        evidence = Evidence.of(outcomes)
        ok, failed = self.verdicts(evidence, lossless)
        verdict = Quality.OK if ok else Quality.FAILED if failed else Quality.INCONCLUSIVE
        needed = 0 if ok or failed else self._needed(evidence)
        difference = evidence.difference.interval(self.alpha / self.arms, null=0.0)
        arm, baseline = (tally.interval(self.alpha / self.arms) for tally in (evidence.arm, evidence.baseline))
        why = [self._about_difference(difference, lossless)]
        if self.floor is not None and not lossless and difference.n:
            why.append(_about_floor(self.floor, arm, baseline))
        if needed:
            why.append(f"about {needed} more prompts like these would settle it")
        return GateResult(verdict, arm, baseline, difference, difference.n, needed, "; ".join(why))

    def verdicts(self, evidence: Evidence, lossless: bool) -> tuple[Flags, Flags]:
        """(ok, failed)[...] for every run and look that the tallies hold; inconclusive where neither.

        A lossy arm is ok when its loss is proven to be less than the margin and its rate to exceed the floor. It has
        failed when it is proven worse and not proven to stay within the margin, or proven to be below the floor. The
        floor is waived where the baseline is proven to be below it: that is the model's doing. Nor is an arm blamed for
        missing it while the baseline seems to.
        """
        limit = math.log(2 * self.arms / self.alpha)
        worse = evidence.difference.log_e_below(0.0) >= limit
        if lossless:
            return ~worse, worse
        within = evidence.difference.log_e_above(-self.margin) >= limit
        if self.floor is None:
            return within, worse & ~within
        # By proof, not by estimate: an estimate near the floor is below it at some look or other.
        waived = evidence.baseline.log_e_below(self.floor) >= limit
        proven = evidence.arm.log_e_above(self.floor) >= limit
        below = evidence.arm.log_e_below(self.floor) >= limit
        return within & (waived | proven), (worse & ~within) | (below & (evidence.baseline.mean >= self.floor))

    def _needed(self, evidence: Evidence) -> int | None:
        """Prompts to add, at the present rates, until a lossy arm is ok or failed."""
        n = float(evidence.difference.n)
        if n == 0:
            return None
        settled = np.logical_or(*self.verdicts(evidence.times(1 + _MORE / n), lossless=False))
        return int(_MORE[settled.argmax()]) if settled.any() else None

    def _about_difference(self, difference: Interval, lossless: bool) -> str:
        if difference.low is None or difference.high is None:
            return f"{'lossless, and ' if lossless else ''}no output was judged"
        figure = f"{_points(difference)} against no speculation, {difference.n} prompts"
        if lossless:
            if difference.high < 0:
                return f"proven worse: {figure}; a lossless arm cannot be, so the engine or the rule is at fault"
            return f"lossless, so it follows the target's own law, and not proven worse: {figure}"
        if difference.low > -self.margin:
            return f"loses less than {100 * self.margin:g} points: {figure}"
        return f"{'proven worse' if difference.high < 0 else 'a loss is not ruled out'}: {figure}"


def _about_floor(floor: float, arm: Interval, baseline: Interval) -> str:
    name = f"the floor of {100 * floor:g}%"
    if baseline.high is not None and baseline.high < floor:
        return f"{name} is waived, as outputs without speculation miss it: {_percent(baseline)}"
    if arm.low is None or arm.high is None:
        return f"{name} is not proven: no output of the arm was judged"
    if arm.low > floor:
        return f"reaches {name}: {_percent(arm)}"
    return f"{'misses' if arm.high < floor else 'not proven to reach'} {name}: {_percent(arm)}"


def _points(d: Interval) -> str:
    return "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*_hundredfold(d))


def _percent(rate: Interval) -> str:
    return "{:.1f}% valid [{:.1f}, {:.1f}]".format(*_hundredfold(rate))


def _hundredfold(known: Interval) -> Iterator[float]:
    """Estimate and bounds, of which a tally with observations has all three; adding 0 turns -0.0 into 0.0."""
    return (round(100 * value, 1) + 0.0 for value in (known.estimate, known.low, known.high) if value is not None)
