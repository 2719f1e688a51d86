import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftgate.control.assemble import Options, lanes
from draftgate.control.breaker import Limits, Phase
from draftgate.control.lane import Lane
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet

BASE = PolicySet((Policy("mine", length=Fixed(6)),), "mine")


@pytest.fixture
def lane() -> Callable[[Any], Lane]:
    def make(plant: Any, controller: str = "goodput") -> Lane:
        limits = Limits(backoff_s=10.0, jitter=0.0)
        options = Options(controller, cost=plant.cost, knob="k", breaker=limits)
        (made,) = lanes(BASE, False, options, random.Random(0))
        return made

    return make


def serve(lane: Lane, plant: Any, windows: int) -> list[str]:
    """Actions on windows that each end with a look."""
    actions = []
    for _ in range(windows):
        actions.append(lane.take(plant.window(lane.setting), plant.now_s).action)
        lane.wait(plant.now_s, 0.0)
    return actions


def probing(lane: Lane, plant: Any) -> None:
    """Off because drafts were bad, and half-open just now."""
    serve(lane, plant, 5)
    good, plant.cond = plant.cond, 0.02
    assert "open" in serve(lane, plant, 1)
    while lane.breaker.phase is not Phase.HALF_OPEN:
        plant.now_s += 10.0
        lane.wait(plant.now_s, 0.0)
    plant.cond = good


def test_what_is_wrong_in_a_window_that_is_part_off_is_the_probes(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p, "pid")
    probing(made, p)
    p.cond = 0.02
    window = p.window(made.setting, start_s=p.now_s - 20.0)
    decision = made.take(window, p.now_s)
    assert decision.action == "open"


def test_a_good_window_that_is_part_off_counts_for_nothing(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p, "pid")
    probing(made, p)
    assert made.take(p.window(made.setting, start_s=p.now_s - 20.0), p.now_s).action == "hold"
    assert made.breaker.good == 0


def test_the_breaker_books_what_speculation_saved(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1, noise=0.0)
    made = lane(p, "pid")
    for _ in range(3):
        made._baseline.learn(p.window(OFF))
    window = p.window(Setting(True, None, 6, None))
    made.take(window, p.now_s)
    saved_s = window.committed / p.rate(OFF) - window.seconds
    assert saved_s > 0
    assert made.breaker.saved_s == pytest.approx(saved_s + 0.01 * window.seconds)


def test_a_setting_that_was_only_tried_is_left_when_it_is_bad(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.6, slope=0.1)
    made = lane(p)
    controller = made.controller
    while controller._home is None or not controller.setting.on:  # type: ignore[attr-defined]
        serve(made, p, 1)
        assert p.now_s < 1e5, "something is tried at some time"
    home = controller._settings[controller._home]  # type: ignore[attr-defined]
    assert home != controller.setting
    for _ in range(3):
        made._baseline.learn(p.window(OFF))
    decision = made.take(p.window(controller.setting, seconds=1e3), p.now_s)
    assert decision.action == "open"
    assert controller.setting == home
    assert not controller.trying


def test_acceptance_that_pid_lowers_is_no_drift(plant: Any) -> None:
    """Its acceptance falls slowly, and without step costs nobody knows whether speculation pays."""
    p = plant(cond=0.9)
    (made,) = lanes(BASE, False, Options("pid", cost=None, knob="k"), random.Random(0))
    actions = []
    for _ in range(40):
        p.cond -= 0.01
        actions += serve(made, p, 1)
    assert "open" not in actions


def shadow(plant: Any, cond: float) -> Window:
    """What drafts would have come to for the requests of the last window."""
    other = replace(plant, cond=cond, steps=300)
    window: Window = other.window(Setting(True, None, 6, None), seconds=0.0, shadow=True)
    return replace(window, start_s=plant.now_s, end_s=plant.now_s)


def opened(made: Lane, plant: Any) -> None:
    """Off because drafts were bad, a while ago."""
    serve(made, plant, 5)
    plant.cond = 0.02
    assert "open" in serve(made, plant, 3)
    while made.breaker.phase is not Phase.OPEN:
        serve(made, plant, 1)
    made.breaker.until_s = 1e9


def foreseen(made: Lane, plant: Any, cond: float) -> list[str]:
    """What a shadow leads to at a look."""
    decision, later = made.take(shadow(plant, cond), plant.now_s), made.wait(plant.now_s, 0.0)
    return [decision.action, *([] if later is None else [later.action])]


def test_a_shadow_that_pays_ends_the_wait_of_a_breaker(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    opened(made, p)
    assert foreseen(made, p, 0.02) == ["hold"]
    assert foreseen(made, p, 0.8) == ["half-open"]
    p.cond = 0.8
    assert "close" in serve(made, p, 3)


def test_a_shadow_without_hope_spares_a_probe(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.3)
    made = lane(p)
    opened(made, p)
    made.take(shadow(p, 0.02), p.now_s)
    assert made.wait(2e9, 0.0) is None
    p.now_s = 2e9
    assert foreseen(made, p, 0.8) == ["half-open"]


def test_shadows_of_drafts_that_are_wrong_mislead_once(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    opened(made, p)
    assert foreseen(made, p, 0.8) == ["half-open"]
    assert "open" in serve(made, p, 2)
    assert made.controller.setting.on, "the next probe needs drafts"
    made.breaker.until_s = 1e9
    for _ in range(20):
        assert foreseen(made, p, 0.8) == ["hold"]
        serve(made, p, 1)


def test_a_shadow_of_an_earlier_time_off_is_passed_over(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    opened(made, p)
    began_s = made._since_s
    assert made.take(replace(shadow(p, 0.8), start_s=began_s - 1.0), p.now_s).action == "hold"
    assert made.take(replace(shadow(p, 0.8), start_s=began_s), p.now_s).action == "half-open"


def test_a_shadow_says_nothing_of_what_else_was_wrong(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    serve(made, p, 5)
    made.open("outputs are invalid", p.now_s)
    made.breaker.until_s = 1e9
    assert foreseen(made, p, 0.8) == ["hold"]
    assert not made.setting.on


def test_a_shadow_leads_back_from_a_controllers_off(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    serve(made, p, 1)
    made.controller.setting = OFF
    assert foreseen(made, p, 0.02) == ["hold"]
    assert foreseen(made, p, 0.8) == ["change"]
    assert made.setting.on
    assert made.take(shadow(p, 0.8), p.now_s).action == "hold", "from before the change"


def test_a_shadow_that_cannot_be_true_changes_nothing(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p)
    made.controller.setting = OFF
    decision = made.take(replace(shadow(p, 0.8), start_s=0.0, accepted=10**9), p.now_s)
    assert (decision.action, decision.reason[:31]) == ("hold", "the metrics make no sense: more")


def test_a_controller_that_knows_no_times_takes_nothing_from_a_shadow(lane: Callable[..., Lane], plant: Any) -> None:
    p = plant(cond=0.8, slope=0.1)
    made = lane(p, "pid")
    opened(made, p)
    assert foreseen(made, p, 0.8) == ["hold"]
