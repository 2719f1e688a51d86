"""Walking over notes of a text against drafting along it, step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.cost.steps import Curve, StepCost
from draftgate.errors import TraceError
from draftgate.policy.length import Calibration, Cut, Fixed, Goodput
from draftgate.policy.lookup import SuffixLookup
from draftgate.policy.policy import NONE, Policy
from draftgate.replay.trajectory import Trajectory, predict_trajectories, retrace, walk

END = 9
COST = StepCost({1: Curve(1, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), (0.0,) * 7, 9)})
LENGTHS = (
    Fixed(0),
    Fixed(1),
    Fixed(3),
    Fixed(6),
    Cut(5, 3.0),
    Cut(6, 1.0),
    Goodput(6, Calibration({"*": ((0.0, 2.0, 5.0), (0.1, 0.6, 0.95))}), {1: COST.curves[1].seconds}, {1: 1.2}),
)


def simulate(prompt, output, max_tokens, length, ends):
    """(drafted, accepted, committed) of each step of a lookup-drafted run whose text is `output`."""
    lookup = SuffixLookup([*prompt, output[0]])
    at, steps = 1, []
    while at < len(output):
        tokens, _ = lookup.propose(min(length.most, max_tokens - at - 1))
        tokens = tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))]
        evidence = SuffixLookup.evidence(lookup.strength, len(tokens))
        draft = tokens[: int(length.choose(evidence, np.zeros(len(tokens), np.uint8), len(tokens)))]
        accepted = 0
        while accepted < len(draft) and draft[accepted : accepted + 1] == output[at + accepted : at + accepted + 1]:
            accepted += 1
        committed = output[at : at + accepted + 1]
        lookup.extend(committed)
        at += len(committed)
        steps.append((len(draft), accepted, len(committed)))
    return steps


@st.composite
def runs(draw):
    """(prompt, output, max_tokens): repetitive texts that stop at an end token or at the limit."""
    token = st.integers(0, draw(st.integers(1, 4)))
    motif = draw(st.lists(token, min_size=1, max_size=8))
    prompt = draw(st.lists(st.one_of(token, st.just(END)), min_size=1, max_size=12)) + motif
    output = draw(st.lists(st.one_of(st.just(motif), st.lists(token, max_size=3)), min_size=1, max_size=6))
    output = [t for part in output for t in part] or [0]
    stops = draw(st.booleans())
    max_tokens = len(output) + draw(st.integers(1, 9)) if stops else len(output)
    return prompt, output + [END] * stops, max_tokens


@given(runs(), st.sampled_from(LENGTHS), st.booleans())
def test_walking_is_drafting_along_the_text(run, length, ends_known):
    prompt, output, max_tokens = run
    ends = frozenset({END}) if ends_known else frozenset()
    walked = walk(retrace(prompt, output, max_tokens, 6, ends), length) if len(output) > 1 else None
    expected = simulate(prompt, output, max_tokens, length, ends)
    found = [] if walked is None else list(zip(walked.drafted, walked.accepted, walked.committed, strict=True))
    assert found == expected
    assert sum(committed for _, _, committed in expected) == len(output) - 1


def test_a_draft_stops_at_an_end_token():
    prompt = [1, 2, END, 3, 4, 1]
    assert retrace(prompt, [2, END], 10, 4, frozenset({END})).available.tolist() == [1]
    assert retrace(prompt, [2, END], 10, 4).available.tolist() == [4]


def test_a_draft_leaves_room_for_the_bonus_token():
    assert retrace([1, 2, 3, 1, 2, 3], [1, 2, 3, 1], 4, 5).available.tolist() == [2, 1, 0]


def test_the_last_step_may_have_no_bonus_token():
    walked = walk(retrace([1, 2, END, 1], [2, END], 50, 4), Fixed(1))
    assert (walked.drafted.tolist(), walked.accepted.tolist(), walked.committed.tolist()) == ([1], [1], [1])


@pytest.mark.parametrize("output", [[], [5]])
def test_outputs_without_steps_have_no_notes(output):
    trajectory = retrace([1, 2], output, 8, 3)
    assert trajectory.evidence.shape == (0, 3)


def repetitive(n):
    return [retrace([1, 2, 3, 4, 5, i + 6], [1, 2, 3, 4, 5, 1, 2, 9 + i, 1, 2, 3, 4], 12, 6) for i in range(n)]


def test_a_prediction_adds_up():
    trajectories = [*repetitive(3), retrace([1], [2], 1, 6)]  # the last one took no step
    p = predict_trajectories(trajectories, Policy("k3", length=Fixed(3)), COST, resamples=200)
    walked = [walk(t, Fixed(3)) for t in trajectories[:3]]
    drafted, accepted, committed = (
        np.concatenate([getattr(w, name) for w in walked]) for name in ("drafted", "accepted", "committed")
    )
    seconds = COST.step_s(drafted).sum()
    assert p.estimator == "trajectory"
    assert p.requests == 3
    assert p.acceptance_length == pytest.approx(committed.mean())
    assert p.acceptance_rate == pytest.approx(accepted.sum() / drafted.sum())
    assert p.coverage == pytest.approx((drafted > 0).mean())
    assert p.step_s == pytest.approx(seconds / len(drafted))
    assert p.tokens_per_s == pytest.approx(committed.sum() / seconds)
    assert p.speedup == pytest.approx(committed.sum() / seconds * 1.0)
    assert (p.lossy_share, p.given_up_nats) == (0.0, 0.0)
    assert p.speedup_interval.low <= p.speedup <= p.speedup_interval.high
    assert p.speedup_interval.estimate == pytest.approx(p.speedup)
    assert (p.speedup_interval.n, p.speedup_interval.null) == (3, 1.0)


def test_no_speculation_is_exactly_itself():
    p = predict_trajectories(repetitive(2), NONE, COST)
    assert (p.acceptance_length, p.acceptance_rate, p.coverage, p.speedup) == (1.0, None, 0.0, 1.0)


def test_time_and_interval_need_a_cost_model_and_two_requests():
    p = predict_trajectories(repetitive(2), Policy("k3", length=Fixed(3)))
    assert (p.step_s, p.tokens_per_s, p.speedup, p.speedup_interval) == (None, None, None, None)
    assert predict_trajectories(repetitive(1), NONE, COST).speedup_interval is None
    assert predict_trajectories(repetitive(2), NONE, COST, resamples=0).speedup_interval is None


@pytest.mark.parametrize(
    ("trajectories", "policy", "message"),
    [
        (repetitive(1), Policy("t", "threshold", 0.3), "'threshold' is lossy"),
        (repetitive(1), Policy("k9", length=Fixed(9)), "drafts up to 9 tokens but 6 were retraced"),
        ([retrace([1], [2], 1, 6)], NONE, "no steps"),
        ([], NONE, "no steps"),
    ],
)
def test_what_trajectories_cannot_tell_is_refused(trajectories, policy, message):
    with pytest.raises(TraceError, match=message):
        predict_trajectories(trajectories, policy)


def test_evidence_counts_the_drafted_tokens_before():
    trajectory = Trajectory(np.array([4, 0]), np.array([3, 0]), np.array([1, 0]), 3)
    np.testing.assert_array_equal(trajectory.evidence, [[4, 5, 6], [0, 1, 2]])
