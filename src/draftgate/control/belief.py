"""What is believed about speculation from windows: survival by position, drafted lengths, and what steps really cost.

Counts are forgotten exponentially, so a belief follows drifting traffic and fades to ignorance where nothing is seen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.control.window import Window
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError

__all__ = ["Acceptance", "Bias", "StepTable", "committed", "conditional_of"]

_PRIOR_N = 4.0  # drafts that the prior is worth at each position
_OWN = 0.08  # relative standard deviation of what settings have for themselves
_NOISE = 0.07  # of what the first window after a change shows of that
_STAYS = 0.5 ** (1 / 40)  # of it after a window: half after 40


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
        """Chance of keeping position i given all before it [most], `optimism` standard errors from its mean.

        What position i - 1 has above or below its prior is expected of position i too, until i has its own evidence.
        """
        n = self.before + _PRIOR_N
        means, carried = [], 1.0
        for prior, kept, of in zip(self.prior.tolist(), self.kept.tolist(), n.tolist(), strict=True):
            means.append((kept + _PRIOR_N * min(prior * carried, 1.0)) / of)
            carried = means[-1] / prior if prior > 0 else 1.0
        mean = np.array(means)
        moved: NDArray[np.float64] = (mean + optimism * np.sqrt(mean * (1 - mean) / n + 1 / n**2)).clip(0.0, 1.0)
        return moved if optimism else mean

    def committed(self, optimism: float = 0.0) -> NDArray[np.float64]:
        """Tokens that a step which drafts at most k = 0..most commits, bonus token included [most + 1]."""
        tokens: NDArray[np.float64] = committed([self], optimism)[0]
        return tokens

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


def committed(ways: Sequence[Acceptance], optimism: float = 0.0) -> NDArray[np.float64]:
    """Tokens that a step which drafts at most k = 0..most commits, for beliefs of equal length [ways, most + 1]."""
    conditional = np.array([way.conditional(optimism) for way in ways])
    coverage = np.array([way.coverage for way in ways])
    return 1.0 + coverage[:, None] * _kept(conditional)


def _kept(conditional: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens that drafts of k = 0..most keep on average, from what longer ones kept by position [ways, most + 1].

    Acceptance comes in runs: after k kept tokens, the next draft starts where a longer one would have gone on, and does
    at least as well. So this walks in strides of k + 1 through the positions, as long as everything is kept. Cutting
    long drafts off at k instead is 8 to 14% too low.
    """
    at, inside, bonus, starts = _strides(conditional.shape[1])
    chance = np.pad(conditional, ((0, 0), (0, 1)))  # nothing is kept past the end
    here = np.maximum(chance[:, at], chance[:, None, None, : at.shape[2]])
    survives = np.where(inside, here, 1.0).cumprod(axis=3)
    begins = np.ones(bonus.shape) * starts  # chance that a run begins a draft at this stride
    begins = np.broadcast_to(begins, (len(chance), *begins.shape)).copy()
    begins[:, :, 1:] *= (survives[:, :, :-1, -1] * chance[:, bonus[:, :-1]]).cumprod(axis=2)
    kept: NDArray[np.float64] = (begins * (survives * inside).sum(axis=3)).sum(axis=2) / begins.sum(axis=2)
    return kept


@lru_cache(maxsize=8)
def _strides(most: int) -> tuple[NDArray[Any], ...]:
    """For drafts of k = 0..most, at each stride: its positions, which of them there are, its bonus token, if it starts.

    Shapes [most + 1, most, most], the same, [most + 1, most] twice; positions past the end are `most`.
    """
    k = np.arange(most + 1)[:, None, None]
    start = np.arange(most)[:, None] * (k + 1)
    inside = np.broadcast_to(np.arange(most) < k, (most + 1, most, most))
    at = np.minimum(start + np.arange(most), most)
    start = start[:, :, 0]
    return at, inside, np.minimum(start + k[:, :, 0], most), start < most


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
    """How much faster or slower than modelled each setting really is.

    log(measured / modelled) of a window is a level that all settings share (another clock rate, a busy host, longer
    prompts), which drifts and jumps, and what the setting has for itself, which hardly changes. Only a change of the
    setting tells them apart: the first window after one says how the two settings differ, all others follow the level.

    Attributes:
        unlike: settings that may differ more from the others than these do from each other, and by how much.
        seen: own log factor by setting, and its variance.
        level: the shared one; None before the first window.
        last: setting of the last window.
    """

    unlike: Mapping[str, float] = field(default_factory=dict)
    seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    level: float | None = None
    last: str | None = None

    def learn(self, name: str, measured: float, modelled: float) -> None:
        """Take one window's throughputs, both positive."""
        self.seen = {other: self._faded(other) for other in self.seen}
        ratio = math.log(measured / modelled)
        own, variance = self._of(name)
        if self.level is not None and name != self.last:
            most = 3 * self._spread(name)  # beyond it, the host has paused
            differs = min(max(ratio - self.level - own, -most), most)
            gain = variance / (variance + _NOISE**2)
            own += gain * differs
            self.seen[name] = own, variance * (1 - gain)
        level = ratio - own
        self.level = level if self.level is None else (self.level + level) / 2
        self.last = name

    def factors(self, names: Sequence[str]) -> NDArray[np.float64]:
        """What to multiply modelled throughputs by to compare them; the shared level is left out."""
        factors: NDArray[np.float64] = np.exp([self._of(name)[0] for name in names])
        return factors

    def spreads(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Relative standard deviations of these factors."""
        return np.sqrt([self._of(name)[1] for name in names])

    def _spread(self, name: str) -> float:
        return self.unlike.get(name, _OWN)

    def _of(self, name: str) -> tuple[float, float]:
        return self.seen.get(name, (0.0, self._spread(name) ** 2))

    def _faded(self, name: str) -> tuple[float, float]:
        """What is still believed a window later: everything fades to not knowing."""
        own, variance = self.seen[name]
        unknown = self._spread(name) ** 2
        return own * _STAYS, unknown + (variance - unknown) * _STAYS**2


def conditional_of(survival: Sequence[float], most: int) -> NDArray[np.float64]:
    """Conditional acceptance by position from survival, carried on to `most` positions; one half if none is known.

    >>> conditional_of([0.8, 0.4], 3).tolist()
    [0.8, 0.5, 0.5]
    """
    ratios = [b / a if a > 0 else 0.0 for a, b in pairwise([1.0, *survival])][:most] or [0.5]
    return np.array(ratios + ratios[-1:] * (most - len(ratios))).clip(0.0, 1.0)
