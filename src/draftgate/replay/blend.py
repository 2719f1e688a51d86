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
from typing import Any

import numpy as np

from draftgate.cost.steps import StepCost
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.predict import Prediction, expected_error, predict

__all__ = ["Recording", "predict_blend"]

_BOUNDS = ("estimate", "low", "high")
_FIGURES = (
    "acceptance_length",
    "acceptance_rate",
    "coverage",
    "step_s",
    "tokens_per_s",
    "speedup",
    "lossy_share",
    "given_up_nats",
)


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
    interval = None
    if a.speedup_interval is not None and b.speedup_interval is not None:
        interval = replace(b.speedup_interval, **_mixed(a.speedup_interval, b.speedup_interval, _BOUNDS, share))
    figures = _mixed(a, b, _FIGURES, share)
    error = expected_error("blend", False)
    return replace(b, estimator="blend", expected_error=error, speedup_interval=interval, **figures)


def _mixed(a: object, b: object, names: Sequence[str], share: float) -> dict[str, Any]:
    """Each named figure a `share` of the way from a to b; None where either has none."""
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in names}
    return {name: None if x is None or y is None else x + share * (y - x) for name, (x, y) in pairs.items()}
