"""The loop on a plant. Assumptions, under which goodput ends within 3% of the best setting and keeps its budget:

- every drafted token is kept with the same chance, which is steady for 60 windows or moves as the test says;
- a window has 2,000 steps, and its seconds vary by 2%;
- step costs are measured up to a factor that all settings share.
"""

import json
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftgate.control.controller import Foresight
from draftgate.control.goodput import Candidate, Goodput
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError

MOST = 8
LENGTHS = [Setting(True, None, k, None) for k in range(1, MOST + 1)]


def goodput(cost: StepCost, setting: Setting, seed: int = 0, **options: Any) -> Goodput:
    return Goodput([Candidate(s, True) for s in LENGTHS], cost, setting, random.Random(seed), **options)


def regrets(controller: Goodput, plant: Any, n: int, during: Callable[[int], None] = lambda t: None) -> np.ndarray:
    """Share of the best throughput that each of n windows missed."""
    seen = []
    for t in range(n):
        during(t)
        seen.append(1 - plant.rate(controller.setting) / plant.rate(plant.best(MOST)))
        controller.update(plant.window(controller.setting))
    return np.array(seen)


@given(
    cond=st.floats(0.05, 0.98),
    slope=st.floats(0.02, 0.9),
    batch=st.sampled_from([1.0, 8.0, 32.0]),
    start=st.integers(0, MOST),
    clock=st.floats(0.3, 3.0),
    seed=st.integers(0, 1000),
)
@example(cond=0.0625, slope=0.75, batch=1.0, start=1, clock=1.0, seed=0)  # a bad window takes four times as long
@example(cond=0.25, slope=0.875, batch=1.0, start=4, clock=1.0, seed=0)  # a try takes twice its price
@settings(max_examples=25)
def test_it_finds_what_pays_and_keeps_its_budget(
    plant: Any, cond: float, slope: float, batch: float, start: int, clock: float, seed: int
) -> None:
    p = plant(cond=cond, slope=slope, batch=batch, seed=seed)
    elsewhere = plant(slope=slope).cost.to_mapping()
    for curve in elsewhere["curves"]:
        curve["seconds"] = [clock * s for s in curve["seconds"]]
    controller = goodput(StepCost.from_mapping(elsewhere), Setting(start > 0, None, start, None), seed)
    missed, longest_s = [], 0.0
    for _ in range(120):
        before_s = controller.seen_s
        missed += regrets(controller, p, 1).tolist()
        longest_s = max(longest_s, controller.seen_s - before_s)
    assert np.mean(missed[60:]) <= 0.03
    # What a window really loses is known afterwards, and may be several times its price; but over budget none is tried.
    assert controller.explored_s <= 0.005 * controller.seen_s + longest_s


def test_on_average_it_keeps_its_budget(plant: Any) -> None:
    spent = []
    for cond, slope, start in product([0.1, 0.3, 0.5, 0.7, 0.9], [0.05, 0.3, 0.875], [0, 4, 8]):
        p = plant(cond=cond, slope=slope, seed=len(spent))
        controller = goodput(p.cost, Setting(start > 0, None, start, None), len(spent))
        regrets(controller, p, 120)
        spent.append(controller.explored_s / controller.seen_s)
    assert np.mean(spent) <= 0.005


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_that_falls_switches_off_and_comes_back_by_itself(plant: Any, seed: int) -> None:
    """From 78% to 30% within 60 windows, 60 windows there, and back at once."""
    p = plant(cond=0.78, slope=0.3, seed=seed)
    controller = goodput(p.cost, LENGTHS[4], seed)

    def drift(t: int) -> None:
        p.cond = 0.78 - 0.48 * min(t / 60, 1.0) if t < 120 else 0.78

    missed = regrets(controller, p, 220, drift)
    assert missed[:60].mean() <= 0.03
    assert missed[70:120].mean() <= 0.03
    assert missed[170:].mean() <= 0.03
    assert controller.setting.on


def test_off_wins_ties(plant: Any) -> None:
    """Drafts that are never kept but cost nothing are as fast as none: none is chosen."""
    p = plant(cond=0.0, slope=0.0, noise=0.0)
    controller = goodput(p.cost, LENGTHS[2], explore=0.0)
    regrets(controller, p, 10)
    assert controller.setting == OFF


def test_a_gain_below_the_hysteresis_is_left(plant: Any) -> None:
    p = plant(cond=0.5, slope=0.1, noise=0.0)
    near = max((s for s in LENGTHS if s != p.best(MOST)), key=p.rate)
    assert p.rate(near) > 0.98 * p.rate(p.best(MOST))
    controller = goodput(p.cost, near, explore=0.0)
    assert all(controller.update(p.window(near)) is None for _ in range(10))


def test_what_the_quality_gate_refuses_is_never_used(plant: Any) -> None:
    p = plant(cond=0.9, slope=0.05)
    candidates = [Candidate(s, s.k <= 2) for s in LENGTHS]
    controller = Goodput(candidates, p.cost, OFF, random.Random(0))
    used = []
    for _ in range(200):
        controller.update(p.window(controller.setting))
        used.append(controller.setting.k)
    assert max(used) == 2


