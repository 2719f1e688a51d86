"""From judged outputs to what they are evidence of: paired difference, valid rates, valid tokens per second."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from draftgate.errors import TraceError
from draftgate.stats.betting import Tally

__all__ = ["Evidence", "Outcome", "valid_tokens_per_s"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt, answered without speculation and by the arm.

    True is valid, False is invalid, None was not judged: there is no check, or the output was cut at `max_tokens` and
    what is there could still have become valid.
    """

    prompt: str
    baseline: bool | None
    arm: bool | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Tallies over prompts; repeats of a prompt are not independent, so they are averaged first.

    Attributes:
        difference: arm valid minus baseline valid, in [-1, 1]. A pair counts if either output was judged, and the one
            that was not counts as not valid: running on until it is cut is how a damaged output often fails, and
            leaving such pairs out would hide it. Equal arms are cut equally often, so neither is favoured.
        arm, baseline: valid rate of the judged outputs, in [0, 1]. A cut output that might be valid is in neither.
    """

    difference: Tally
    arm: Tally
    baseline: Tally

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> "Evidence":
        """Average by prompt, and count.

        >>> evidence = Evidence.of([Outcome("a", True, True), Outcome("a", True, False), Outcome("b", True, None)])
        >>> float(evidence.difference.mean), float(evidence.arm.mean), float(evidence.baseline.n)
        (-0.75, 0.5, 2.0)
        """
        difference: dict[str, list[float]] = defaultdict(list)
        arm: dict[str, list[float]] = defaultdict(list)
        baseline: dict[str, list[float]] = defaultdict(list)
        for o in outcomes:
            if o.arm is not None or o.baseline is not None:
                difference[o.prompt].append(bool(o.arm) - bool(o.baseline))
            if o.arm is not None:
                arm[o.prompt].append(o.arm)
            if o.baseline is not None:
                baseline[o.prompt].append(o.baseline)
        return cls(_by_prompt(difference, low=-1.0), _by_prompt(arm, low=0.0), _by_prompt(baseline, low=0.0))

    def times(self, factor: ArrayLike) -> "Evidence":
        """The evidence after `factor[...]` times as many prompts at the same rates."""
        return Evidence(self.difference.times(factor), self.arm.times(factor), self.baseline.times(factor))


def _by_prompt(seen: dict[str, list[float]], low: float) -> Tally:
    return Tally.of([sum(values) / len(values) for values in seen.values()], low)


def valid_tokens_per_s(tokens: ArrayLike, seconds: ArrayLike, valid: Sequence[bool | None]) -> float | None:
    """Tokens of the valid outputs divided by the seconds of all outputs: invalid ones cost time and bring nothing.

    `tokens[n]` are committed tokens, `seconds[n]` their decode time, `valid[n]` the judgement; an output that was not
    judged costs its time and brings nothing either, so pass only outputs that have a check. None if none was judged, or
    no time passed.

    Raises:
        TraceError: lengths differ, or a number is negative, NaN or infinite.

    >>> valid_tokens_per_s([100, 50, 80], [1.0, 0.5, 1.0], [True, False, True])
    72.0
    """
    tok, s = np.asarray(tokens, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if not tok.shape == s.shape == (len(valid),):
        raise TraceError(
            f"need tokens, seconds and a judgement per output, but got {tok.shape}, {s.shape}, {len(valid)}"
        )
    if not all((np.isfinite(x) & (x >= 0)).all() for x in (tok, s)):
        raise TraceError("tokens and seconds must be finite and not negative; leave failed requests out")
    if s.sum() == 0 or all(v is None for v in valid):
        return None
    return float(tok[[v is True for v in valid]].sum() / s.sum())
