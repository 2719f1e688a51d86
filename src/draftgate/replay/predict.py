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
from draftgate.replay.walk import Pieces, walk
from draftgate.stats.bootstrap import ratio_interval
from draftgate.stats.sequence import Interval

__all__ = ["Prediction", "expected_error", "pieces", "predict", "scaled"]


def expected_error(estimator: str, lossless: bool) -> float:
    """Relative error of a predicted acceptance length on the same prompts, as found on five packs (docs/log.md).

    Lossy rules change the text that follows a kept token, which no replay of a lossless recording can know; "blend"
    reads recordings of such text as well.
    """
    if not lossless:
        return 0.08 if estimator == "blend" else 0.35
    return 0.01 if estimator == "trajectory" else 0.03


@dataclass(frozen=True, slots=True)
class Prediction:
    """What replay expects of a policy.

    Attributes:
        policy: its name.
        estimator: "step", "renewal", "blend" or "trajectory".
        expected_error: relative error of the acceptance length to expect of it on the same prompts.
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
    expected_error: float
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
    return walk(
        replayable.kept(policy),
        replayable.exact,
        columns.top1_margin,
        replayable.drafts if by_request else replayable.drafts.as_one(),
        k,
        length=None if isinstance(policy.length, Fixed) else _lengths(replayable, policy),
        # A greedy replacement is the argmax: the drafted token itself, where a strict threshold rejected the argmax.
        same=replayable.exact if columns.greedy and _may_reject_exact(policy) else None,
    )


def _may_reject_exact(policy: Policy) -> bool:
    """Whether the rule can reject a token that the lossless test keeps."""
    return policy.rule in ("threshold", "typical")


def _lengths(replayable: Replayable, policy: Policy) -> NDArray[np.int16]:
    """Draft length of a piece that starts at each recorded position, [K + 1, S].

    A later piece that takes all that is left of an uncut draft may have wanted more; it counts as wanting the most. Of
    a piece that starts at the very end nothing is known; it counts as wanting what the position before would.
    """
    columns, most = replayable.columns, policy.length.most
    n = columns.shape[0]
    out = np.zeros((n + 1, columns.shape[1]), np.int16)
    evidence, category = columns.evidence.T, columns.category.T
    for j in range(n):
        left = (columns.drafted_n - j).clip(0)
        out[j] = policy.length.choose(evidence[:, j:], category[:, j:], left)
        if j:
            out[j, (columns.drafted_n == n) & (out[j] == left)] = most
    out[n] = out[n - 1] if n else 0
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
    by_length, tokens = found.by_length.sum(axis=0), float(found.tokens.sum())
    steps, drafted = float(by_length.sum()), float(by_length @ np.arange(len(by_length)))
    seconds, none_s, interval = None, None, None
    if cost is not None:
        step_s = cost.step_s(np.arange(len(by_length)))
        seconds, none_s = float(by_length @ step_s), float(step_s[0])
        interval = _speedup_interval(found, step_s, resamples) if with_interval else None
    estimator = "step" if policy.length == Fixed(replayable.columns.shape[0]) else "renewal"
    return Prediction(
        policy=policy.name,
        estimator=estimator,
        expected_error=expected_error(estimator, policy.lossless),
        acceptance_length=tokens / steps,
        acceptance_rate=float(found.accepted.sum()) / drafted if drafted else None,
        coverage=1 - float(by_length[0]) / steps,
        step_s=None if seconds is None else seconds / steps,
        tokens_per_s=None if seconds is None else tokens / seconds,
        speedup=None if seconds is None or none_s is None else tokens / seconds * none_s,
        lossy_share=float(found.lossy.sum()) / tokens,
        given_up_nats=float(found.given_up.sum()) / tokens,
        speedup_interval=interval,
        requests=replayable.requests,
    )


def _speedup_interval(found: Pieces, step_s: NDArray[np.float64], resamples: int) -> Interval | None:
    """Cluster bootstrap over requests of tokens per second, as a ratio to a step that drafts nothing.

    Args:
        step_s: seconds of a step by draft length, [k + 1].
    """
    stepped = found.by_length.sum(axis=1) > 0
    if stepped.sum() < 2:
        return None
    seconds = found.by_length[stepped] @ step_s
    return scaled(ratio_interval(found.tokens[stepped], seconds, resamples=resamples), float(step_s[0]))


def scaled(interval: Interval, by: float) -> Interval:
    """Tokens per second as a speedup: everything times the seconds of a token without speculation."""
    estimate, low, high = (None if v is None else v * by for v in (interval.estimate, interval.low, interval.high))
    return Interval(estimate, low, high, interval.n, interval.confidence, null=1.0)
