"""The plant: what an engine would do under a setting, by drawing recorded drafts and reading the measured step costs.

A request is a recorded one with drafts drawn anew, with replacement, from its own (a bootstrap in two stages), until
about as many tokens are written as it had. So requests differ as recorded ones do, and the text is the same under every
setting. A step of several sequences costs what the cost curve says for the mean of their draft lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgate.control.belief import StepTable
from draftgate.control.setting import OFF, Setting
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError, nearest
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.simulate.outcomes import STEPS, TOKENS, kept_at, offered_at, outcomes

__all__ = ["Conditions", "Done", "Plant"]

_SETTINGS = 64  # whose outcomes are kept
_WRONG = 0.98  # chance that a position of a wrong draft misses where the recorded draft hit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the traffic and the machine are like for a while.

    Attributes:
        mix: share of each recorded workload in the requests; empty takes them equally.
        wrong: share of requests that get a wrong draft, whose tokens hardly ever survive.
        batch: sequences that decode together.
        context: seconds that each verified token takes more, in plain steps: attention to a long prompt.
        clock: factor on all seconds, as of a throttled machine.
    """

    mix: tuple[tuple[str, float], ...] = ()
    wrong: float = 0.0
    batch: float = 1.0
    context: float = 0.0
    clock: float = 1.0


