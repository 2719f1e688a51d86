import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from draftgate.errors import ConfigError, TraceError
from draftgate.stats import Interval, Verdict, compare, mean_sequence, running, speedup, wilson_interval

Array = NDArray[np.float64]
BETTER, WORSE, NOT_WORSE, INCONCLUSIVE = Verdict


def between(low: float | None, high: float | None, null: float | None = 0.0) -> Interval:
    return Interval(None, low, high, 50, 0.95, null)


def pairs(n: int, factor: float = 1.0, noise: float = 0.1, seed: int = 0) -> tuple[Array, Array]:
    """Seconds per token of n prompts: prompts differ 10 times more than the two arms do."""
    rng = np.random.default_rng(seed)
    prompt_s = 0.02 * rng.lognormal(0, 1, n)
    return prompt_s * rng.lognormal(0, noise, n), prompt_s / factor * rng.lognormal(0, noise, n)


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (0.01, 0.05, 0.0, BETTER),
        (0.01, 0.05, 0.02, BETTER),
        (0.01, None, 0.0, BETTER),
        (0.0, 0.05, 0.0, INCONCLUSIVE),
        (0.0, 0.05, 0.02, NOT_WORSE),
        (-0.01, 0.05, 0.0, INCONCLUSIVE),
        (-0.01, 0.05, 0.02, NOT_WORSE),
        (-0.01, None, 0.02, NOT_WORSE),
        (-0.01, -0.005, 0.02, NOT_WORSE),
        (-0.02, 0.05, 0.02, INCONCLUSIVE),
        (-0.05, -0.01, 0.0, WORSE),
        (-0.05, -0.01, 0.02, INCONCLUSIVE),
        (-0.05, -0.02, 0.02, INCONCLUSIVE),
        (-0.05, -0.03, 0.02, WORSE),
        (None, -0.03, 0.02, WORSE),
        (-0.05, 0.0, 0.0, INCONCLUSIVE),
        (0.0, 0.0, 0.0, INCONCLUSIVE),
        (None, None, 0.0, INCONCLUSIVE),
        (None, None, 5.0, INCONCLUSIVE),
        (math.nan, math.nan, 0.02, INCONCLUSIVE),
    ],
)
def test_every_edge(low: float | None, high: float | None, margin: float, verdict: Verdict) -> None:
    assert compare(between(low, high), margin) is verdict


def test_a_speedup_is_compared_with_one() -> None:
    assert compare(between(1.1, 1.3, null=1.0)) is BETTER
    assert compare(between(0.9, 1.3, null=1.0)) is INCONCLUSIVE
    assert compare(between(0.99, 1.3, null=1.0), margin=0.02) is NOT_WORSE
    assert compare(between(0.5, 0.7, null=1.0)) is WORSE


def test_an_interval_that_compares_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="compares nothing"):
        compare(wilson_interval(9, 10))


@pytest.mark.parametrize("margin", [-0.01, math.nan, math.inf])
def test_margin_must_be_a_positive_number(margin: float) -> None:
    with pytest.raises(ConfigError, match="margin must be"):
        compare(between(0.0, 1.0), margin)


def test_verdicts_read_as_words() -> None:
    assert [str(v) for v in Verdict] == ["better", "worse", "not_worse", "inconclusive"]


def test_speedup_is_the_geometric_mean_of_paired_ratios() -> None:
    none_s, arm_s = np.array([1.0, 1.0, 8.0]), np.array([1.0, 0.25, 4.0])
    assert speedup(none_s, arm_s).estimate == pytest.approx(2.0)


def test_speedup_interval_is_the_exponential_of_the_log_ratio_interval() -> None:
    none_s, arm_s = pairs(60, factor=1.3)
    ratio, log_ratio = speedup(none_s, arm_s), mean_sequence(np.log(none_s / arm_s))
    assert log_ratio.low is not None
    assert log_ratio.high is not None
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(log_ratio.low), math.exp(log_ratio.high)))
    assert (ratio.n, ratio.confidence, ratio.null) == (60, 0.95, 1.0)
    assert compare(ratio) is BETTER


