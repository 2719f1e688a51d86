"""Predictions of a policy from a trace: which estimator, how long, how fast, how far from lossless."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import TraceError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.walk import Pieces, product_limit, walk_fixed, walk_varied
from draftgate.stats.sequence import Interval

__all__ = ["EXPECTED_ERROR", "Prediction", "pieces", "predict"]

EXPECTED_ERROR = {
    "step": "same draft length as recorded: within 3% for tau >= .1; up to 10% too low below, where kept tokens change the text",
    "renewal": "shorter drafts than recorded: within 2% for lossless rules, 4% for tau >= .1",
    "trajectory": "lossless greedy along the recorded text: within 1%, up to near-ties",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What replay expects of a policy.

    Attributes:
        estimator: "step", "renewal" or "trajectory"; `EXPECTED_ERROR` says how far to trust it.
        acceptance_length: committed tokens per step, bonus token included.
        acceptance_rate: accepted over drafted tokens; None when nothing is drafted.
        coverage: share of steps that draft.
        step_s: mean seconds of a step; None without a cost model, as are the next two.
        tokens_per_s: committed tokens per second of steps.
        speedup: over steps that draft nothing.
        lossy_share: kept tokens that the lossless test would have rejected, over committed tokens.
        given_up_nats: log-probability given up by those against the target's first choice, per committed token.
        speedup_interval: cluster bootstrap over requests at 95%; None without a cost model or with one request.
        requests: requests in the trace.
    """

    policy: str
    estimator: str
    acceptance_length: float
    acceptance_rate: float | None
    coverage: float
    step_s: float | None
    tokens_per_s: float | None
    speedup: float | None
    lossy_share: float
    given_up_nats: float
    speedup_interval: Interval | None
    requests: int

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def pieces(replayable: Replayable, policy: Policy) -> Pieces:
    """Walk a trace under a policy.

    Raises:
        TraceError: the policy drafts more tokens than the trace recorded.
    """
    columns = replayable.columns
    k, recorded = policy.length.most, columns.shape[0]
    if k > recorded:
        raise TraceError(
            f"policy '{policy.name}' drafts up to {k} tokens but the trace holds drafts of {recorded}: "
            f"record with k >= {k}, or replay a shorter draft"
        )
    kept = replayable.kept(policy)
    common = (kept, replayable.exact, columns.top1_margin, columns.drafted_n, columns.request, columns.n_requests)
    if isinstance(policy.length, Fixed) and k:
        return walk_fixed(*common, k=k)
    return walk_varied(*common, length=_lengths(replayable, policy), k=k)


def _lengths(replayable: Replayable, policy: Policy) -> NDArray[np.int64]:
    """Draft length of a piece that starts at each recorded position, [K + 1, S]."""
    columns = replayable.columns
    n = columns.shape[0]
    out = np.zeros((n + 1, columns.shape[1]), np.int64)
    evidence, category = columns.evidence.T, columns.category.T
    for j in range(n):
        left = (columns.drafted_n - j).clip(0)
        out[j] = policy.length.choose(evidence[:, j:], category[:, j:], left)
    return out


def predict(replayable: Replayable, policy: Policy, cost: StepCost | None = None, resamples: int = 1000) -> Prediction:
    """Predict a policy, offline and without the engine.

    Args:
        replayable: the trace.
        policy: what to predict.
        cost: measured step cost; without one, nothing about time is predicted.
        resamples: bootstrap resamples of the speedup's interval; 0 for none.

    Raises:
        TraceError: the policy drafts more tokens than the trace recorded.
    """
    found = pieces(replayable, policy)
    drafted = found.drafted.sum(axis=0)
    steps = drafted.sum()
    reach = found.reach()
    length = float(1 + reach.sum())
    lengths = np.arange(len(drafted))
    per_step = float(drafted @ lengths / steps) if steps else 0.0
    committed = length * steps
    seconds = None if cost is None or not steps else float(drafted @ cost.step_s(lengths) / steps)
    none_s = None if cost is None else float(cost.step_s(np.array(0)))
    return Prediction(
        policy=policy.name,
        estimator="step" if policy.length.most == replayable.columns.shape[0] else "renewal",
        acceptance_length=length,
        acceptance_rate=(length - 1) / per_step if per_step else None,
        coverage=float(1 - drafted[0] / steps) if steps else 0.0,
        step_s=seconds,
        tokens_per_s=None if seconds is None else length / seconds,
        speedup=None if seconds is None or none_s is None else length / seconds * none_s,
        lossy_share=float(found.lossy.sum() / committed) if steps else 0.0,
        given_up_nats=float(found.given_up.sum() / committed) if steps else 0.0,
        speedup_interval=_speedup_interval(found, cost, resamples) if cost and steps and resamples else None,
        requests=replayable.columns.n_requests,
    )


def _speedup_interval(found: Pieces, cost: StepCost, resamples: int) -> Interval | None:
    """Percentile bootstrap over requests: whole requests are drawn, since steps of one request are alike."""
    n = len(found.at_risk)
    if n < 2:
        return None
    weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples)
    reach = product_limit(weights @ found.at_risk, weights @ found.passed)
    drafted = weights @ found.drafted
    step_s = cost.step_s(np.arange(drafted.shape[1]))
    with np.errstate(invalid="ignore"):
        speedup = (1 + reach.sum(axis=1)) / (drafted @ step_s / drafted.sum(axis=1)) * step_s[0]
    whole = (1 + found.reach().sum()) / (found.drafted.sum(axis=0) @ step_s / found.drafted.sum()) * step_s[0]
    low, high = np.nanquantile(speedup, [0.025, 0.975])
    return Interval(float(whole), float(low), float(high), n, 0.95, 1.0)
