import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgate.cost.steps import Curve, StepCost
from draftgate.policy.category import Category
from draftgate.policy.length import Calibration, Fixed, Goodput
from draftgate.policy.policy import NONE, Policy
from draftgate.replay.accept import Replayable
from draftgate.replay.calibrate import (
    Examples,
    calibrate,
    examples,
    examples_of_trace,
    fit_goodput,
    fit_goodput_trace,
    isotonic,
)
from draftgate.replay.predict import predict
from draftgate.replay.trajectory import Trajectory, predict_trajectories

MOST = 5


def cost_of(seconds, draft_s=0.0):
    return StepCost({1: Curve(1, tuple(seconds), (0.0,) * len(seconds), 9)}, draft_s, 0.01)


@st.composite
def outcomes(draw):
    """Evidence and whether right, of up to 60 tokens with few distinct levels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(1, 60))
    return rng.integers(0, draw(st.integers(1, 12)), n).astype(float), rng.random(n) < rng.random(n)


@st.composite
def notes(draw):
    """Trajectories of up to 4 requests whose acceptance has nothing to do with evidence, and any step cost."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        n = int(rng.integers(1, 30))
        available = rng.integers(0, MOST + 1, n)
        confirmed = rng.integers(0, available + 1)
        made.append(Trajectory(rng.integers(1, 9, n), available, confirmed, MOST))
    return made, cost_of(rng.uniform(0.5, 2.0, MOST + 1))


@settings(deadline=None)  # the first example imports scipy
@given(outcomes())
def test_chances_rise_with_evidence_and_promise_no_certainty(drawn):
    evidence, right = drawn
    edges, chance = isotonic(evidence, right)
    assert list(edges) == sorted(set(edges))
    assert edges[0] == evidence.min()
    assert (np.diff(chance) >= 0).all()
    if 0 < right.mean() < 1:
        assert 0 < chance[0] <= right.mean() + 1e-12
        assert right.mean() - 1e-12 <= chance[-1] < 1


@settings(deadline=None)
@given(outcomes())
def test_an_edge_opens_its_level(drawn):
    """`Calibration` reads a table as `isotonic` means it: a level holds from its edge up to the next."""
    evidence, right = drawn
    edges, chance = isotonic(evidence, right)
    group = np.zeros(1, np.uint8)
    read = Calibration({"*": (edges, chance)})
    for i, edge in enumerate(edges):
        assert read.chance(np.array([edge]), group)[0] == chance[i]
        if i:
            assert read.chance(np.array([np.nextafter(edge, -1)]), group)[0] == chance[i - 1]


def test_levels_are_pooled_then_shrunk_towards_the_mean():
    evidence = np.array([1, 1, 2, 2, 3, 3, 3, 3.0])
    right = np.array([0, 1, 0, 0, 1, 1, 1, 1], bool)  # 1/2 then 0/2 violate the order: one level of 1/4
    edges, chance = isotonic(evidence, right)
    mean = 5 / 8
    assert edges == (1.0, 3.0)
    assert chance == pytest.approx(((1 + 2 * mean) / 6, (4 + 2 * mean) / 6))


def test_without_examples_nothing_is_expected_to_be_kept():
    nothing = calibrate(examples([]))
    assert nothing.chance(np.array([0.0, 50.0]), np.zeros(2, np.uint8)).tolist() == [0.0, 0.0]
    assert predict_trajectories(sure(3), Policy("g", length=fit_goodput([], cost_of([1, 1.1]), 1))).coverage == 0


def test_examples_are_the_tokens_that_were_reached():
    t = Trajectory(np.array([3, 7]), np.array([3, 2]), np.array([1, 2]), 3)
    known = examples([t, t])
    assert known.evidence.tolist() == [3, 4, 7, 8] * 2
    assert known.right.tolist() == [True, False, True, True] * 2
    assert known.request.tolist() == [0] * 4 + [1] * 4
    assert known.category is None


def test_examples_of_a_trace_are_the_tokens_that_were_reached(random_columns):
    columns = random_columns(np.random.default_rng(4), steps=40, most=4)
    expected = []
    for s in range(40):
        for j in range(columns.drafted_n[s]):
            expected.append(
                (columns.evidence[j, s], columns.rank[j, s] == 0, columns.request[s], columns.category[j, s])
            )
            if columns.rank[j, s]:
                break
    known = examples_of_trace(Replayable.of(columns))
    assert sorted(zip(known.evidence, known.right, known.request, known.category, strict=True)) == sorted(expected)


