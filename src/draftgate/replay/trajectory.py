"""The trajectory estimator: a model-free drafter, run again along recorded text.

A lossless greedy run gives one text whatever drafts it, so re-drafting along that text needs no engine and is exact up
to near-ties in the logits. (A lossless sampled run gives a text of the same law, so there it holds in distribution.)
Every output position is visited once to note what the drafter would have proposed there and how much of it the text
confirms; any draft-length policy is then a walk over those notes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import TraceError
from draftgate.policy.length import Length
from draftgate.policy.lookup import SuffixLookup
from draftgate.policy.policy import Policy
from draftgate.replay.predict import Prediction, expected_error, scaled
from draftgate.stats.bootstrap import ratio_interval

__all__ = ["Trajectory", "Walked", "predict_trajectories", "retrace", "walk"]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What lookup would have proposed at each output position 1..n-1 of one request (index t - 1).

    Attributes:
        match: strength of the match (policy.lookup), [n - 1]; 0 where nothing matches.
        available: proposed tokens, [n - 1].
        confirmed: leading proposed tokens that the text confirms, [n - 1].
        most: longest draft, K.
    """

    match: NDArray[np.float64]
    available: NDArray[np.int64]
    confirmed: NDArray[np.int64]
    most: int

    @property
    def evidence(self) -> NDArray[np.float64]:
        """Evidence of each proposed token, [n - 1, K]."""
        return SuffixLookup.evidence(0.0, self.most) + self.match[:, None]


def retrace(
    prompt: Sequence[int],
    output: Sequence[int],
    max_tokens: int,
    most: int,
    end_tokens: frozenset[int] = frozenset(),
) -> Trajectory:
    """Visit every output position of one request.

    Args:
        prompt: prompt tokens.
        output: committed tokens, the first of them chosen by the prefill.
        max_tokens: the request's limit, near which drafts are cut so that the bonus token fits.
        most: longest draft.
        end_tokens: a draft ends with the first of these.
    """
    lookup = SuffixLookup([*prompt, *output[:1]])
    n = max(len(output) - 1, 0)
    match, (available, confirmed) = np.zeros(n), np.zeros((2, n), np.int64)
    for i in range(n):
        t = i + 1
        tokens, _ = lookup.propose(min(most, max_tokens - t - 1))
        match[i] = lookup.strength
        end = next((j for j, token in enumerate(tokens) if token in end_tokens), len(tokens) - 1)
        tokens = tokens[: end + 1]
        pairs = zip(tokens, output[t:], strict=False)
        confirmed[i] = next((j for j, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(output) - t))
        available[i] = len(tokens)
        lookup.extend([output[t]])
    return Trajectory(match, available, confirmed, most)


@dataclass(frozen=True, slots=True)
class Walked:
    """Steps of one request under one policy: arrays over steps.

    Attributes:
        drafted: drafted tokens.
        accepted: those that were kept.
        committed: tokens that entered the output, with the bonus token.
    """

    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    committed: NDArray[np.int64]


def walk(trajectory: Trajectory, length: Length, batch: int = 1) -> Walked:
    """The steps that a draft length policy would have taken; it must not ask for token categories."""
    evidence = trajectory.evidence
    chosen = length.choose(evidence, np.zeros(evidence.shape, np.uint8), trajectory.available, batch)
    kept = np.minimum(chosen, trajectory.confirmed)
    n, at = len(kept), 0
    visited = []
    jump = (kept + 1).tolist()
    while at < n:
        visited.append(at)
        at += jump[at]
    steps = np.array(visited, np.int64)
    # The last step may be confirmed to the very end of the text, and then there was no bonus token.
    return Walked(chosen[steps], kept[steps], np.minimum(kept[steps] + 1, n - steps))


def predict_trajectories(
    trajectories: Sequence[Trajectory], policy: Policy, cost: StepCost | None = None, resamples: int = 1000
) -> Prediction:
    """Predict a lossless policy from trajectories, one for each request.

    Args:
        trajectories: of one trace.
        policy: what to predict.
        cost: measured step cost; without one, nothing about time is predicted. Time is that of batch size 1.
        resamples: bootstrap resamples of the speedup's interval; 0 for none.

    Raises:
        TraceError: the policy is lossy, asks for token categories, or drafts more than was retraced; no request took a
            step.
        ConfigError: the cost model has no curve for batch size 1.
    """
    _check(trajectories, policy)
    walked = [walk(t, policy.length) for t in trajectories if len(t.match)]
    committed = np.array([w.committed.sum() for w in walked], float)
    drafted_n = np.concatenate([w.drafted for w in walked])
    drafted, accepted, steps = int(drafted_n.sum()), sum(int(w.accepted.sum()) for w in walked), len(drafted_n)
    length = float(committed.sum() / steps)
    seconds, none_s, interval = None, None, None
    if cost is not None:
        per_request = np.array([cost.step_s(w.drafted).sum() for w in walked])
        none_s = float(cost.step_s(np.array(0)))
        seconds = float(per_request.sum() / steps)
        if resamples and len(walked) > 1:
            interval = scaled(ratio_interval(committed, per_request, resamples=resamples), none_s)
    return Prediction(
        policy=policy.name,
        estimator="trajectory",
        expected_error=expected_error("trajectory", True),
        acceptance_length=length,
        acceptance_rate=accepted / drafted if drafted else None,
        coverage=float((drafted_n > 0).mean()),
        step_s=seconds,
        tokens_per_s=None if seconds is None else length / seconds,
        speedup=None if seconds is None or none_s is None else length / seconds * none_s,
        lossy_share=0.0,
        given_up_nats=0.0,
        speedup_interval=interval,
        requests=len(walked),
    )


def _check(trajectories: Sequence[Trajectory], policy: Policy) -> None:
    if not policy.lossless:
        raise TraceError(
            f"policy '{policy.name}': rule '{policy.rule}' is lossy and would change the text; predict it by renewal"
        )
    if not any(len(t.match) for t in trajectories):
        raise TraceError(f"policy '{policy.name}': the trace holds no steps to replay; record longer outputs")
    if policy.uses_category:
        raise TraceError(f"policy '{policy.name}': asks for token categories, which a re-drafted text does not have")
    most = min(t.most for t in trajectories)
    if policy.length.most > most:
        raise TraceError(f"policy '{policy.name}' drafts up to {policy.length.most} tokens but {most} were retraced")
