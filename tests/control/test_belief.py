from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.control.baseline import Baseline
from draftgate.control.belief import Acceptance, Bias, StepTable, conditional_of
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.cost.steps import Curve, StepCost
from draftgate.errors import ConfigError


@pytest.fixture
def window(of_rate: Callable[..., Window]) -> Callable[..., Window]:
    """1,000 steps of which 800 drafted, with these counts by position."""

    def make(kept: tuple[int, ...], offered: tuple[int, ...]) -> Window:
        return replace(of_rate(0.5), steps=1000, covered=800, kept=kept, reached=offered, offered=offered)

    return make


def test_each_position_has_its_own_chance(window: Callable[..., Window]) -> None:
    a = Acceptance(np.full(4, 0.5))
    a.learn(window((720, 360, 90), (800, 800, 800)), k=3)
    assert a.conditional()[:3] == pytest.approx([0.9, 0.5, 0.25], abs=0.01)
    assert a.coverage == pytest.approx(0.8, abs=0.01)
    assert a.committed()[[0, 3]] == pytest.approx([1, 1 + 0.8 * (0.9 + 0.45 + 0.1125)], abs=0.03)


def test_a_short_window_says_nothing_of_later_positions(window: Callable[..., Window]) -> None:
    a = Acceptance(np.full(3, 0.5))
    a.learn(window((720, 360, 90), (800, 800, 800)), k=3)
    before = a.conditional()
    a.learn(window((720, 0, 0), (800, 0, 0)), k=1)
    assert a.conditional()[1:] == pytest.approx(before[1:], abs=1e-3)
    assert a.shares()[1] == pytest.approx(0.8, abs=0.01)


@given(st.floats(0.01, 0.99), st.integers(1, 8))
def test_with_equal_chances_every_length_keeps_what_cutting_says(chance: float, most: int) -> None:
    a = Acceptance(np.full(most, chance))
    assert a.committed() == pytest.approx(1 + np.concatenate(([0], (chance ** np.arange(1, most + 1)).cumsum())))


def test_runs_that_go_on_count_for_short_drafts_too() -> None:
    """Half of the drafts fail at once, the others hold for four tokens: at k = 1 a run of four is two drafts more.

    Per run, drafts of one begin at positions 0 and 2: 1 + .5 steps that keep .5 + .5 tokens.
    """
    a = Acceptance(np.array([0.5, 1.0, 1.0, 1.0]))
    assert a.committed()[:2] == pytest.approx([1.0, 1 + 1.0 / 1.5])
    assert a.committed()[4] == pytest.approx(1 + 0.5 * 4)


def test_drafts_that_end_early_cost_less_than_long_ones(window: Callable[..., Window]) -> None:
    a = Acceptance(np.full(2, 0.5))
    a.learn(window((720, 180), (800, 200)), k=2)
    assert a.shares() == pytest.approx([0.8, 0.2], abs=0.01)


def test_unseen_positions_follow_the_last_one_seen(window: Callable[..., Window]) -> None:
    a = Acceptance(np.full(4, 0.5))
    a.learn(window((760,), (800,)), k=1)
    assert a.conditional() == pytest.approx([0.95] * 4, abs=0.01)


def test_what_is_forgotten_is_hoped_for_again(window: Callable[..., Window]) -> None:
    a = Acceptance(np.full(1, 0.5))
    a.learn(window((80,), (800,)), k=1)
    seen = a.conditional(2.0)[0]
    for _ in range(100):
        a.forget(0.87)
    assert seen < 0.15
    assert a.conditional(2.0)[0] > 0.9


@given(st.lists(st.floats(0, 1), max_size=6), st.integers(1, 8))
def test_priors_are_chances(survival: list[float], most: int) -> None:
    prior = conditional_of(sorted(survival, reverse=True), most)
    assert prior.shape == (most,)
    assert ((prior >= 0) & (prior <= 1)).all()


