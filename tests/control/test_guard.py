import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftgate.control.guard import (
    Collapse,
    Drift,
    GoodputFloor,
    Guard,
    LatencySlo,
    Sane,
    Seen,
    Slower,
    Staleness,
    ValidityFloor,
)
from draftgate.control.setting import Setting
from draftgate.control.window import Window
from draftgate.errors import ConfigError

ON = Setting(True, None, 4, None)


class Says(Guard):
    """Trips when its word is in the workload's name; counts how often it was asked."""

    def __init__(self, word: str) -> None:
        self.word, self.asked, self.resets = word, 0, 0

    def _reason(self, seen: Seen) -> str | None:
        self.asked += 1
        return self.word if seen.window and self.word in seen.window.workload else None

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def seen(plant: Any) -> Callable[..., Seen]:
    def make(baseline: float | None = None, trying: bool = False, **fields: Any) -> Seen:
        return Seen(plant(noise=0.0).window(ON, **fields), baseline, 0.0, trying)

    return make


@pytest.mark.parametrize(
    ("workload", "either", "both"),
    [("a b", "a", "a; b"), ("a", "a", None), ("b", "b", None), ("c", None, None)],
)
def test_guards_combine(seen: Callable[..., Seen], workload: str, either: str | None, both: str | None) -> None:
    assert (Says("a") | Says("b"))(seen(workload=workload)) == either
    assert (Says("a") & Says("b"))(seen(workload=workload)) == both


def test_and_binds_closer_than_or(seen: Callable[..., Seen]) -> None:
    guard = Says("a") | Says("b") & Says("c")
    assert guard(seen(workload="b")) is None
    assert guard(seen(workload="bc")) == "b; c"
    assert guard(seen(workload="a")) == "a"


def test_every_part_sees_every_window_and_every_reset(seen: Callable[..., Seen]) -> None:
    a, b, c = Says("a"), Says("b"), Says("c")
    guard = a | b & c
    for _ in range(3):
        guard(seen(workload="a"))
    guard.reset()
    assert [(g.asked, g.resets) for g in (a, b, c)] == [(3, 1)] * 3


@pytest.mark.parametrize(("loss", "windows"), [(0.30, 1), (0.20, 1), (0.05, 4), (0.019, None), (0.0, None)])
def test_goodput_below_the_floor_trips_the_sooner_the_more_is_lost(
    seen: Callable[..., Seen], loss: float, windows: int | None
) -> None:
    rate = seen().window.tokens_per_s
    guard = GoodputFloor()
    tripped = [i for i in range(1, 50) if guard(seen(baseline=rate / (1 - loss)))]
    assert (tripped[0] if tripped else None) == windows


def test_invalid_tokens_are_no_goodput(seen: Callable[..., Seen]) -> None:
    rate = seen().window.tokens_per_s
    assert GoodputFloor()(seen(baseline=rate)) is None
    assert "below 98%" in (GoodputFloor()(seen(baseline=rate, judged=100, valid=70)) or "")


def test_goodput_needs_a_baseline_evidence_and_a_setting_that_is_meant(seen: Callable[..., Seen]) -> None:
    guard = GoodputFloor()
    assert guard(seen(baseline=None)) is None
    assert guard(seen(baseline=1e9, steps=100, covered=100, drafted=400)) is None
    assert guard(seen(baseline=1e9, trying=True)) is None
    assert guard(seen(baseline=1e9)) is not None


def test_noise_of_a_setting_that_pays_never_trips(plant: Any) -> None:
    """10% gain, 5% noise a window, 20,000 windows."""
    rng = np.random.default_rng(0)
    window, guard = plant(noise=0.0).window(ON), GoodputFloor()
    rates = 1.1 * np.exp(0.05 * rng.normal(size=20_000))
    windows = (replace(window, seconds=window.committed / (100 * rate)) for rate in rates)
    assert not any(guard(Seen(w, 100.0)) for w in windows)


def test_validity_trips_with_evidence_only(seen: Callable[..., Seen]) -> None:
    guard = ValidityFloor(0.95)
    assert guard(seen(judged=5, valid=0)) is None, "five outputs prove nothing"
    assert "of 100 judged" in (guard(seen(judged=100, valid=80)) or "")
    assert guard(seen(judged=0, valid=0)) is None


