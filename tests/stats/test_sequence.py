import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import PHI, Interval, MeanSequence, mean_sequence, running

Array = NDArray[np.float64]

samples = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-100, 100).map(lambda v: round(v, 6)))
alphas = st.floats(0.001, 0.4)


def bounded(n: int = 40, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.1, 1.0, n)


def bayes_factor(x: Array, mean0: float, phi: float) -> float:
    """B_n by integrating the noncentral t density over the prior of the effect: no closed form involved."""
    n = len(x)
    t = (x.mean() - mean0) * math.sqrt(n) / x.std(ddof=1)
    effect = np.linspace(-10, 10, 8001) / math.sqrt(phi)
    prior = stats.norm.pdf(effect, scale=1 / math.sqrt(phi))
    ratio = stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) / stats.t.pdf(t, n - 1)
    return float(np.trapezoid(prior * np.nan_to_num(ratio), effect))


@pytest.mark.parametrize(("n", "alpha", "phi"), [(12, 0.05, PHI), (40, 0.05, PHI), (40, 0.01, 9.0)])
def test_both_bounds_are_where_the_integrated_bayes_factor_reaches_one_over_alpha(
    n: int, alpha: float, phi: float
) -> None:
    x = bounded(n)
    interval = mean_sequence(x, alpha, phi)
    assert interval.low is not None
    assert interval.high is not None
    assert bayes_factor(x, interval.low, phi) == pytest.approx(1 / alpha, rel=1e-3)
    assert bayes_factor(x, interval.high, phi) == pytest.approx(1 / alpha, rel=1e-3)


def test_peeking_at_every_n_rejects_a_true_mean_in_at_most_alpha_of_runs() -> None:
    x = np.random.default_rng(11).normal(3.0, 0.2, (2000, 200))
    for alpha in (0.05, 0.2):
        low, high = running(x, alpha)
        missed = ((low[:, -1] > 3.0) | (high[:, -1] < 3.0)).mean()
        assert 0 < missed <= alpha


def test_bounds_are_missing_until_some_mean_can_be_excluded() -> None:
    x = bounded()
    first = next(n for n in range(len(x)) if mean_sequence(x[:n]).low is not None)
    assert first == 7  # the first n with alpha^-2 < (1 + n / phi)^(n - 1)
    assert all(mean_sequence(x[:n]).high is None for n in range(first))
    assert mean_sequence(x[:1]).estimate == x[0]


def test_no_observations_is_missing_not_zero() -> None:
    nothing = Interval(None, None, None, 0, 0.95)
    assert mean_sequence(np.array([])) == nothing == MeanSequence().interval()
    low, high = running(np.array([]))
    assert low.size == high.size == 0


def test_equal_observations_have_a_bound_of_no_width() -> None:
    interval = mean_sequence(np.full(20, 0.25))
    assert (interval.estimate, interval.low, interval.high) == (0.25, 0.25, 0.25)
    assert mean_sequence(np.full(3, 0.25)).low is None
    low, high = running(np.full(50, 0.1))
    assert low[-1] == high[-1] == 0.1


@given(samples, alphas)
def test_interval_holds_the_estimate(x: Array, alpha: float) -> None:
    interval = mean_sequence(x, alpha)
    assert interval.estimate == pytest.approx(x.mean())
    assert interval.n == len(x)
    if interval.low is not None:
        assert interval.estimate is not None
        assert interval.high is not None
        assert interval.low <= interval.estimate <= interval.high


@given(samples, alphas)
def test_one_at_a_time_equals_all_at_once(x: Array, alpha: float) -> None:
    sequence = MeanSequence(alpha)
    low, high = -math.inf, math.inf
    running_low, running_high = running(x, alpha)
    for i, value in enumerate(x):
        sequence.add(float(value))
        one, batch = sequence.interval(), mean_sequence(x[: i + 1], alpha)
        assert (one.low is None) == (batch.low is None)
        if one.low is not None:
            assert one.high is not None
            assert (one.low, one.high) == pytest.approx((batch.low, batch.high), rel=1e-9, abs=1e-6)
            low, high = max(low, one.low), min(high, one.high)
        assert (running_low[i], running_high[i]) == pytest.approx((low, high), rel=1e-9, abs=1e-6)


