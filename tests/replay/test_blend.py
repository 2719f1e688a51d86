"""Lossy policies between recordings."""

from dataclasses import replace

import numpy as np
import pytest

from draftgate.cost.steps import Curve, StepCost
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.blend import Recording, predict_blend
from draftgate.replay.predict import predict

COST = StepCost({1: Curve(1, tuple(1.0 + 0.1 * m for m in range(1, 9)), (0.0,) * 8, 9)})


def loose(tau, k=7):
    return Policy(f"loose-{tau}", "threshold-or-lossless", tau, length=Fixed(k))


def rerun(columns, policy):
    """The recording as a run under `policy` would have counted it: what it keeps of each recorded draft."""
    kept = np.logical_and.accumulate(Replayable.of(columns).kept(policy) & columns.valid, axis=0).sum(axis=0)
    return replace(columns, accepted=kept.astype(np.int32), committed=(kept + 1).astype(np.int32))


@pytest.fixture
def recordings(real):
    lossless = replace(real.columns, committed=real.columns.accepted + np.int32(1))
    return [
        Recording.of(Replayable.of(c)) for c in (lossless, rerun(lossless, loose(0.3)), rerun(lossless, loose(0.1)))
    ]


def test_a_lossless_recording_kept_nothing_lossy(real, recordings):
    assert recordings[0].lossy_share == 0
    assert 0 < recordings[1].lossy_share < recordings[2].lossy_share < 0.2
    p = predict(recordings[0].replayable, loose(0.1), resamples=0)
    assert recordings[2].lossy_share == pytest.approx(p.lossy_share)


@pytest.mark.parametrize("policy", [NONE, Policy("exact", length=Fixed(3)), loose(1.0)])
def test_what_writes_nothing_lossy_is_read_from_the_lossless_recording(recordings, policy):
    assert predict_blend(recordings, policy, COST) == predict(recordings[0].replayable, policy, COST)


def test_a_recorded_policy_is_read_from_its_own_recording(recordings):
    found = predict_blend(recordings, loose(0.1), COST, resamples=0)
    own = predict(recordings[2].replayable, loose(0.1), COST, resamples=0)
    assert found.estimator == "blend"
    assert found.acceptance_length == pytest.approx(own.acceptance_length)
    assert found.speedup == pytest.approx(own.speedup)


def with_lossy_share(recording, share):
    return Recording(recording.replayable, share)


def test_the_text_read_is_the_text_written(real, recordings):
    """Two texts on which the policy writes 2% and 6% of lossy tokens, of which 0% and 10% were read: 10/3% is both."""
    columns = recordings[0].replayable.columns
    policy = loose(0.1)
    twice = replace(columns, logp=np.where(columns.rank == 0, columns.logp, columns.logp + np.float32(0.7)))
    a, b = (predict(Replayable.of(c), policy, resamples=0) for c in (columns, twice))
    assert a.lossy_share < b.lossy_share
    read = b.lossy_share * 1.5
    found = predict_blend([recordings[0], Recording(Replayable.of(twice), read)], policy, resamples=0)
    at = (found.lossy_share - a.lossy_share) / (b.lossy_share - a.lossy_share)
    assert 0 < at < 1
    assert found.lossy_share == pytest.approx(at * read)  # written at this point of the line, and read
    assert found.acceptance_length == pytest.approx(
        a.acceptance_length + at * (b.acceptance_length - a.acceptance_length)
    )


def test_a_looser_policy_than_any_recorded_is_read_from_the_loosest(recordings):
    policy = loose(0.001)
    found = predict_blend([recordings[0], with_lossy_share(recordings[1], 0.001)], policy, COST, resamples=0)
    assert found == predict(recordings[1].replayable, policy, COST, resamples=0)
    assert found.estimator != "blend"
    assert found.expected_error > 0.3


def test_the_interval_lies_between_those_of_its_neighbours(recordings):
    low, high = (predict(recordings[i].replayable, loose(0.2), COST).speedup_interval for i in (1, 2))
    found = predict_blend(recordings, loose(0.2), COST)
    assert min(low.low, high.low) <= found.speedup_interval.low <= max(low.low, high.low)
    assert found.speedup_interval.low <= found.speedup <= found.speedup_interval.high
