"""What is believed about speculation from windows: survival by position, drafted lengths, and what steps really cost.

Counts are forgotten exponentially, so a belief follows drifting traffic and fades to ignorance where nothing is seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.control.window import Window
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError

__all__ = ["Acceptance", "Bias", "StepTable", "conditional_of"]

_PRIOR_N = 4.0  # drafts that the prior is worth at each position
_BIAS_N = 0.4  # windows: noise of 5% each against settings that differ from the model by 8%


@dataclass(slots=True)
class Acceptance:
    """Survival of drafts whose tokens are accepted and cut in one way (one tau, one cut), up to `most` positions.

    A longer draft shows every shorter one too: position i is informed by each window whose setting allowed it. So one
    window at k = 7 tells what k = 1 to 6 would have kept, as far as acceptance at a position does not depend on k.

    Attributes:
        prior: chance of keeping position i given that all before were kept, [most].
        before, kept: decayed counts of drafts that could go on to position i, and of those that kept it [most].
        offered, drafts: decayed counts of drafts that had position i, and of those that were allowed to [most].
        steps, covered: decayed counts of steps, and of those that drafted.
    """

    prior: NDArray[np.float64]
    before: NDArray[np.float64] = field(init=False)
    kept: NDArray[np.float64] = field(init=False)
    offered: NDArray[np.float64] = field(init=False)
    drafts: NDArray[np.float64] = field(init=False)
    steps: float = 0.0
    covered: float = 0.0

    def __post_init__(self) -> None:
        self.before, self.kept, self.offered, self.drafts = np.zeros((4, len(self.prior)))

    def learn(self, window: Window, k: int) -> None:
        """Add a window that ran with drafts of at most k tokens."""
        n = min(k, len(window.kept), len(self.prior))
        kept = np.array(window.kept[:n], float)
        self.kept[:n] += kept
        self.before[:n] += np.concatenate(([window.covered], kept))[:n]
        self.offered[:n] += window.offered[:n]
        self.drafts[:n] += window.covered
        self.steps += window.steps
        self.covered += window.covered

    def forget(self, keep: float) -> None:
        """Leave a share of the evidence."""
        for counts in (self.before, self.kept, self.offered, self.drafts):
            counts *= keep
        self.steps *= keep
        self.covered *= keep

    def conditional(self, optimism: float = 0.0) -> NDArray[np.float64]:
        """Chance of keeping position i given all before it [most], `optimism` standard errors above its mean.

        What position i - 1 has above or below its prior is expected of position i too, until i has its own evidence.
        """
        n = self.before + _PRIOR_N
        mean = np.empty(len(n))
        carried = 1.0
        for i, prior in enumerate(self.prior):
            mean[i] = (self.kept[i] + _PRIOR_N * min(prior * carried, 1.0)) / n[i]
            carried = mean[i] / prior if prior > 0 else 1.0
        high: NDArray[np.float64] = np.minimum(mean + optimism * np.sqrt(mean * (1 - mean) / n + 1 / n**2), 1.0)
        return high if optimism else mean

    def committed(self, optimism: float = 0.0) -> NDArray[np.float64]:
        """Tokens that a step which drafts at most k = 0..most commits, bonus token included [most + 1]."""
        conditional = self.conditional(optimism).tolist()
        kept = [_kept(conditional, k) for k in range(len(conditional) + 1)]
        return 1.0 + self.coverage * np.array(kept)

    def shares(self) -> NDArray[np.float64]:
        """Share of all steps whose draft has position i [most]."""
        share: NDArray[np.float64] = (self.offered + _PRIOR_N) / (self.drafts + _PRIOR_N)
        return self.coverage * share

    @property
    def coverage(self) -> float:
        """Share of steps that draft; 1 while none is known."""
        return (self.covered + _PRIOR_N) / (self.steps + _PRIOR_N)

    def to_mapping(self) -> dict[str, Any]:
        """State for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("before", "kept", "offered", "drafts")}
        return arrays | {"steps": self.steps, "covered": self.covered}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave.

        Raises:
            ConfigError: it is not that, or is of other draft lengths.
        """
        try:
            arrays = {name: np.array(data[name], float) for name in ("before", "kept", "offered", "drafts")}
            steps, covered = float(data["steps"]), float(data["covered"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"saved acceptance cannot be read: {error!r}; delete it to start afresh") from None
        stacked = np.array([a for a in arrays.values() if a.shape == self.prior.shape])
        if len(stacked) < 4 or not np.isfinite(stacked).all() or not np.isfinite([steps, covered]).all():
            raise ConfigError(f"saved acceptance is not of {len(self.prior)} positions; delete it to start afresh")
        for name, counts in arrays.items():
            setattr(self, name, counts)
        self.steps, self.covered = steps, covered


def _kept(conditional: Sequence[float], k: int) -> float:
    """Tokens that drafts of k keep on average, from what longer ones kept by position.

    Acceptance comes in runs: after k kept tokens, the next draft starts where a longer one would have gone on, and does
    at least as well. So this walks in strides of k + 1 through the positions, as long as everything is kept. Cutting
    long drafts off at k instead is 8 to 14% too low.
    """
    tokens = steps = 0.0
    begins = 1.0  # chance that a run begins a draft at this stride
    for start in range(0, len(conditional), k + 1):
        survives = begins
        for i in range(k):
            here = conditional[start + i] if start + i < len(conditional) else 0.0
            survives *= max(here, conditional[i])
            tokens += survives
        steps += begins
        if start + k >= len(conditional):
            break
        begins = survives * conditional[start + k]
    return tokens / steps


class StepTable:
    """Measured step costs at any batch size: linear between those that were measured, flat outside."""

    def __init__(self, cost: StepCost, most: int) -> None:
        """Tabulate drafts of 0..most tokens."""
        self._sizes = np.array(sorted(cost.curves), float)
        self._seconds = np.array([cost.step_s(np.arange(most + 1), batch) for batch in sorted(cost.curves)])

    def step_s(self, batch: float | None) -> NDArray[np.float64]:
        """Seconds of steps that draft 0..most tokens for each sequence [most + 1]; an unknown batch is 1."""
        b = 1.0 if batch is None else batch
        if len(self._sizes) == 1:
            only: NDArray[np.float64] = self._seconds[0]
            return only
        above = int(np.searchsorted(self._sizes, b).clip(1, len(self._sizes) - 1))
        low, high = self._sizes[above - 1 : above + 1]
        share = min(max((b - low) / (high - low), 0.0), 1.0)
        between: NDArray[np.float64] = (1 - share) * self._seconds[above - 1] + share * self._seconds[above]
        return between


@dataclass(slots=True)
class Bias:
    """How much faster or slower than modelled each setting really is, as decayed means of log(measured / modelled).

    What all settings share (another clock rate, a busy host) cancels when they are compared; what one has for itself
    counts as far as it was seen.
    """

    seen: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (weight, weighted sum)

    def learn(self, name: str, measured: float, modelled: float, keep: float) -> None:
        """Take one window's throughputs, both positive; `keep` is what stays of all earlier evidence."""
        self.seen = {other: (n * keep, total * keep) for other, (n, total) in self.seen.items()}
        n, total = self.seen.get(name, (0.0, 0.0))
        self.seen[name] = (n + 1.0, total + float(np.log(measured / modelled)))

    def factor(self, name: str) -> float:
        """What to multiply a modelled throughput by."""
        n, total = self.seen.get(name, (0.0, 0.0))
        weights, totals = zip(*self.seen.values(), strict=True) if self.seen else ((0.0,), (0.0,))
        shared = sum(totals) / sum(weights) if sum(weights) else 0.0
        return float(np.exp((total + _BIAS_N * shared) / (n + _BIAS_N)))


def conditional_of(survival: Sequence[float], most: int) -> NDArray[np.float64]:
    """Conditional acceptance by position from survival, carried on to `most` positions; one half if none is known.

    >>> conditional_of([0.8, 0.4], 3).tolist()
    [0.8, 0.5, 0.5]
    """
    ratios = [b / a if a > 0 else 0.0 for a, b in pairwise([1.0, *survival])][:most] or [0.5]
    return np.array(ratios + ratios[-1:] * (most - len(ratios))).clip(0.0, 1.0)