@given(st.floats(1e-3, 1e3))
def test_speedup_does_not_depend_on_the_unit_of_time(unit: float) -> None:
    none_s, arm_s = pairs(30)
    one, other = speedup(none_s, arm_s), speedup(unit * none_s, unit * arm_s)
    assert (one.low, one.estimate, one.high) == pytest.approx((other.low, other.estimate, other.high))


def test_swapping_the_arms_inverts_the_speedup() -> None:
    none_s, arm_s = pairs(30, factor=1.2)
    there, back = speedup(none_s, arm_s), speedup(arm_s, none_s)
    assert back.low is not None
    assert there.high == pytest.approx(1 / back.low)


def test_alpha_is_shared_by_the_arms() -> None:
    none_s, arm_s = pairs(40)
    shared = speedup(none_s, arm_s, alpha=0.06, arms=3)
    assert shared == speedup(none_s, arm_s, alpha=0.02)
    assert shared.confidence == pytest.approx(0.98)


def test_too_few_pairs_are_inconclusive() -> None:
    for n in (0, 1, 2):
        none_s, arm_s = pairs(n, factor=5.0)
        interval = speedup(none_s, arm_s)
        assert interval.low is None
        assert interval.high is None
        assert compare(interval) is INCONCLUSIVE


def test_a_bound_too_large_for_a_float_is_missing() -> None:
    none_s, arm_s = np.array([1e300, 1e-300] * 5), np.array([1e-300, 1e300] * 5)
    interval = speedup(none_s, arm_s)
    assert interval.low == 0.0
    assert interval.high is None


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
def test_seconds_must_be_positive_and_finite(bad: float) -> None:
    good_s = np.array([0.1, 0.2])
    with pytest.raises(TraceError, match="none_s must be positive"):
        speedup(np.array([0.1, bad]), good_s)
    with pytest.raises(TraceError, match="arm_s must be positive"):
        speedup(good_s, np.array([bad, 0.1]))


def test_pairs_must_match() -> None:
    with pytest.raises(TraceError, match=r"none_s has shape \(2,\) and arm_s \(1,\)"):
        speedup(np.ones(2), np.ones(1))
    with pytest.raises(TraceError, match="one-dimensional"):
        speedup(np.ones((2, 2)), np.ones((2, 2)))


def test_arms_must_be_counted() -> None:
    with pytest.raises(ConfigError, match="arms must be at least 1"):
        speedup(np.ones(2), np.ones(2), arms=0)


def false_alarms(none_s: Array, arm_s: Array) -> float:
    """Share of comparisons[runs, n] that are called BETTER or WORSE at any peek."""
    low, high = running(np.log(none_s / arm_s))
    last = zip(
        low[:, -1], high[:, -1], strict=True
    )  # running bounds are nested: the last ones hold every peek's verdict
    return float(np.mean([compare(between(*bounds)) in (BETTER, WORSE) for bounds in last]))


def test_a_a_comparisons_peeked_at_every_prompt_raise_few_false_alarms() -> None:
    rng = np.random.default_rng(7)
    prompt_s = 0.02 * rng.lognormal(0, 1, (2000, 96))
    none_s, arm_s = (prompt_s * rng.lognormal(0, 0.1, prompt_s.shape) for _ in range(2))
    assert 0 < false_alarms(none_s, arm_s) <= 0.05  # seen: 0.0195


def test_a_a_comparisons_on_a_machine_with_hiccups_raise_few_false_alarms() -> None:
    rng = np.random.default_rng(7)
    shape = (2000, 96)
    none_s, arm_s = (0.02 * rng.lognormal(0, 0.05, shape) * np.where(rng.random(shape) < 0.05, 3, 1) for _ in range(2))
    assert 0 < false_alarms(none_s, arm_s) <= 0.05  # seen: 0.0045


def test_a_real_speedup_is_found() -> None:
    found = [compare(speedup(*pairs(96, factor=1.1, seed=seed))) for seed in range(100)]  # 0.7 deviations
    assert found.count(BETTER) >= 95
    lost = [compare(speedup(*pairs(96, factor=1 / 1.1, seed=seed))) for seed in range(100)]
    assert lost.count(WORSE) >= 95
