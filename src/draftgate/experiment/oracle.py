"""One question, one answer: what recordings predict of a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError
from draftgate.experiment.record import max_tokens_of
from draftgate.policy.length import Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.blend import Recording, predict_blend
from draftgate.replay.calibrate import calibrate, examples_of_trace, fit_goodput, fit_goodput_trace
from draftgate.replay.predict import Prediction
from draftgate.replay.trajectory import Trajectory, predict_trajectories, retrace
from draftgate.trace.columns import Columns
from draftgate.trace.records import RequestRecord
from draftgate.trace.store import TraceStore

__all__ = ["ENGINE_DEFAULTS", "Oracle"]

# llama.cpp's own defaults: ngram-simple looks for 12 tokens and copies 48, a draft model drafts 3.
ENGINE_DEFAULTS: Mapping[bool, Length] = {True: Cut(48, 12.0), False: Fixed(3)}


@dataclass(frozen=True, slots=True)
class Oracle:
    """Predicts policies with the estimator that fits: trajectories for lossless lookup drafts, else recorded drafts.

    Attributes:
        recordings: the lossless recording, then those under looser and looser rules.
        trajectories: None when the draft is a model, whose drafts cannot be made again without it.
        outputs: recorded outputs by language.
    """

    recordings: Sequence[Recording]
    cost: StepCost | None
    trajectories: Sequence[Trajectory] | None
    outputs: Mapping[str, Sequence[NDArray[np.int32]]]

    @classmethod
    def of(
        cls,
        stores: Sequence[TraceStore],
        cost: StepCost | None,
        lookup: bool,
        most: int,
        end_tokens: frozenset[int],
    ) -> "Oracle":
        """Prepare recorded traces, the lossless one first; `most` is the longest lookup draft to consider."""
        longest = max(most, *(length.most for length in ENGINE_DEFAULTS.values()))
        rows = stores[0].requests()
        trajectories = [_retraced(row, longest, end_tokens) for row in rows] if lookup else None
        outputs: dict[str, list[NDArray[np.int32]]] = {}
        for row in rows:
            if row.language is not None:
                outputs.setdefault(row.language, []).append(row.output_tokens)
        recordings = [Recording.of(Replayable.of(Columns.load(store))) for store in stores]
        # Rising lossy share is what predict_blend walks along; a loose run that kept nothing lossy adds nothing.
        loose = sorted((r for r in recordings[1:] if r.lossy_share > 0), key=lambda r: r.lossy_share)
        return cls([recordings[0], *loose], cost, trajectories, outputs)

    @property
    def replayable(self) -> Replayable:
        """The lossless recording."""
        return self.recordings[0].replayable

    @property
    def recorded_k(self) -> int:
        """Longest draft in the trace."""
        return self.replayable.columns.shape[0]

    def __call__(self, policy: Policy, resamples: int = 0) -> Prediction:
        """Predict one policy."""
        if self.trajectories is not None and _text_is_known(policy):
            return predict_trajectories(self.trajectories, policy, self.cost, resamples)
        return predict_blend(self.recordings, policy, self.cost, resamples)

    def can(self, policy: Policy) -> bool:
        """Whether the trace says anything about drafts as long as this policy's."""
        return policy.length.most <= self.recorded_k or (self.trajectories is not None and _text_is_known(policy))

    def goodput(self, most: int) -> Goodput:
        """The goodput draft length fitted to this recording.

        Raises:
            ConfigError: there is no cost model.
        """
        if self.cost is None:
            raise ConfigError("a goodput draft length needs measured step costs; pass the cost.json of a run")
        calibration = calibrate(examples_of_trace(self.replayable))
        recorded = fit_goodput_trace(self.replayable, self.cost, min(most, self.recorded_k), calibration)
        if self.trajectories is None:
            return recorded
        longer = fit_goodput(self.trajectories, self.cost, most)
        return recorded if len(calibration.groups) > 1 and self._speed(recorded) > self._speed(longer) else longer

    def _speed(self, length: Goodput) -> float:
        return self(Policy("goodput", "lossless", length=length)).speedup or 0.0


def _text_is_known(policy: Policy) -> bool:
    """Whether the recorded text is the policy's own, and re-drafting along it tells all that the policy asks."""
    return policy.lossless and not policy.uses_category


def _retraced(row: RequestRecord, most: int, end_tokens: frozenset[int]) -> Trajectory:
    return retrace(row.prompt_tokens.tolist(), row.output_tokens.tolist(), max_tokens_of(row), most, end_tokens)
