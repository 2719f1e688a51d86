import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from draftgate.control.breaker import Breaker, Limits, Phase
from draftgate.errors import ConfigError

LIMITS = Limits(backoff_s=60.0, cap_s=600.0, jitter=0.2, probes=2, steady=5, allowance=0.0, least_steps=200)


def breaker(limits: Limits = LIMITS, seed: int = 0) -> Breaker:
    return Breaker(limits, random.Random(seed))


def test_it_opens_at_once_probes_later_and_closes_after_good_windows() -> None:
    b = breaker()
    b.open("slow", 1000.0)
    assert (b.phase, b.on, b.reason) == (Phase.OPEN, False, "slow")
    assert not b.wait(1000.0 + 60 * 0.79)
    assert b.wait(1000.0 + 60 * 1.21)
    assert (b.phase, b.on) == (Phase.HALF_OPEN, True)
    assert [b.passed(1000), b.passed(1000)] == [False, True]
    assert b.phase is Phase.CLOSED


def test_small_windows_are_no_evidence() -> None:
    b = breaker()
    b.open("slow", 0.0)
    b.wait(1e6)
    assert not any(b.passed(199) for _ in range(100))
    assert b.phase is Phase.HALF_OPEN


@given(st.integers(1, 80), st.integers(0, 100))
def test_backoff_grows_by_half_up_to_the_cap_within_jitter(openings: int, seed: int) -> None:
    b = breaker(seed=seed)
    for i in range(openings):
        b.open("slow", 0.0)
        expected = min(60 * 1.5**i, 600.0)
        assert 0.8 * expected <= b.until_s <= 1.2 * expected


def opened_thrice() -> Breaker:
    """Half-open after three openings in a row."""
    b = breaker()
    for _ in range(3):
        b.open("slow", 0.0)
        b.wait(1e6)
    assert b.opened == 3
    return b


@pytest.mark.parametrize(("saved_s", "opened"), [((30.0, 20.0, -40.0), 1), ((30.0, 20.0, -60.0), 4)])
def test_the_next_backoff_is_short_again_when_being_on_has_paid(saved_s: tuple[float, ...], opened: int) -> None:
    b = opened_thrice()
    for seconds in saved_s:
        b.count(60.0, seconds)
    b.open("slow", 0.0, slow=True)
    assert b.opened == opened


@pytest.mark.parametrize(("good", "opened"), [(5, 1), (4, 4)])
def test_where_time_was_not_lost_it_must_have_been_good_for_long(good: int, opened: int) -> None:
    """Outputs that are not valid, for one: drafts that save time do not excuse them."""
    b = opened_thrice()
    for _ in range(LIMITS.probes + good):
        b.count(60.0, 10.0)
        b.passed(1000)
    b.open("invalid", 0.0)
    assert b.opened == opened


def test_failed_probes_must_be_earned_back() -> None:
    b = breaker()
    b.count(60.0, 1000.0)
    b.open("slow", 0.0, slow=True)
    for _ in range(2):
        b.wait(1e6)
        b.count(30.0, -20.0)
        b.open("slow", 0.0, slow=True)
    b.wait(1e6)
    b.count(60.0, 30.0)
    b.open("slow", 0.0, slow=True)
    assert b.opened == 4, "30 s saved are less than 40 s lost"
    b.wait(1e6)
    b.count(60.0, 30.0)
    b.open("slow", 0.0, slow=True)
    assert b.opened == 1


def test_a_share_of_the_time_may_be_lost() -> None:
    b = breaker(Limits(allowance=0.01))
    b.count(1000.0, -9.0)
    b.open("slow", 0.0, slow=True)
    b.wait(1e6)
    b.count(1000.0, -11.0)
    b.open("slow", 0.0, slow=True)
    assert b.opened == 2


def test_a_clock_set_back_does_not_keep_it_open_for_ever() -> None:
    b = breaker()
    b.open("slow", 1e9)
    assert not b.wait(0.0)
    assert b.wait(600 * 1.2)


def test_members_of_a_fleet_probe_at_different_times() -> None:
    times = set()
    for seed in range(20):
        b = breaker(seed=seed)
        b.open("slow", 0.0)
        times.add(round(b.until_s, 3))
    assert len(times) == 20


