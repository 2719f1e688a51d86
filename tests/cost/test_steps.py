import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.cost.steps import Curve, StepCost
from draftgate.errors import ConfigError, TraceError

SECONDS = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=9)


def curve(*seconds, batch=1):
    return Curve(batch, seconds, (0.0,) * len(seconds), 9)


def covers_its_median(n, runs):
    """Whether the interval behind `Curve.error` holds the true median, 1, of n skewed samples, [runs].

    `error` holds only the width of the interval, so the pair of samples of that width is found again.
    """
    samples = np.random.default_rng(n).lognormal(0.0, 0.5, (n, runs))
    found, ordered = Curve.from_samples(1, samples), np.sort(samples, axis=0)
    widths = ordered[::-1] - ordered
    low = np.abs(widths - 2 * np.array(found.error) * np.array(found.seconds)).argmin(axis=0)
    each = np.arange(runs)
    return (ordered[low, each] <= 1) & (ordered[n - 1 - low, each] >= 1)


@pytest.mark.parametrize("n", [6, 9, 16, 20, 57, 200])
def test_the_interval_covers_the_true_median(n):
    assert 0.945 < covers_its_median(n, 4000).mean() < 0.993


def test_medians_by_column():
    found = Curve.from_samples(4, np.array([[1.0, 9.0], [2.0, 7.0], [6.0, 8.0]]))
    assert (found.batch, found.seconds, found.n) == (4, (2.0, 8.0), 3)
    assert found.error == (5 / 4, 2 / 16)  # fewer than six samples: their whole range
    assert json.dumps(found.seconds)  # plain numbers


def test_one_sample_is_its_own_median():
    assert Curve.from_samples(1, np.array([[3.0]])) == Curve(1, (3.0,), (0.0,), 1)


def test_a_line_is_fitted_without_error():
    line = curve(1.5, 2.0, 2.5, 3.0).fit()
    assert (line.base_s, line.per_token_s) == (pytest.approx(1.0), pytest.approx(0.5))
    assert line.error == pytest.approx(0, abs=1e-12)


def test_the_error_of_a_fit_is_the_greatest_relative_distance():
    steps = curve(1.0, 1.0, 2.0, 2.0)
    line = steps.fit()
    fitted = [line.base_s + line.per_token_s * m for m in (1, 2, 3, 4)]
    assert line.error == pytest.approx(max(abs(a / b - 1) for a, b in zip(fitted, steps.seconds, strict=True)))
    assert line.error > 0.1


def test_a_single_point_is_flat():
    line = curve(2.0).fit()
    assert (line.base_s, line.per_token_s, line.error) == (2.0, 0.0, 0.0)
    assert curve(2.0).at(np.array([1, 5])).tolist() == [2.0, 2.0]


@given(SECONDS, st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_measured_points_are_read_and_the_line_only_extends_them(seconds, tokens):
    measured = curve(*seconds)
    found = measured.at(np.array(tokens))
    slope = max(measured.fit().per_token_s, 0.0)
    for m, value in zip(tokens, found, strict=True):
        if m <= len(seconds):
            assert value == seconds[m - 1]
        else:
            assert value == pytest.approx(seconds[-1] + slope * (m - len(seconds)))


def test_any_shape_of_tokens():
    measured = curve(1.0, 1.5, 2.0)
    assert measured.at(np.array(2)) == 1.5
    np.testing.assert_allclose(measured.at(np.array([[1, 2], [3, 5]])), [[1, 1.5], [2, 3]])


def test_a_noisy_curve_never_extends_downwards():
    assert curve(2.0, 1.0).at(np.array([2, 9])).tolist() == [1.0, 1.0]


def test_a_step_is_verification_drafting_and_overhead():
    cost = StepCost({1: curve(1.0, 1.5, 2.0), 4: curve(3.0, 4.0, 5.0, batch=4)}, draft_s=0.1, overhead_s=0.01)
    np.testing.assert_allclose(cost.step_s(np.array([0, 1, 2])), [1.01, 1.61, 2.21])
    np.testing.assert_allclose(cost.step_s(np.array([0, 2]), batch=4), [3.01, 5.21])


def test_an_unmeasured_batch_size_is_refused():
    cost = StepCost({4: curve(1.0, batch=4), 1: curve(1.0)})
    with pytest.raises(ConfigError, match=r"no cost was measured at batch size 2; measure it, or use \[1, 4\]"):
        cost.step_s(np.array([1]), batch=2)


@given(SECONDS, st.floats(0, 1), st.floats(0, 1), st.sets(st.integers(1, 64), min_size=1, max_size=3))
def test_costs_survive_json(seconds, draft_s, overhead_s, batches):
    curves = {b: Curve(b, tuple(seconds), tuple(s / 10 for s in seconds), 7) for b in batches}
    cost = StepCost(curves, draft_s, overhead_s)
    assert StepCost.from_mapping(json.loads(json.dumps(cost.to_mapping(), allow_nan=False))) == cost


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"curves": [{"batch": 1}], "draft_s": 0, "overhead_s": 0},
        {"curves": None, "draft_s": 0, "overhead_s": 0},
        {"curves": [], "draft_s": 0},
    ],
)
def test_costs_that_are_not_whole_are_refused(broken):
    with pytest.raises(TraceError, match=r"step costs cannot be read: .*; measure them again"):
        StepCost.from_mapping(broken)
