import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import Interval, needed, wilson, wilson_interval

shares = st.floats(0, 1)
levels = st.floats(0.5, 0.999)


@pytest.mark.parametrize(
    ("p", "floor", "n"), [(1.0, 0.98, 189), (0.99, 0.98, 753), (0.98, 0.95, 203), (0.97, 0.95, 457)]
)
def test_how_many_outputs_certify_a_floor(p: float, floor: float, n: int) -> None:
    assert needed(p, floor) == n
    assert wilson(p * n, n)[0] >= floor
    assert wilson(p * (n - 1), n - 1)[0] < floor


def test_a_window_of_100_cannot_certify_98_percent() -> None:
    low, _ = wilson(100, 100)
    assert low < 0.98


@pytest.mark.parametrize(("p", "floor"), [(0.98, 0.98), (0.9, 0.98), (1.0, 1.0), (0.0, 0.0)])
def test_no_n_certifies_a_floor_that_the_rate_does_not_exceed(p: float, floor: float) -> None:
    assert needed(p, floor) is None


def test_any_success_clears_a_floor_of_zero() -> None:
    assert needed(0.3, 0.0) == 1


def test_wilson_matches_scipy() -> None:
    for k, n, level in ((0, 7, 0.9), (3, 7, 0.95), (188, 189, 0.95), (50, 50, 0.99)):
        reference = stats.binomtest(k, n).proportion_ci(level, method="wilson")
        assert np.allclose(wilson(k, n, level), (reference.low, reference.high), atol=1e-12)


@given(n=st.integers(1, 10_000), p=shares, confidence=levels)
def test_bounds_are_shares_around_the_rate(n: int, p: float, confidence: float) -> None:
    k = math.floor(p * n)
    low, high = wilson(k, n, confidence)
    assert 0 <= low <= k / n <= high <= 1
    assert high > low


@given(n=st.integers(1, 2_000), confidence=levels)
def test_bounds_rise_with_successes(n: int, confidence: float) -> None:
    low, high = wilson(np.arange(n + 1), n, confidence)
    assert np.all(np.diff(low) > 0)
    assert np.all(np.diff(high) > 0)


@given(p=shares, n=st.integers(1, 5_000))
def test_more_evidence_at_the_same_rate_raises_the_lower_bound(p: float, n: int) -> None:
    n_all = np.arange(n, n + 50)
    assert np.all(np.diff(wilson(p * n_all, n_all)[0]) >= -1e-12)


@given(p=shares, floor=st.floats(0.01, 0.99), confidence=levels)
def test_needed_is_the_first_n_that_clears(p: float, floor: float, confidence: float) -> None:
    n = needed(p, floor, confidence)
    if n is None:
        assert p <= floor
    elif n < 10**9:
        assert wilson(p * n, n, confidence)[0] >= floor - 1e-9
        assert n == 1 or wilson(p * (n - 1), n - 1, confidence)[0] <= floor + 1e-9


def test_bounds_broadcast_and_are_nan_without_trials() -> None:
    low, high = wilson([[0], [1]], [0, 1, 2][1:])
    assert low.shape == high.shape == (2, 2)
    low, high = wilson([0, 5], [0, 10])
    assert np.isnan([low[0], high[0]]).all()
    assert np.isfinite([low[1], high[1]]).all()


def test_rounding_does_not_move_a_bound_past_the_rate() -> None:
    n = np.arange(1, 500)
    for confidence in np.linspace(0.5, 0.99, 50):
        assert np.all(wilson(0, n, confidence)[0] == 0)
        assert np.all(wilson(n, n, confidence)[1] == 1)


def test_interval_without_trials_is_missing_not_zero() -> None:
    assert wilson_interval(0, 0) == Interval(None, None, None, 0, 0.95, null=None)


def test_interval_carries_rate_and_n() -> None:
    interval = wilson_interval(9, 10, 0.9)
    assert (interval.estimate, interval.n, interval.confidence) == (0.9, 10, 0.9)
    assert interval.low == pytest.approx(float(wilson(9, 10, 0.9)[0]))


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (math.nan, 5), (1, math.nan), (1, math.inf)])
def test_impossible_counts_are_refused(k: float, n: float) -> None:
    with pytest.raises(TraceError, match="successes"):
        wilson(k, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_confidence_must_be_a_share(confidence: float) -> None:
    with pytest.raises(ConfigError, match="confidence"):
        wilson(1, 2, confidence)
    with pytest.raises(ConfigError, match="confidence"):
        needed(0.99, 0.98, confidence)


def test_shares_must_be_shares() -> None:
    with pytest.raises(ConfigError, match=r"p must be a share .* got 98"):
        needed(98, 0.95)
    with pytest.raises(ConfigError, match=r"floor must be a share .* got nan"):
        needed(0.98, math.nan)
