import random
from collections.abc import Callable
from typing import Any

import pytest

from draftgate.control.assemble import Options, lanes
from draftgate.control.breaker import Limits, Phase
from draftgate.control.lane import Lane
from draftgate.control.setting import OFF, Setting
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
