import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.cost.model import all_accepted_speedup, break_even, expected_committed, iid_speedup
from draftgate.cost.steps import Curve, StepCost

CHANCE = st.floats(0, 1)


@st.composite
def costs(draw):
    seconds = draw(st.lists(st.floats(0.1, 3.0), min_size=2, max_size=9))
    curves = {b: Curve(b, tuple(s * b for s in seconds), (0.0,) * len(seconds), 9) for b in (1, 8)}
    return StepCost(curves, draw(st.floats(0, 1)), draw(st.floats(0, 0.5)))


@given(st.floats(0, 0.99), st.integers(0, 20))
def test_expected_length_is_leviathans_closed_form(alpha, k):
    assert expected_committed(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


@pytest.mark.parametrize(("alpha", "k"), [(0.8, 4), (0.3, 7), (1.0, 2)])
def test_expected_length_is_what_happens(alpha, k):
    kept = np.random.default_rng(0).random((40_000, k)) < alpha
    committed = 1 + np.logical_and.accumulate(kept, axis=1).sum(axis=1)
    assert expected_committed(alpha, k) == pytest.approx(committed.mean(), rel=0.01)


@given(costs(), CHANCE, st.integers(0, 12), st.sampled_from([1, 8]))
def test_full_acceptance_is_the_bound(cost, alpha, k, batch):
    assert iid_speedup(cost, alpha, k, batch) <= all_accepted_speedup(cost, k, batch) * (1 + 1e-12)
    assert iid_speedup(cost, 1.0, k, batch) == pytest.approx(all_accepted_speedup(cost, k, batch))


@given(costs(), st.integers(1, 12), st.sampled_from([1, 8]))
def test_break_even_is_where_the_speedup_is_one(cost, k, batch):
    alpha = break_even(cost, k, batch)
    if alpha is None:
        assert iid_speedup(cost, 1.0, k, batch) < 1
        return
    assert 0 <= alpha <= 1
    assert iid_speedup(cost, alpha, k, batch) >= 1 - 1e-9
    if alpha > 1e-6:
        assert iid_speedup(cost, alpha - 1e-6, k, batch) < 1


@given(costs(), st.floats(0.05, 0.95), st.integers(1, 7))
def test_break_even_inverts_the_speedup(cost, alpha, k):
    """A curve made so that acceptance alpha just pays gives alpha back."""
    none = float(cost.step_s(np.array(0)))
    pays = expected_committed(alpha, k) * none
    made = StepCost({1: Curve(1, (none, *[pays] * k), (0.0,) * (k + 1), 9)})
    assert break_even(made, k) == pytest.approx(alpha, abs=1e-9)


def test_drafting_nothing_neither_gains_nor_loses():
    cost = StepCost({1: Curve(1, (1.0, 1.2), (0.0, 0.0), 9)}, 0.1, 0.1)
    assert all_accepted_speedup(cost, 0) == iid_speedup(cost, 0.3, 0) == 1.0
    assert break_even(cost, 0) == pytest.approx(0, abs=1e-12)


def test_a_worked_example():
    """A step with three drafted tokens takes (1.3 + 3 x 0.1) / 1 = 1.6 times as long."""
    cost = StepCost({1: Curve(1, (1.0, 1.1, 1.2, 1.3), (0.0,) * 4, 9)}, draft_s=0.1)
    assert all_accepted_speedup(cost, 3) == pytest.approx(4 / 1.6)
    assert iid_speedup(cost, 0.5, 3) == pytest.approx(1.875 / 1.6)
    alpha = break_even(cost, 3)
    assert alpha + alpha**2 + alpha**3 == pytest.approx(0.6)