class Restarted(RuleBasedStateMachine):
    """A breaker that is saved and restored after every step does the same as one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.lives, self.dies = breaker(), breaker()

    @rule(reason=st.sampled_from(["slow", "invalid"]))
    def open(self, reason: str) -> None:
        for b in (self.lives, self.dies):
            b.open(reason, self.now_s, slow=reason == "slow")

    @rule(seconds=st.floats(0, 1000), hopeless=st.booleans())
    def wait(self, seconds: float, hopeless: bool) -> None:
        self.now_s += seconds
        assert self.lives.wait(self.now_s, hopeless) == self.dies.wait(self.now_s, hopeless)

    @rule()
    def hurry(self) -> None:
        if self.lives.may_hurry:
            self.lives.hurry()
            self.dies.hurry()

    @rule(steps=st.integers(0, 400), saved_s=st.floats(-10, 10))
    def window(self, steps: int, saved_s: float) -> None:
        self.lives.count(60.0, saved_s), self.dies.count(60.0, saved_s)
        assert self.lives.passed(steps) == self.dies.passed(steps)

    @rule()
    def restart(self) -> None:
        saved = json.loads(json.dumps(self.dies.to_mapping()))
        self.dies = Breaker(LIMITS, self.dies.rng)  # jitter goes on, so that both stay comparable
        self.dies.restore(saved)

    @invariant()
    def same(self) -> None:
        assert self.lives.to_mapping() == self.dies.to_mapping()


TestRestarted = Restarted.TestCase


@pytest.mark.parametrize(
    "damage",
    [
        {"phase": "ajar"},
        {"opened": -1},
        {"until_s": float("nan")},
        {"until_s": None},
        {"saved_s": float("inf")},
        {"reason": 3},
        {"skipped": -1},
        {"slow": 1},
        {"hurried": "no"},
        {"other": 1},
    ],
)
def test_damaged_state_is_refused_and_changes_nothing(damage: dict[str, object]) -> None:
    b = breaker()
    b.open("slow", 5.0)
    before = b.to_mapping()
    with pytest.raises(ConfigError):
        b.restore(before | damage)
    assert b.to_mapping() == before


@pytest.mark.parametrize(
    "limits",
    [
        {"backoff_s": 0.0},
        {"backoff_s": 9e9},
        {"jitter": 1.0},
        {"probes": 0},
        {"steady": 0},
        {"allowance": 1.0},
        {"least_steps": -1},
    ],
)
def test_wrong_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Limits(**limits)  # type: ignore[arg-type]


def test_evidence_ends_the_wait_only_where_time_was_lost() -> None:
    b = breaker()
    assert not b.may_hurry, "it is not open"
    b.open("invalid outputs", 0.0)
    assert not b.may_hurry
    b.open("slow", 2.0, slow=True)
    assert b.may_hurry
    b.hurry()
    assert (b.phase, b.may_hurry) == (Phase.HALF_OPEN, False)


@pytest.mark.parametrize(("saved_s", "again"), [(30.0, True), (-30.0, False)])
def test_it_hurries_again_only_after_that_paid(saved_s: float, again: bool) -> None:
    b = breaker()
    b.open("slow", 2.0, slow=True)
    b.hurry()
    assert [b.passed(1000), b.passed(1000)] == [False, True]
    b.count(100.0, saved_s)
    b.open("slow", 200.0, slow=True)
    assert b.may_hurry == again


def test_without_hope_every_fourth_probe_is_made_and_waits_grow_meanwhile() -> None:
    b, probes = breaker(replace(LIMITS, jitter=0.0, cap_s=1e9)), []
    b.open("slow", 0.0, slow=True)
    for _ in range(9):
        now_s = b.until_s
        assert not b.wait(now_s - 1.0, hopeless=True)
        if b.wait(now_s, hopeless=True):
            probes.append(round(now_s))
            b.count(10.0, -5.0)
            b.open("slow", now_s, slow=True)
    waits = [60 * 1.5**i for i in range(8)]
    assert probes == [pytest.approx(sum(waits[:4]), abs=1), pytest.approx(sum(waits), abs=1)]
    assert b.wait(b.until_s), "with hope, the next one is"
