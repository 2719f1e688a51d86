"""Lossy policies: the text that a policy reads is the text it has written.

A kept token that the lossless test would have rejected changes what follows. Replay knows what follows inside the
recorded draft, not beyond it, so predictions of loose rules from a lossless recording come out too low: they miss that
text which follows its drafts goes on following them. Recordings made under lossy rules have read such text. Let L be
the lossy share of the text in a recording, and l(L) the lossy share that a policy would write reading it, both per
committed token. The policy's own text is the fixed point l(L) = L, found by linear interpolation between recordings of
rising L, and so is everything predicted there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftgate.cost.steps import StepCost
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import Prediction, expected_error, predict
from draftgate.stats.sequence import Interval

__all__ = ["Recording", "predict_blend"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace to predict from.

    Attributes:
        lossy_share: tokens it kept that the lossless test rejects, over committed tokens; 0 for a lossless recording.
    """

    replayable: Replayable
    lossy_share: float

    @classmethod
    def of(cls, replayable: Replayable) -> "Recording":
        """Count what the recorded run itself kept."""
        columns = replayable.columns
        kept = np.arange(columns.shape[0])[:, None] < columns.accepted
        committed = int(columns.committed.sum())
        return cls(replayable, float((kept & ~replayable.exact).sum() / committed) if committed else 0.0)


def predict_blend(
    recordings: Sequence[Recording], policy: Policy, cost: StepCost | None = None, resamples: int = 1000
) -> Prediction:
    """Predict a policy from recordings of rising lossy share, the first of them lossless.

    A lossless policy is predicted from the first alone; one that writes more lossy text than the last has read is
    predicted from the last, and comes out too low.

    Raises:
        TraceError: the policy drafts more tokens than a trace recorded, or a trace holds no steps.
    """
    below = predict(recordings[0].replayable, policy, cost, resamples)
    excess = below.lossy_share
    if excess <= 0:
        return below
    for recording in recordings[1:]:
        above = predict(recording.replayable, policy, cost, resamples)
        more = above.lossy_share - recording.lossy_share
        if more <= 0:
            return _between(below, above, excess / (excess - more))
        below, excess = above, more
    return below


def _between(a: Prediction, b: Prediction, share: float) -> Prediction:
    """The prediction a `share` of the way from a to b."""

    def mix(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x + share * (y - x)

    length, step_s = mix(a.acceptance_length, b.acceptance_length), mix(a.step_s, b.step_s)
    assert length is not None
    i, j = a.speedup_interval, b.speedup_interval
    return replace(
        b,
        estimator="blend",
        expected_error=expected_error("blend", False),
        acceptance_length=length,
        acceptance_rate=mix(a.acceptance_rate, b.acceptance_rate),
        coverage=a.coverage + share * (b.coverage - a.coverage),
        step_s=step_s,
        tokens_per_s=mix(a.tokens_per_s, b.tokens_per_s),
        speedup=mix(a.speedup, b.speedup),
        lossy_share=a.lossy_share + share * (b.lossy_share - a.lossy_share),
        given_up_nats=a.given_up_nats + share * (b.given_up_nats - a.given_up_nats),
        speedup_interval=None
        if i is None or j is None
        else Interval(mix(i.estimate, j.estimate), mix(i.low, j.low), mix(i.high, j.high), j.n, j.confidence, 1.0),
    )
