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
from draftgate.replay.walk import Pieces, walk_fixed, walk_varied
from draftgate.stats.sequence import Interval

__all__ = ["EXPECTED_ERROR", "Prediction", "pieces", "predict"]

EXPECTED_ERROR = {
    "step": "the recorded draft length: within 3% for tau >= .1; 10% too low below, where kept tokens change the text",
    "renewal": "other draft lengths than recorded: within 2% for lossless rules, 4% for tau >= .1",
    "trajectory": "lossless greedy along the recorded text: within 1%, up to near-ties",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What replay expects of a policy.

    Attributes:
        policy: its name.
        estimator: "step", "renewal" or "trajectory"; `EXPECTED_ERROR` says how far to trust it.
        acceptance_length: committed tokens per step, bonus token included.
        acceptance_rate: accepted over drafted tokens; None when nothing is drafted.
        coverage: share of steps that draft.
        step_s: mean seconds of a step; None without a cost model, as are the next two.
        tokens_per_s: committed tokens per second of steps of one sequence.
        speedup: over steps that draft nothing.
        lossy_share: kept tokens that the lossless test would have rejected, over committed tokens.
        given_up_nats: log-probability given up by those against the target's first choice, per committed token.
        speedup_interval: cluster bootstrap over requests at 95%; None without a cost model or with one request.
        requests: requests that took steps.
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


def pieces(replayable: Replayable, policy: Policy, by_request: bool = True) -> Pieces:
    """Walk a trace under a policy; counted as one request, which is faster, unless `by_request`.

    Raises:
        TraceError: the policy drafts more tokens than the trace recorded, or the trace holds no steps.
    """
    columns = replayable.columns
    k, (recorded, steps) = policy.length.most, columns.shape
    if not steps:
        raise TraceError(f"policy '{policy.name}': the trace holds no steps to replay; record longer outputs")
    if k > recorded:
        raise TraceError(
            f"policy '{policy.name}' drafts up to {k} tokens but the trace holds drafts of {recorded}: "
            f"record with k >= {k}, or replay a shorter draft"
        )
    kept = replayable.kept(policy)
    request, n = (columns.request, columns.n_requests) if by_request else (np.zeros(steps, np.int32), 1)
    common = (kept, replayable.exact, columns.top1_margin, columns.drafted_n, request, n)
    if isinstance(policy.length, Fixed) and k:
        return walk_fixed(*common, k=k)
    return walk_varied(*common, length=_lengths(replayable, policy), k=k)


def _lengths(replayable: Replayable, policy: Policy) -> NDArray[np.int16]:
    """Draft length of a piece that starts at each recorded position, [K + 1, S], at most what is left there."""
    columns = replayable.columns
    n = columns.shape[0]
    out = np.zeros((n + 1, columns.shape[1]), np.int16)
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
        cost: measured step cost; without one, nothing about time is predicted. Time is that of batch size 1.
        resamples: bootstrap resamples of the speedup's interval; 0 for none.

    Raises:
        TraceError: the policy drafts more tokens than the trace recorded, or the trace holds no steps.
        ConfigError: the cost model has no curve for batch size 1.
    """
    with_interval = cost is not None and resamples > 0
    found = pieces(replayable, policy, by_request=with_interval)
    length, lengths = float(1 + found.reach().sum()), found.lengths()
    drafted_n = np.arange(len(lengths))
    per_step = float(lengths @ drafted_n)
    kept = int(found.passed.sum())
    lossy_of_committed = (length - 1) / length / kept if kept else 0.0  # kept tokens are a share of those committed
    seconds, none_s, interval = None, None, None
    if cost is not None:
        step_s = cost.step_s(drafted_n)
        seconds, none_s = float(lengths @ step_s), float(step_s[0])
        interval = _speedup_interval(found, step_s, resamples) if with_interval else None
    return Prediction(
        policy=policy.name,
        estimator="step" if policy.length == Fixed(replayable.columns.shape[0]) else "renewal",
        acceptance_length=length,
        acceptance_rate=(length - 1) / per_step if per_step else None,
        coverage=float(1 - lengths[0]),
        step_s=seconds,
        tokens_per_s=None if seconds is None else length / seconds,
        speedup=None if seconds is None or none_s is None else length / seconds * none_s,
        lossy_share=float(found.lossy.sum() * lossy_of_committed),
        given_up_nats=float(found.given_up.sum() * lossy_of_committed),
        speedup_interval=interval,
        requests=replayable.requests,
    )


def _speedup_interval(found: Pieces, step_s: NDArray[np.float64], resamples: int) -> Interval | None:
    """Percentile bootstrap over requests: whole requests are drawn, since steps of one request are alike.

    Args:
        step_s: seconds of a step by draft length, [k + 1].
    """
    stepped = np.flatnonzero(found.stepped())
    n = len(stepped)
    if n < 2:
        return None
    weights = np.zeros((resamples + 1, len(found.lossy)))
    weights[0] = 1.0  # the trace itself
    weights[1:, stepped] = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples)
    length, seconds = 1 + found.reach(weights).sum(axis=-1), found.lengths(weights) @ step_s
    speedup = length / seconds * step_s[0]
    low, high = np.quantile(speedup[1:], [0.025, 0.975])
    whole = float(speedup[0])
    return Interval(whole, min(float(low), whole), max(float(high), whole), n, 0.95, null=1.0)