class Done(NamedTuple):
    """Whole numbers of what some requests did, and the engine seconds they took."""

    requests: int
    steps: int
    tokens: int
    offered: tuple[int, ...]
    kept: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What there is to draw from under one setting.

    Attributes:
        rows: outcomes of each recorded draft [S, 2 + 2 K]; of right drafts, then of wrong ones.
        means: their mean by request [R, 2 + 2 K]; likewise.
        drafts: recorded drafts that make up a request [R].
    """

    rows: Floats
    means: Floats
    drafts: Floats


@dataclass(frozen=True, slots=True)
class _Chances:
    """Conditions in numbers: chance of each recorded request [R], and seconds by column [2 + 2 K]."""

    request: Floats
    seconds: Floats


@dataclass
class Plant:
    """Recorded workloads on a machine with measured step costs.

    Attributes:
        workloads: traces by name, recorded with one longest draft.
        cost: step costs.
        policy: what settings are applied to.
        noise: relative standard deviation of seconds, shared by requests that run together.

    Raises:
        ConfigError: there is no workload, or their longest drafts differ.
    """

    workloads: Mapping[str, Replayable]
    cost: StepCost
    policy: Policy
    noise: float = 0.02
    _drawn: dict[Setting, _Drawn] = field(default_factory=dict, init=False, repr=False)
    _chances: dict[Conditions, _Chances] = field(default_factory=dict, init=False, repr=False)
    _rates: dict[tuple[Setting, Conditions], float] = field(default_factory=dict, init=False, repr=False)
    _best: dict[Conditions, Setting] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = {r.columns.shape[0] for r in self.workloads.values()}
        if len(lengths) != 1:
            raise ConfigError(f"simulated traces must be of one longest draft but got {sorted(lengths)}")
        (self.most,) = lengths
        self._table = StepTable(self.cost, self.most)
        parts = list(self.workloads.values())
        sizes = np.concatenate([np.bincount(p.columns.request, minlength=p.columns.n_requests) for p in parts])
        tokens = [np.bincount(p.columns.request, p.columns.committed, p.columns.n_requests) for p in parts]
        self._of = np.repeat(np.arange(len(parts)), [p.columns.n_requests for p in parts])  # workload of a request
        self._of = self._of[sizes > 0]
        self._sizes, self._tokens = sizes[sizes > 0], np.concatenate(tokens)[sizes > 0]
        self._starts = np.cumsum(self._sizes) - self._sizes

    @property
    def settings(self) -> list[Setting]:
        """Off, and every draft length up to the policy's, otherwise as the policy says."""
        at = Setting.of(self.policy)
        return [OFF, *(Setting(True, at.tau, k, at.cut) for k in range(1, at.k + 1))]

    def run(self, n: int, setting: Setting, under: Conditions, rng: np.random.Generator) -> Done:
        """Serve n requests."""
        drawn, chances = self._of_setting(setting), self._of_conditions(under)
        requests = rng.multinomial(n, chances.request)
        drafts = (requests * drawn.drafts + rng.random(len(requests))).astype(np.int64)
        at = rng.random(drafts.sum()) * np.repeat(np.tile(self._sizes, 2), drafts)
        at += np.repeat(np.concatenate((self._starts, self._starts + len(drawn.rows) // 2)), drafts)
        sums = np.bincount(at.astype(np.int64), minlength=len(drawn.rows)) @ drawn.rows
        seconds = float(sums @ chances.seconds) * float(np.exp(self.noise * rng.normal()))
        return _whole(n, sums, self.most, seconds)

    def rate(self, setting: Setting, under: Conditions) -> float:
        """Tokens per engine second that `run` gives on average."""
        key = (setting, under)
        if key not in self._rates:
            drawn, chances = self._of_setting(setting), self._of_conditions(under)
            sums = (chances.request * drawn.drafts) @ drawn.means
            self._rates[key] = float(sums[TOKENS] / (sums @ chances.seconds))
        return self._rates[key]

    def best(self, under: Conditions) -> Setting:
        """The setting with the greatest rate: the oracle's."""
        if under not in self._best:
            self._best[under] = max(self.settings, key=lambda s: self.rate(s, under))
        return self._best[under]

    def gain(self, workload: str) -> float:
        """Rate of the best setting over that of none, for one workload at batch size 1."""
        under = Conditions(((workload, 1.0),))
        return self.rate(self.best(under), under) / self.rate(OFF, under)

    def request_s(self, setting: Setting, under: Conditions) -> float:
        """Engine seconds of a request on average."""
        tokens = self._of_conditions(under).request @ np.tile(self._tokens, 2)
        return float(tokens) / self.rate(setting, under)

    def _of_setting(self, setting: Setting) -> _Drawn:
        if setting not in self._drawn:
            if len(self._drawn) >= _SETTINGS:  # a controller that moves tau visits ever new ones
                self._drawn.clear()
            policy = setting.applied_to(self.policy)
            right = [outcomes(r, policy) for r in self.workloads.values()]
            wrong = [outcomes(r, policy, _missed(r)) for r in self.workloads.values()]
            rows = np.concatenate([self._by_request(right), self._by_request(wrong)])
            starts = np.concatenate((self._starts, self._starts + len(rows) // 2))
            means = np.add.reduceat(rows, starts) / np.tile(self._sizes, 2)[:, None]
            self._drawn[setting] = _Drawn(rows, means, np.tile(self._tokens, 2) / means[:, TOKENS])
        return self._drawn[setting]

    def _by_request(self, parts: list[Floats]) -> Floats:
        """Rows of all workloads, drafts of one request side by side."""
        requests = [r.columns.request for r in self.workloads.values()]
        return np.concatenate([p[np.argsort(of, kind="stable")] for p, of in zip(parts, requests, strict=True)])

    def _of_conditions(self, under: Conditions) -> _Chances:
        if under not in self._chances:
            share = self._shares(under.mix)
            each = (share / np.bincount(self._of, minlength=len(share)))[self._of]
            request = np.concatenate(((1 - under.wrong) * each, under.wrong * each))
            self._chances[under] = _Chances(request / request.sum(), self._seconds(under))
        return self._chances[under]

    def _shares(self, mix: Sequence[tuple[str, float]]) -> Floats:
        """Share of each workload in the requests; one that is named twice has both."""
        names, shares = list(self.workloads), np.zeros(len(self.workloads))
        for name, share in mix or [(name, 1.0) for name in names]:
            if name not in names:
                raise ConfigError(f"no workload '{name}' was recorded; {nearest(name, names)}")
            shares[names.index(name)] += share
        whole: Floats = shares / shares.sum()
        return whole

    def _seconds(self, under: Conditions) -> Floats:
        """Engine seconds of a step without drafts, and of each further drafted position, by column."""
        step_s = self._table.step_s(under.batch)
        step_s = step_s + under.context * step_s[0] * np.arange(1, len(step_s) + 1)
        seconds = np.zeros(2 + 2 * self.most)
        seconds[STEPS], seconds[offered_at(self.most)] = step_s[0], np.diff(step_s)
        return seconds * under.clock / under.batch


def _missed(replayable: Replayable) -> NDArray[np.bool_]:
    """Positions at which a wrong draft misses; the same at every call."""
    missed: NDArray[np.bool_] = np.random.default_rng(0).random(replayable.columns.shape) < _WRONG
    return missed


def _whole(n: int, sums: Floats, most: int, seconds: float) -> Done:
    """Whole counts that do not contradict each other."""
    steps = round(sums[STEPS])
    offered = np.minimum.accumulate(np.concatenate(([steps], sums[offered_at(most)].round())))
    kept = np.minimum(offered[1:], sums[kept_at(most)].round())
    kept = np.minimum.accumulate(kept)
    tokens = max(round(sums[TOKENS]), 0)
    return Done(n, steps, tokens, tuple(map(int, offered[1:])), tuple(map(int, kept)), seconds)