def test_thresholds_are_told_apart(plant: Any) -> None:
    """Two thresholds, one of which keeps more: it is found from the other."""
    loose, strict = plant(cond=0.8, slope=0.2, seed=1), plant(cond=0.4, slope=0.2, seed=2)
    of = {0.1: loose, 0.5: strict}
    candidates = [Candidate(Setting(True, tau, k, None), True) for tau in of for k in range(1, MOST + 1)]
    controller = Goodput(candidates, loose.cost, Setting(True, 0.5, 1, None), random.Random(3))
    at = []
    for _ in range(150):
        s = controller.setting
        controller.update(of[s.tau or 0.1].window(s))
        at.append(s.tau)
    assert at[100:].count(0.1) >= 45


def test_positions_beyond_the_present_k_are_learned_from_one_long_window(plant: Any) -> None:
    p = plant(cond=0.9, slope=0.05, noise=0.0)
    controller = goodput(p.cost, LENGTHS[7], explore=0.0)
    controller.update(p.window(LENGTHS[7]))
    believed = controller._ways[None, None].conditional()
    assert believed == pytest.approx([0.9] * MOST, abs=0.03)


def test_nothing_hopeless_is_tried(plant: Any) -> None:
    """Where even full acceptance loses, off is never left."""
    p = plant(cond=0.9, slope=1.5)
    assert p.best(MOST) == OFF
    controller = goodput(p.cost, OFF)
    missed = regrets(controller, p, 300)
    assert missed.max() == 0.0


def test_small_windows_decide_nothing(plant: Any) -> None:
    p = plant(cond=0.1, slope=0.5, steps=100)
    controller = goodput(p.cost, LENGTHS[7])
    assert all(controller.update(p.window(LENGTHS[7])) is None for _ in range(20))
    assert controller.seen_s == 0


def test_a_restart_changes_nothing_that_was_learned(plant: Any) -> None:
    p = plant(cond=0.6)
    first, second = goodput(p.cost, LENGTHS[3]), goodput(p.cost, OFF)
    regrets(first, p, 20)
    second.restore(json.loads(json.dumps(first.to_mapping())))
    assert second.to_mapping() == first.to_mapping()


@pytest.mark.parametrize("damage", [{"ways": 3}, {"bias": {"off": 1}}, {"ways": [{"tau": None}]}, {"seen_s": "x"}])
def test_damaged_state_is_refused(plant: Any, damage: dict[str, object]) -> None:
    controller = goodput(plant().cost, OFF)
    with pytest.raises(ConfigError):
        controller.restore(controller.to_mapping() | damage)


def test_state_of_other_draft_lengths_is_refused(plant: Any) -> None:
    cost = plant().cost
    short = Goodput([Candidate(LENGTHS[1], True)], cost, OFF, random.Random(0))
    with pytest.raises(ConfigError, match="8 positions"):
        goodput(cost, OFF).restore(short.to_mapping())


def test_without_an_allowed_candidate_there_is_nothing_to_choose(plant: Any) -> None:
    with pytest.raises(ConfigError, match="passed the quality gate"):
        Goodput([Candidate(LENGTHS[0], False)], plant().cost, OFF, random.Random(0))


def shadow(p: Any, k: int = MOST, **fields: Any) -> Window:
    """What drafts would have come to while off."""
    window: Window = p.window(Setting(True, None, k, None), seconds=0.0, shadow=True, **fields)
    return window


@given(cond=st.floats(0.05, 0.98), slope=st.floats(0.02, 0.9), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_a_shadow_leads_to_what_pays_and_to_nothing_else(plant: Any, cond: float, slope: float, seed: int) -> None:
    """Whatever is in force otherwise: the plant of before kept nothing."""
    p = plant(cond=cond, slope=slope, seed=seed)
    controller = goodput(p.cost, LENGTHS[-1], seed, explore=0.0)
    regrets(controller, plant(cond=0.0, slope=slope), 10)
    assert controller.setting == OFF
    foresight = controller.foresee(shadow(p))
    gain = p.rate(p.best(MOST)) / p.rate(OFF) - 1
    if foresight.change is not None:
        assert p.rate(controller.setting) > p.rate(OFF)
        assert p.rate(controller.setting) >= 0.93 * p.rate(p.best(MOST))
        assert not foresight.hopeless
    else:
        assert controller.setting == OFF
        assert gain < 0.25
    if foresight.hopeless:
        assert gain < 0.03


def test_a_small_shadow_and_one_of_other_drafts_say_nothing(plant: Any) -> None:
    p = plant(cond=0.9, slope=0.1, steps=49)
    assert goodput(p.cost, OFF).foresee(shadow(p)) == Foresight()
    p.steps = 50
    assert goodput(p.cost, OFF).foresee(shadow(p)).change is not None
    lossy = Goodput([Candidate(Setting(True, 0.3, 4, None), True)], p.cost, OFF, random.Random(0))
    assert lossy.foresee(shadow(p)) == Foresight()


def test_only_bad_shadows_are_hopeless_and_they_leave_no_trace(plant: Any) -> None:
    p = plant(cond=0.05, slope=0.3)
    controller = goodput(p.cost, OFF)
    before = controller.to_mapping()
    assert controller.foresee(shadow(p)) == Foresight(hopeless=True)
    assert controller.to_mapping() == before