@given(samples, st.floats(0.01, 100), st.floats(-1000, 1000))
def test_bounds_move_and_scale_with_the_data(x: Array, scale: float, shift: float) -> None:
    for before, after in zip(running(x), running(scale * x + shift), strict=True):
        assert np.allclose(np.where(np.isfinite(before), scale * before + shift, before), after, rtol=1e-6, atol=1e-5)


def test_bounds_mirror_with_the_data() -> None:
    x = bounded()
    low, high = running(x)
    mirrored_low, mirrored_high = running(-x)
    assert np.allclose(low, -mirrored_high)
    assert np.allclose(high, -mirrored_low)


@given(samples)
def test_running_bounds_are_nested(x: Array) -> None:
    low, high = running(x)
    assert np.all(low[1:] >= low[:-1])
    assert np.all(high[1:] <= high[:-1])


@given(samples)
def test_a_lower_alpha_is_wider(x: Array) -> None:
    narrow, wide = running(x, 0.2), running(x, 0.01)
    assert np.all(wide[0] <= narrow[0])
    assert np.all(wide[1] >= narrow[1])


def test_running_takes_many_runs_at_once() -> None:
    x = np.stack([bounded(seed=1), bounded(seed=2)])
    low, high = running(x)
    assert low.shape == x.shape
    assert np.allclose(low[1], running(x[1])[0])
    assert np.allclose(high[0], running(x[0])[1])


def test_first_look_ignores_earlier_prefixes() -> None:
    x = bounded()
    low, high = running(x, first_look=24)
    assert np.isneginf(low[:23]).all()
    assert np.isposinf(high[:23]).all()
    interval = mean_sequence(x[:24])
    assert (low[23], high[23]) == pytest.approx((interval.low, interval.high))


def test_drift_empties_the_intersection() -> None:
    low, high = running(np.concatenate([bounded(60), bounded(200) + 5]))
    assert low[59] < high[59]
    assert low[-1] > high[-1]


def test_values_far_from_zero_keep_their_differences() -> None:
    x = bounded()
    low, high = running(x + 1e9)
    expected_low, expected_high = running(x)
    assert np.allclose(low - 1e9, expected_low, atol=1e-5)
    assert np.allclose(high - 1e9, expected_high, atol=1e-5)


def test_the_default_phi_is_within_6_percent_of_the_best_from_24_to_200_prompts() -> None:
    grid = np.geomspace(0.3, 60, 60)
    for alpha in (0.05, 0.05 / 7):
        for n in (24, 48, 96, 200):
            x = bounded(n)
            best = min(width(mean_sequence(x, alpha, phi)) for phi in grid)
            assert width(mean_sequence(x, alpha)) <= 1.06 * best


def width(interval: Interval) -> float:
    return math.inf if interval.low is None or interval.high is None else interval.high - interval.low


@settings(max_examples=20)
@given(st.sampled_from([math.nan, math.inf, -math.inf]))
def test_observations_must_be_finite(bad: float) -> None:
    x = np.array([0.1, bad])
    with pytest.raises(TraceError, match=r"observation \(1,\) is"):
        mean_sequence(x)
    with pytest.raises(TraceError, match=r"observation \(1,\) is"):
        running(x)
    with pytest.raises(TraceError, match="observation 0 is"):
        MeanSequence().add(bad)


def test_shape_is_checked() -> None:
    with pytest.raises(TraceError, match=r"one-dimensional, but got shape \(2, 3\)"):
        mean_sequence(np.zeros((2, 3)))
    with pytest.raises(TraceError, match="single number"):
        running(np.float64(1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alpha", "phi", "name"), [(0.0, 1.0, "alpha"), (1.0, 1.0, "alpha"), (0.05, 0.0, "phi"), (0.05, math.inf, "phi")]
)
def test_settings_are_checked(alpha: float, phi: float, name: str) -> None:
    for call in (mean_sequence, running):
        for x in (bounded(), np.array([])):
            with pytest.raises(ConfigError, match=name):
                call(x, alpha, phi)
    with pytest.raises(ConfigError, match=name):
        MeanSequence(alpha, phi)


def test_first_look_is_checked() -> None:
    with pytest.raises(ConfigError, match="first_look"):
        running(bounded(), first_look=0)
