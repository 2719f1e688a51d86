import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.errors import ConfigError, TraceError
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.policy import Policy
from draftgate.replay.predict import predict
from draftgate.simulate.outcomes import STEPS, TOKENS, kept_at, offered_at, outcomes
from draftgate.simulate.plant import Plant

plain = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "plant.py"))["plain_rows"]

POLICIES = [
    *(Policy(f"k{k}", length=Fixed(k)) for k in range(8)),
    Policy("cut", length=Cut(7, 3.0)),
    Policy("short cut", length=Cut(4, 2.0)),
    Policy("strict", "threshold", 0.65, length=Fixed(4)),
    Policy("loose", "threshold-or-lossless", 0.1, length=Fixed(5)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize("workload", ["code-edit", "chat"])
def test_sums_are_what_replay_predicts(plant: Plant, policy: Policy, workload: str) -> None:
    replayable = plant.workloads[workload]
    sums = outcomes(replayable, policy).sum(axis=0)
    expected = predict(replayable, policy, plant.cost, 0)
    assert sums[TOKENS] / sums[STEPS] == pytest.approx(expected.acceptance_length)
    assert sums[offered_at(7)][0] / sums[STEPS] == pytest.approx(expected.coverage)
    # Replay counts drafts that the text's end cut short at their full length where they failed early.
    step_s = plant.cost.step_s(np.arange(8))
    seconds = sums[STEPS] * step_s[0] + sums[offered_at(7)] @ np.diff(step_s)
    assert seconds / sums[STEPS] == pytest.approx(expected.step_s, rel=0.02)


@given(k=st.integers(0, 7), misses=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_each_draft_is_what_a_plain_loop_over_steps_makes_of_it(plant: Plant, k: int, misses: float, seed: int) -> None:
    replayable = plant.workloads["chat"]
    missed = np.random.default_rng(seed).random(replayable.columns.shape) < misses
    assert outcomes(replayable, Policy("x", length=Fixed(k)), missed) == pytest.approx(plain(replayable, k, missed))


def test_the_text_is_the_same_whatever_the_draft_length(plant: Plant) -> None:
    tokens = [outcomes(plant.workloads["code-edit"], p)[:, TOKENS] for p in POLICIES[:8]]
    for other in tokens[1:]:
        assert other == pytest.approx(tokens[0])


def test_a_draft_that_always_misses_keeps_nothing(plant: Plant) -> None:
    replayable = plant.workloads["code-edit"]
    rows = outcomes(replayable, POLICIES[7], np.ones(replayable.columns.shape, bool))
    assert (rows[:, TOKENS] == 1).all()
    assert not rows[:, kept_at(7)].any()


def test_what_was_not_recorded_is_refused(plant: Plant) -> None:
    replayable = plant.workloads["chat"]
    with pytest.raises(TraceError, match="7 were recorded"):
        outcomes(replayable, Policy("x", length=Fixed(8)))
    length = Goodput(3, Calibration({"*": ((0.0,), (0.5,))}), {1: (1.0, 1.0, 1.0, 1.0)}, {1: 1.0})
    with pytest.raises(ConfigError, match="cannot be simulated"):
        outcomes(replayable, Policy("x", length=length))