def tokens(structural_chance, other_chance, n=2000):
    """Examples of 8 requests, half of them structural, whose evidence tells nothing."""
    rng = np.random.default_rng(7)
    structural = np.arange(n) % 2 == 0
    right = rng.random(n) < np.where(structural, structural_chance, other_chance)
    category = np.where(structural, Category.STRUCTURAL, Category.WORD).astype(np.uint8)
    return Examples(rng.integers(1, 9, n).astype(float), right, np.arange(n) // 250, category)


def test_groups_get_tables_of_their_own_where_they_differ():
    found = calibrate(tokens(0.95, 0.3))
    assert {"*", "structural"} <= set(found.groups)
    evidence, kinds = np.full(2, 5.0), np.array([Category.STRUCTURAL, Category.WORD], np.uint8)
    assert found.chance(evidence, kinds) == pytest.approx([0.95, 0.3], abs=0.1)


def test_groups_that_do_not_differ_are_pooled():
    assert set(calibrate(tokens(0.6, 0.6)).groups) == {"*"}


def test_one_request_cannot_show_that_groups_pay():
    known = tokens(0.95, 0.3)
    alone = Examples(known.evidence, known.right, np.zeros(len(known.right), np.int64), known.category)
    assert set(calibrate(alone).groups) == {"*"}


def sure(n):
    """Requests where a context of 8 tokens or more is always right, and a shorter one never."""
    rng = np.random.default_rng(n)
    match = [rng.integers(1, 16, 200) for _ in range(n)]
    full = np.full(200, MOST)
    return [Trajectory(m, full, np.where(m >= 8, MOST, 0), MOST) for m in match]


def goodput(length):
    return Policy("goodput", length=length)


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.15, 0.4, 0.9, 2.0])
def test_goodput_is_at_least_as_fast_as_any_fixed_length(slope):
    """When evidence decides acceptance, choosing by it cannot lose to not choosing."""
    trajectories, cost = sure(3), cost_of([1 + slope * m for m in range(MOST + 1)])
    fitted = predict_trajectories(trajectories, goodput(fit_goodput(trajectories, cost, MOST)), cost, 0).speedup
    for k in range(MOST + 1):
        assert fitted >= 0.99 * predict_trajectories(trajectories, Policy("k", length=Fixed(k)), cost, 0).speedup


@settings(deadline=None)
@given(notes())
def test_goodput_is_never_slower_than_no_speculation_on_its_own_data(drawn):
    trajectories, cost = drawn
    length = fit_goodput(trajectories, cost, MOST)
    assert predict_trajectories(trajectories, goodput(length), cost, 0).speedup >= 1 - 1e-9


def test_a_misleading_calibration_is_not_followed():
    """Told that everything is kept where nothing is, the fit falls back to not drafting."""
    n = 50
    wrong = Trajectory(np.full(n, 5), np.full(n, MOST), np.zeros(n, np.int64), MOST)
    cost = cost_of([1 + 0.1 * m for m in range(MOST + 1)])
    length = fit_goodput([wrong], cost, MOST, Calibration({"*": ((0.0,), (0.99,))}))
    assert predict_trajectories([wrong], goodput(length), cost).coverage == 0


def test_the_price_of_time_is_the_rate_attained():
    trajectories, cost = sure(2), cost_of([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    length = fit_goodput(trajectories, cost, MOST)
    attained = predict_trajectories(trajectories, goodput(length), cost, 0).tokens_per_s
    assert length.rate_tok_s[1] == pytest.approx(attained, rel=2e-3)
    assert length.verify_s == {1: pytest.approx([1.01, 1.11, 1.21, 1.31, 1.41, 1.51])}


@pytest.mark.parametrize("draft_s", [0.02, 0.1, 0.5, 2.0])
def test_goodput_of_a_real_draft_model_beats_fixed_lengths(real, draft_s):
    replayable, cost = Replayable.of(real.columns), cost_of([1 + 0.05 * m for m in range(8)], draft_s)
    length = fit_goodput_trace(replayable, cost, 7)
    assert isinstance(length, Goodput)
    assert length.draft_s == draft_s
    fitted = predict(replayable, goodput(length), cost, 0)
    fixed = [predict(replayable, Policy("k", length=Fixed(k)), cost, 0).speedup for k in range(1, 8)]
    assert fitted.speedup >= 0.97 * max(fixed)
    assert fitted.speedup >= predict(replayable, NONE, cost, 0).speedup
