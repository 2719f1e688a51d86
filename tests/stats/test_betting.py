import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import Interval, Tally

LIMIT = math.log(40)  # two-sided 5%

shares = st.floats(0.02, 0.98)
bits = st.lists(st.integers(0, 1), min_size=1, max_size=80)
differences = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=80)


def running(*seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Counts[runs, n, V] after each observation, from flags[runs, n] for each of V values."""
    return np.stack(seen, axis=-1).cumsum(axis=1, dtype=np.float64)


@given(shares)
def test_evidence_against_a_true_mean_is_1_on_average(p: float) -> None:
    ones = np.arange(9)
    tally = Tally(np.array([0.0, 1.0]), np.stack([8 - ones, ones], axis=-1).astype(float))
    chance = [math.comb(8, k) * p**k * (1 - p) ** (8 - k) for k in ones]
    assert np.exp(tally.log_e_above(p)) @ chance == pytest.approx(1)
    assert np.exp(tally.log_e_below(p)) @ chance == pytest.approx(1)


@given(lost=st.floats(0, 0.5), won=st.floats(0, 0.5))
def test_evidence_against_a_true_mean_difference_is_1_on_average(lost: float, won: float) -> None:
    chance = {-1.0: lost, 0.0: 1 - lost - won, 1.0: won}
    mean = won - lost
    if abs(mean) == 1:
        return
    sample = list(product(chance, repeat=4))
    weight = np.array([math.prod(chance[x] for x in xs) for xs in sample])
    tallies = [Tally.of(xs, low=-1.0) for xs in sample]
    assert weight @ [np.exp(t.log_e_above(mean)) for t in tallies] == pytest.approx(1)
    assert weight @ [np.exp(t.log_e_below(mean)) for t in tallies] == pytest.approx(1)


def test_evidence_is_the_arcsine_mixture_of_bets() -> None:
    lost, tied, won, mean = 3, 30, 9, -0.05
    pay = [(1 + d) / (1 + mean) for d in (-1, 0, 1)]

    def wealth(angle: float) -> float:  # the stake is sin^2 of a uniform angle
        stake = math.sin(angle) ** 2
        return math.prod((1 - stake + stake * x) ** n for x, n in zip(pay, (lost, tied, won), strict=True))

    integral, _ = integrate.quad(wealth, 0, math.pi / 2)
    tally = Tally(np.array([-1.0, 0.0, 1.0]), np.array([lost, tied, won], dtype=float), low=-1.0)
    # Chebyshev nodes integrate polynomials of degree below 64 exactly, so this is no approximation.
    assert np.exp(tally.log_e_above(mean)) == pytest.approx(integral / (math.pi / 2), rel=1e-9)


@given(lost=st.integers(0, 40), won=st.integers(0, 40), tied=st.integers(0, 10_000))
def test_ties_say_nothing_about_which_arm_is_better(lost: int, won: int, tied: int) -> None:
    values = np.array([-1.0, 0.0, 1.0])
    with_ties, without = (Tally(values, np.array([lost, n, won], dtype=float), low=-1.0) for n in (tied, 0))
    assert with_ties.log_e_below(0.0) == pytest.approx(float(without.log_e_below(0.0)), abs=1e-9)


@given(bits)
def test_bounds_are_where_the_evidence_reaches_its_limit(x: list[int]) -> None:
    tally = Tally.of(x)
    interval = tally.interval()
    assert interval.low is not None
    assert interval.high is not None
    assert 0 <= interval.low <= np.mean(x) <= interval.high <= 1
    for bound, evidence in ((interval.low, tally.log_e_above), (interval.high, tally.log_e_below)):
        if 0 < bound < 1:
            assert evidence(bound) == pytest.approx(LIMIT, abs=1e-6)


@given(differences)
def test_the_range_is_only_a_scale(x: list[float]) -> None:
    wide, unit = Tally.of(x, low=-1.0).interval(), Tally.of([(v + 1) / 2 for v in x]).interval()
    assert wide.low is not None
    assert unit.low is not None
    assert wide.low == pytest.approx(2 * unit.low - 1)


@given(differences)
def test_negating_the_observations_mirrors_the_interval(x: list[float]) -> None:
    there, back = Tally.of(x, low=-1.0).interval(), Tally.of([-v for v in x], low=-1.0).interval()
    assert there.high is not None
    assert back.low == pytest.approx(-there.high, abs=1e-12)


@given(bits, st.integers(1, 5))
def test_times_is_the_same_observations_again(x: list[int], k: int) -> None:
    projected, repeated = Tally.of(x).times([1, k]), Tally.of(x * k)
    assert projected.log_e_above(0.6)[1] == pytest.approx(float(repeated.log_e_above(0.6)))
    assert projected.n.tolist() == [len(x), k * len(x)]
    assert projected.mean[1] == pytest.approx(float(repeated.mean))


@pytest.mark.parametrize("p", [0.5, 0.9, 0.98])
def test_a_true_share_is_refuted_in_at_most_alpha_of_runs_however_often_one_looks(p: float) -> None:
    valid = np.random.default_rng(3).random((2000, 200)) < p
    tally = Tally(np.array([0.0, 1.0]), running(~valid, valid))
    low_too_high, high_too_low = tally.log_e_above(p) >= LIMIT, tally.log_e_below(p) >= LIMIT
    assert low_too_high.any(axis=1).mean() <= 0.025
    assert 0 < high_too_low.any(axis=1).mean() <= 0.025


@pytest.mark.parametrize(("floor", "n"), [(0.95, 98), (0.98, 248)])
def test_how_many_valid_outputs_in_a_row_prove_a_floor(floor: float, n: int) -> None:
    assert Tally.of(np.ones(n)).log_e_above(floor) >= LIMIT > Tally.of(np.ones(n - 1)).log_e_above(floor)


def test_no_observations_is_missing_not_zero() -> None:
    nothing = Tally.of([])
    assert nothing.interval() == Interval(None, None, None, 0, 0.95, null=None)
    assert nothing.log_e_above(0.5) == 0.0
    assert math.isnan(nothing.mean)


@pytest.mark.parametrize("bad", [[1.1], [-0.1], [math.nan], [math.inf]])
def test_values_outside_the_range_are_refused(bad: list[float]) -> None:
    with pytest.raises(TraceError, match="must lie between 0 and 1"):
        Tally.of([0.5, *bad])


def test_bad_input_is_refused() -> None:
    with pytest.raises(TraceError, match="one-dimensional"):
        Tally.of([[0.0, 1.0]])
    with pytest.raises(ConfigError, match="alpha must be between 0 and 1"):
        Tally.of([1.0]).interval(alpha=1.0)
