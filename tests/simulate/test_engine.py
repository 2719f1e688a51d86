from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftgate.control.counters import CounterWindows
from draftgate.control.fetch import SourceError
from draftgate.control.setting import OFF, Setting
from draftgate.errors import ConfigError
from draftgate.policy.policyset import PolicySet
from draftgate.simulate.engine import Engine
from draftgate.simulate.plant import Conditions, Plant
from draftgate.simulate.scenario import SCENARIOS, Moment, Now, scenario_named

EDIT = Conditions((("code-edit", 1.0),))
ON = Setting(True, None, 7, None)


@pytest.fixture
def engine(plant: Plant) -> Callable[..., Engine]:
    def make(scenario: Callable[[Moment], Now] = lambda at: Now(EDIT), period: int = 30_000, **more: Any) -> Engine:
        windows = CounterWindows(size=300, most_s=60.0)
        return Engine(plant, scenario, ON, period, np.random.default_rng(0), windows, **more)

    return make


def windows(engine: Engine, looks: int) -> list[Any]:
    found = []
    for _ in range(looks):
        engine.advance(10.0)
        found += engine.poll()
    return found


def test_windows_show_what_was_served(engine: Callable[..., Engine]) -> None:
    e = engine()
    e.advance(10.0)
    e.poll()
    before, tokens = e.served, e.tokens
    found = windows(e, 20)
    assert len(found) >= 4
    assert all(w.flaw() is None and w.batch == 1.0 for w in found)
    assert all(300 <= w.requests < 500 for w in found)
    seen = sum(w.requests for w in found)
    assert seen <= e.served - before
    assert sum(w.committed for w in found) == pytest.approx((e.tokens - tokens) * seen / (e.served - before), rel=0.05)
    assert sum(w.seconds for w in found) == pytest.approx(found[-1].end_s - found[0].start_s, rel=0.01)


def test_policies_take_effect_a_moment_after_they_are_written(engine: Callable[..., Engine], plant: Plant) -> None:
    begun = []
    e = engine(took=lambda e, now, begun_s: begun.append((begun_s, e.setting.on)))
    policies = PolicySet((OFF.applied_to(plant.policy),), plant.policy.name)
    assert e.in_force() is None
    at_s = e.now_s
    e.write(policies)
    e.advance(10.0)
    assert e.in_force() == policies.digest()
    first_off_s = next(s for s, on in begun if not on)
    assert 1.0 < first_off_s - at_s < 3.0


def test_a_restart_and_a_reset_start_the_counters_again(engine: Callable[..., Engine]) -> None:
    for event in ("restart", "reset"):
        e = engine(lambda at, event=event: Now(EDIT, event=event if at.request > 2000 else None))
        before = e.scrape()
        while e.served < 2500:
            e.advance(10.0)
            e.poll()
        after = e.scrape()
        assert after.requests < 1000
        assert (after.started_s == before.started_s) == (event == "reset")
        assert e.windows.restarts == 1


def test_late_metrics_show_the_past_and_lost_ones_nothing(engine: Callable[..., Engine]) -> None:
    late = engine(lambda at: Now(EDIT, delay_s=30.0))
    found = windows(late, 30)
    assert found
    assert all(w.end_s <= late.now_s - 30.0 for w in found)
    lost = engine(lambda at: Now(EDIT, lost=True))
    with pytest.raises(SourceError):
        windows(lost, 1)


def test_without_gauges_and_histograms_nothing_is_made_up(engine: Callable[..., Engine]) -> None:
    """Nor is what was counted before taken for what happened since, when they come back."""
    e = engine(lambda at: Now(EDIT, bare=at.request < 3000))
    found = windows(e, 60)
    bare = [w for w in found if w.batch is None]
    assert bare
    assert all(w.seconds == 0 and w.flaw() is None for w in bare)
    whole = [w for w in found if w.batch is not None]
    assert max(w.seconds for w in whole) < 100
    assert sum(w.seconds > 0 for w in whole) >= len(whole) - 1


def test_a_request_longer_than_a_look_is_served_all_the_same(engine: Callable[..., Engine]) -> None:
    e = engine(lambda at: Now(replace(EDIT, clock=1000.0)))
    e.advance(10.0)
    assert e.served == 1


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_give_a_world_at_every_moment(plant: Plant, name: str) -> None:
    scenario = scenario_named(name)
    assert scenario.__doc__
    for request in range(0, 60_000, 777):
        for on in (True, False):
            now = scenario(Moment(request, 30_000, on, request % 5000, ("code-edit", "chat")))
            assert 0 <= now.under.wrong <= 1
            assert plant.rate(ON, now.under) > 0


def test_the_adversary_is_wrong_only_when_it_hurts(plant: Plant) -> None:
    def wrong(on: bool) -> float:
        return SCENARIOS["adversarial"](Moment(0, 30_000, on, 0, ("code-edit",))).under.wrong

    assert (wrong(True), wrong(False)) == (1.0, 0.0)


def test_an_unknown_scenario_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'draft-swap'"):
        scenario_named("draft_swap")


def test_shadows_are_what_drafts_would_have_come_to(engine: Callable[..., Engine], plant: Plant) -> None:
    """Only of requests that ran without them, and as if the drafts were right."""
    e = engine(lambda at: Now(replace(EDIT, wrong=1.0)), shadows=300)
    assert not [w for w in windows(e, 10) if w.shadow]
    e.write(PolicySet((OFF.applied_to(plant.policy),), plant.policy.name))
    e.advance(10.0)
    served = e.served
    shadows = [w for w in windows(e, 60) if w.shadow]
    assert all(w.flaw() is None and w.requests >= 300 and w.seconds == 0 for w in shadows)
    assert 0 <= e.served - served - sum(w.requests for w in shadows) < 300
    right = plant.run(100_000, ON, EDIT, np.random.default_rng(1))
    assert sum(w.accepted for w in shadows) / sum(w.steps for w in shadows) == pytest.approx(
        sum(right.kept) / right.steps, rel=0.03
    )