def test_validity_at_its_floor_is_left_alone() -> None:
    """Windows of 300 outputs at 96% valid: at most one false alarm in 300,000 outputs."""
    rng = np.random.default_rng(1)
    guard = ValidityFloor(0.95)
    empty = Window("w", "p", 0.0, 0.0, 0, 0, 0, 0, 0, 0, (), (), (), 0.0, None, 0, 0, None, 0)
    alarms = [guard(Seen(replace(empty, judged=300, valid=int(rng.binomial(300, 0.96))))) for _ in range(1000)]
    assert sum(a is not None for a in alarms) <= 1


def test_a_collapse_is_seen_at_once_and_a_slide_is_followed(of_rate: Callable[..., Window]) -> None:
    guard = Collapse()
    assert guard(Seen(of_rate(0.7))) is None
    assert "fell to 20% from 70%" in (guard(Seen(of_rate(0.2))) or "")
    assert guard(Seen(of_rate(0.7))) is None
    assert guard(Seen(of_rate(0.0, drafted=10))) is None, "ten tokens are no evidence"
    assert not any(Collapse()(Seen(of_rate(r))) for r in np.linspace(0.78, 0.30, 200))


def test_drift_sees_a_slide_that_collapse_does_not(of_rate: Callable[..., Window]) -> None:
    rates = [0.7] * 30 + list(np.linspace(0.7, 0.5, 20))
    drift, collapse = Drift(), Collapse()
    assert any(drift(Seen(of_rate(r))) for r in rates)
    assert not any(collapse(Seen(of_rate(r))) for r in rates)
    rng = np.random.default_rng(0)
    assert not any(Drift()(Seen(of_rate(r))) for r in 0.7 + 0.01 * rng.normal(size=2000))


def test_latency_must_miss_its_target_twice(seen: Callable[..., Seen]) -> None:
    guard = LatencySlo(0.05)
    late, fine, unknown = seen(latency_s=0.06), seen(latency_s=0.04), seen()
    assert [guard(s) is not None for s in (late, fine, late, unknown, late)] == [False, False, False, False, True]


def test_latency_counts_only_where_speculation_does_not_pay(seen: Callable[..., Seen]) -> None:
    rate = seen().window.tokens_per_s
    guard = LatencySlo(0.05, windows=1) & Slower()
    assert guard(seen(latency_s=0.06, baseline=0.5 * rate)) is None
    assert guard(seen(latency_s=0.06, baseline=2 * rate)) is not None
    assert "not known" in (guard(seen(latency_s=0.06)) or "")


def test_staleness_and_nonsense() -> None:
    assert Staleness(60)(Seen(None, age_s=60.0)) is None
    assert "no metrics for 61 s" in (Staleness(60)(Seen(None, age_s=61.0)) or "")
    broken = Window("w", "p", 0.0, 1.0, 1, 1, 1, 1, 2, 1, (), (), (), math.nan, None, 0, 0, None, 0)
    assert "NaN" in (Sane()(Seen(broken)) or "")
    assert Sane()(Seen(None)) is None


def test_a_reset_guard_is_like_a_new_one(seen: Callable[..., Seen], of_rate: Callable[..., Window]) -> None:
    rate = seen().window.tokens_per_s
    for guard, almost in (
        (GoodputFloor(), seen(baseline=1.1 * rate)),
        (ValidityFloor(0.95), seen(judged=20, valid=14)),
        (LatencySlo(0.05), seen(latency_s=0.06)),
    ):
        for _ in range(20):
            assert guard(almost) is None
            guard.reset()
    collapse = Collapse()
    collapse(Seen(of_rate(0.9)))
    collapse.reset()
    assert collapse(Seen(of_rate(0.2))) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Staleness(0),
        lambda: GoodputFloor(0.0),
        lambda: GoodputFloor(1.5),
        lambda: ValidityFloor(0.4),
        lambda: Collapse(1.0),
        lambda: LatencySlo(-1),
        lambda: LatencySlo(1, windows=0),
    ],
)
def test_wrong_limits_are_refused(make: Callable[[], Guard]) -> None:
    with pytest.raises(ConfigError):
        make()
