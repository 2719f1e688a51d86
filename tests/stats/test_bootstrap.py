import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import Interval, ratio_interval
from draftgate.stats.bootstrap import _DRAWS_PER_CHUNK, _resampled_sums

Array = NDArray[np.float64]


def requests(n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Accepted and drafted tokens of n requests whose acceptance rates differ around 0.6."""
    rng = np.random.default_rng(seed)
    drafted = rng.integers(20, 400, n)
    return rng.binomial(drafted, rng.beta(3, 2, n)), drafted


def bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def test_estimate_is_the_ratio_of_sums_not_the_mean_of_ratios() -> None:
    assert ratio_interval([1, 90], [10, 100]).estimate == pytest.approx(91 / 110)


def test_width_agrees_with_the_delta_method() -> None:
    accepted, drafted = requests(1000)
    interval = ratio_interval(accepted, drafted)
    residual = accepted - accepted.sum() / drafted.sum() * drafted
    half = 1.96 * math.sqrt(np.square(residual).sum()) / drafted.sum()
    low, high = bounds(interval)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_requests_are_resampled_not_tokens() -> None:
    accepted, drafted = np.tile([100, 0], 20), np.full(40, 100)  # each request is all or nothing
    low, high = bounds(ratio_interval(accepted, drafted))
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.25 / 40), rel=0.15)  # over tokens: 10 times narrower


def test_coverage_over_100_requests() -> None:
    held = 0
    for seed in range(200):
        low, high = bounds(ratio_interval(*requests(100, seed), resamples=400))
        held += low <= 0.6 <= high
    assert 180 <= held <= 198  # 95% of 200, within 3 deviations of a binomial


@given(st.integers(2, 30), st.integers(0, 50))
def test_interval_holds_the_estimate_and_is_reproducible(n: int, seed: int) -> None:
    accepted, drafted = requests(n, seed)
    interval = ratio_interval(accepted, drafted, resamples=50, seed=seed)
    low, high = bounds(interval)
    assert interval.estimate is not None
    assert low <= interval.estimate <= high
    assert interval == ratio_interval(accepted, drafted, resamples=50, seed=seed)


@settings(max_examples=30)
@given(hnp.arrays(np.float64, 20, elements=st.floats(1, 100)), st.floats(0.01, 100))
def test_bounds_scale_with_the_numerator(numerator: Array, scale: float) -> None:
    denominator = np.arange(1.0, 21.0)
    one, scaled = (ratio_interval(factor * numerator, denominator, resamples=50) for factor in (1.0, scale))
    assert bounds(scaled) == pytest.approx(tuple(scale * bound for bound in bounds(one)))


def test_confidence_widens() -> None:
    low, high = bounds(ratio_interval(*requests(50), confidence=0.8))
    wider_low, wider_high = bounds(ratio_interval(*requests(50), confidence=0.99))
    assert wider_low < low < high < wider_high


def test_chunks_do_not_limit_the_number_of_requests() -> None:
    n = _DRAWS_PER_CHUNK // 2  # two resamples per chunk
    sums = _resampled_sums(np.stack(requests(n), axis=1).astype(float), 3, np.random.default_rng(0))
    assert sums.shape == (3, 2)
    assert len(np.unique(sums[:, 0])) == 3
    assert np.allclose(sums[:, 0] / sums[:, 1], 0.6, atol=0.01)


def test_one_request_has_no_bounds() -> None:
    assert ratio_interval([3], [4]) == Interval(0.75, None, None, 1, 0.95, null=None)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_nothing_drafted_is_missing_not_zero(n: int) -> None:
    assert ratio_interval(np.zeros(n), np.zeros(n)) == Interval(None, None, None, n, 0.95, null=None)


def test_resamples_that_drafted_nothing_are_left_out() -> None:
    low, high = bounds(ratio_interval([3, 0, 0], [4, 0, 0]))
    assert low == high == 0.75


@pytest.mark.parametrize(
    ("numerator", "denominator", "message"),
    [
        ([1, 2], [1], "one numerator and one denominator per request"),
        ([[1]], [[1]], "one numerator and one denominator per request"),
        ([math.nan], [1], "finite"),
        ([1], [math.inf], "finite"),
        ([1, 1], [-1, 5], "not negative"),
    ],
)
def test_bad_totals_are_refused(numerator: list[float], denominator: list[float], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        ratio_interval(numerator, denominator)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="confidence"):
        ratio_interval([1], [2], confidence=95)
    with pytest.raises(ConfigError, match="resamples"):
        ratio_interval([1], [2], resamples=0)
