import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError, WorkloadError
from draftgate.quality.passk import Attempt, estimate, pass_at_k


def attempts(*passed: list[bool]) -> list[Attempt]:
    return [
        Attempt(str(task), i, good, "passed" if good else "failed", "", 0.1)
        for task, goods in enumerate(passed)
        for i, good in enumerate(goods)
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_is_the_share_of_subsets_with_a_pass(passed: list[bool], data: st.DataObject) -> None:
    """By counting all subsets of k completions, which is what the estimator stands for."""
    k = data.draw(st.integers(1, len(passed)))
    share = fmean(any(subset) for subset in combinations(passed, k))
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(share, abs=1e-12)


@given(st.integers(1, 400), st.data())
def test_is_the_published_formula(n: int, data: st.DataObject) -> None:
    """1 - C(n-c, k) / C(n, k) in whole numbers of any size."""
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-9)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (5, 2, 2, 0.7),
        (200, 1, 100, 0.5),
        (200, 0, 100, 0.0),
        (3, 2, 2, 1.0),
    ],
)
def test_known_values(n: int, c: int, k: int, expected: float) -> None:
    assert float(pass_at_k(n, c, k)) == pytest.approx(expected, abs=1e-12)


def test_is_unbiased() -> None:
    """Over 5 of 8 samples drawn from p = .3, its mean is 1 - (1 - p)^k; that of 1 - (1 - c/n)^k is not."""
    p, n, k = 0.3, 8, 5
    weights = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    counts = np.arange(n + 1)
    assert np.dot(weights, pass_at_k(n, counts, k)) == pytest.approx(1 - (1 - p) ** k)
    assert abs(np.dot(weights, 1 - (1 - counts / n) ** k) - (1 - (1 - p) ** k)) > 0.02


@pytest.mark.parametrize(
    ("n", "c", "k", "error"),
    [
        (4, 1, 0, ConfigError),
        (4, 5, 1, WorkloadError),
        (4, -1, 1, WorkloadError),
        (4, 1.5, 1, WorkloadError),
        (4, 1, 5, WorkloadError),
        ([9, 4], 1, 5, WorkloadError),
        (math.nan, 1, 1, WorkloadError),
    ],
)
def test_impossible_counts_are_refused(n: float, c: float, k: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        pass_at_k(n, c, k)


def test_estimate_is_the_mean_over_problems() -> None:
    found = estimate(attempts([True, False, False, False], [True, True, False, False], [False] * 6), [1, 2])
    assert found[1].estimate == pytest.approx(fmean([1 / 4, 2 / 4, 0]))
    assert found[2].estimate == pytest.approx(fmean([1 / 2, 5 / 6, 0]))
    assert found[1].n == 3
    assert found[1].low is not None
    assert found[1].high is not None
    assert 0 <= found[1].low < 0.25 < found[1].high <= 1


def test_all_passed_is_not_certainty() -> None:
    interval = estimate(attempts(*[[True]] * 164), [1])[1]
    assert (interval.estimate, interval.high) == (1, 1)
    assert interval.low == pytest.approx(164 / (164 + 1.959964**2), abs=1e-6)  # Wilson, by hand


def test_one_sample_a_problem_is_about_wilson() -> None:
    interval = estimate(attempts(*[[i % 4 == 0] for i in range(400)]), [1])[1]
    assert interval.low == pytest.approx(0.2100, abs=0.001)
    assert interval.high == pytest.approx(0.2947, abs=0.001)


def test_more_samples_narrow_where_problems_are_alike() -> None:
    few, many = ([[True, False] * times] * 10 for times in (1, 20))
    widths = [i.high - i.low for i in (estimate(attempts(*goods), [1])[1] for goods in (few, many))]  # type: ignore[operator]
    assert widths[1] < widths[0] / 3


def test_no_problem_and_one_problem() -> None:
    assert estimate([], [1])[1].estimate is None
    one = estimate(attempts([True, False]), [1])[1]
    assert (one.estimate, one.low, one.high, one.n) == (0.5, None, None, 1)


def test_too_few_completions_are_refused() -> None:
    with pytest.raises(WorkloadError, match="pass@2 needs at least 2 completions of every problem, but one has 1"):
        estimate(attempts([True, True], [True]), [1, 2])


@pytest.mark.parametrize("k", [1, 3])
def test_interval_covers(k: int) -> None:
    """95% bounds around pass@k of 60 problems whose chances are Beta(.5, .5), 6 samples each, over 400 draws."""
    rng = np.random.default_rng(1)
    truth = 1 - np.mean((1 - rng.beta(0.5, 0.5, 1_000_000)) ** k)
    covered = 0
    for _ in range(400):
        counts = rng.binomial(6, rng.beta(0.5, 0.5, 60))
        i = estimate(attempts(*[[j < c for j in range(6)] for c in counts]), [k])[k]
        covered += i.low <= truth <= i.high  # type: ignore[operator]
    assert 0.92 <= covered / 400 <= 0.98