def test_costs_are_linear_between_measured_batch_sizes_and_flat_outside() -> None:
    curves = {b: Curve(b, (0.01 * b, 0.02 * b), (0.0, 0.0), 9) for b in (2, 4)}
    table = StepTable(StepCost(curves), 1)
    assert table.step_s(3.0) == pytest.approx([0.03, 0.06])
    assert table.step_s(1.0) == pytest.approx([0.02, 0.04])
    assert table.step_s(99.0) == pytest.approx([0.04, 0.08])
    alone = StepTable(StepCost({2: curves[2]}), 1)
    assert alone.step_s(9.0) == pytest.approx([0.02, 0.04])


def test_what_all_settings_share_cancels_and_what_one_has_for_itself_counts() -> None:
    bias = Bias()
    for _ in range(20):
        for name in ("a", "b"):
            bias.learn(name, 200.0, 100.0)
    assert bias.factors(["a", "b", "unseen"]) == pytest.approx([1.0, 1.0, 1.0])
    for _ in range(20):
        bias.learn("a", 200.0, 100.0)
        bias.learn("b", 160.0, 100.0)
    a, b = bias.factors(["a", "b"])
    assert b / a == pytest.approx(0.8, abs=0.02)
    assert Bias().factors(["x"])[0] == 1.0


def test_a_change_of_the_world_is_not_held_against_the_setting_in_force() -> None:
    """The machine slows down, and is fast again; meanwhile one setting runs."""
    bias = Bias()
    for measured in (200.0,) * 10 + (100.0,) * 10 + (200.0,) * 5:
        bias.learn("a", measured, 100.0)
    bias.learn("b", 170.0, 100.0)
    a, b = bias.factors(["a", "b"])
    assert a == 1.0
    assert 0.85 < b < 0.95


def test_what_was_not_seen_for_long_is_not_known_any_more() -> None:
    bias = Bias()
    for name in ("a", "b"):
        bias.learn(name, 200.0 if name == "a" else 160.0, 100.0)
    before = bias.spreads(["b", "unseen"])
    for _ in range(200):
        bias.learn("a", 200.0, 100.0)
    after = bias.spreads(["b", "unseen"])
    assert before[0] < 0.8 * before[1]
    assert after[0] > 0.99 * after[1]
    assert bias.factors(["b"])[0] > 0.99


def test_a_baseline_is_measured_where_it_can_be(plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1, noise=0.0)
    b = Baseline()
    assert b.at(1.0) is None
    b.learn(p.window(Setting(True, None, 3, None)))
    assert b.at(1.0) is None, "a window with drafts is no baseline"
    b.learn(p.window(OFF))
    assert b.at(1.0) == pytest.approx(p.rate(OFF))
    assert b.at(1.3) == b.at(1.0)
    assert b.at(8.0) is None


def test_a_host_that_paused_for_a_window_is_not_believed(plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1, noise=0.0)
    b = Baseline()
    b.learn(p.window(OFF))
    b.learn(p.window(OFF, seconds=1e6))
    assert b.at(1.0) == pytest.approx(p.rate(OFF), rel=0.09)
    bias = Bias()
    for name, measured in (("a", 100.0), ("b", 1e-3), ("a", 100.0)):
        bias.learn(name, measured, 100.0)
    assert bias.factors(["b"])[0] > 0.8


def test_without_a_window_off_the_costs_say_it(plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1, noise=0.0)
    b = Baseline(StepTable(p.cost, 8))
    assert b.at(1.0) is None
    b.learn(p.window(Setting(True, None, 4, None)))
    assert b.at(1.0) == pytest.approx(p.rate(OFF), rel=0.03)
    other = Baseline(StepTable(p.cost, 8))
    other.restore(b.to_mapping())
    assert other.at(1.0) == b.at(1.0)


def test_damaged_beliefs_are_refused() -> None:
    a = Acceptance(np.full(2, 0.5))
    for damage in ({"kept": [1.0]}, {"steps": "x"}, {"before": [float("nan"), 1.0]}):
        with pytest.raises(ConfigError):
            a.restore(a.to_mapping() | damage)
    for damaged in ({}, {"seen": 3, "ratio": None}, {"seen": {"x": 1.0}, "ratio": None}):
        with pytest.raises(ConfigError):
            Baseline().restore(damaged)
