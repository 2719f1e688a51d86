"""What a loop shows to who watches it."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgate.control.assemble import Options, lanes
from draftgate.control.breaker import Phase
from draftgate.control.fetch import SourceError
from draftgate.control.loop import Loop
from draftgate.control.schedule import Row
from draftgate.control.setting import OFF, Setting
from draftgate.control.target import FileChannel
from draftgate.control.watch import LaneState, Look
from draftgate.control.window import Window
from draftgate.errors import ConfigError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, save

LOOSE = Policy("loose", "threshold-or-lossless", 0.3, length=Fixed(4))
BASE = PolicySet((Policy("mine", length=Fixed(6)), LOOSE), "mine", {"code": "loose"})
CODE = LaneState(Setting(True, 0.3, 4, None), Phase.CLOSED)


class Source:
    """Gives what a test puts there."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.fails = False

    def poll(self) -> list[Window]:
        if self.fails:
            raise SourceError("gone")
        return self.windows

    left_out = None

    def in_force(self) -> str | None:
        return None


class Mute(FileChannel):
    """Cannot be read back."""

    left_out = None

    def in_force(self) -> str | None:
        return None


class Held:
    """A lease that somebody else has."""

    holder = "somebody"

    def held(self) -> bool:
        return False

    def release(self) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., tuple[Loop, Source, list[Look]]]:
    def make(target: type[FileChannel] = FileChannel, **more: Any) -> tuple[Loop, Source, list[Look]]:
        path, source, looks = tmp_path / "policy.yaml", Source(), []
        save(BASE, path)
        # A row without threshold keeps the policy's; its length is that of both policies' lanes.
        options = Options(controller="schedule", rows=(Row(Setting(True, None, 4, None)),))
        made = lanes(BASE, True, options, random.Random(0))
        loop = Loop(
            BASE, source, target(path), made, tmp_path / "state.json", more.pop("lease", None), lambda line: None,
            clock=lambda: 1000.0, watcher=looks.append, **more,
        )  # fmt: skip
        return loop, source, looks

    return make


def test_a_look_holds_what_arrived_what_was_decided_and_what_is_wanted(site: Any, of_rate: Any) -> None:
    loop, source, looks = site()
    loop.tick()
    source.windows = [of_rate(0.8), of_rate(0.8)]
    decisions = loop.tick()
    look = looks[-1]
    assert (look.time_s, look.controls, look.fresh_s, look.in_force) == (1000.0, True, 1000.0, True)
    assert look.windows == tuple(source.windows)
    assert look.decisions == tuple(decisions)
    assert [d.action for d in decisions] == ["change", "hold"]
    assert look.lanes["code"] == CODE
    assert look.lanes["*"].setting.k == 4, "what was just decided"


def test_a_breaker_that_opens_shows_in_the_same_look(site: Any, of_rate: Any) -> None:
    loop, source, looks = site()
    loop.tick()
    source.windows = [replace(of_rate(0.8), accepted=10**6)]
    loop.tick()
    assert [look.lanes["*"].phase for look in looks] == [Phase.CLOSED, Phase.OPEN]
    assert looks[1].lanes["*"].setting == OFF
    assert looks[1].lanes["code"] == CODE


def test_what_fails_is_told_as_long_as_it_fails(site: Any) -> None:
    loop, source, looks = site()
    for source.fails in (True, True, False):
        loop.tick()
    assert [look.failing for look in looks] == [("source",), ("source",), ()]
    assert [look.fresh_s for look in looks] == [None, None, 1000.0]


def test_decisions_on_a_lost_state_are_told_too(site: Any, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    loop, _, looks = site()
    assert loop.tick() == []
    assert [d.action for d in looks[0].decisions] == ["open", "open"]
    loop.tick()
    assert looks[1].decisions == ()


def test_what_somebody_else_put_there_is_not_in_force(site: Any, tmp_path: Path) -> None:
    loop, _, looks = site()
    loop.tick()
    loop.tick()
    save(PolicySet((LOOSE,), "loose"), tmp_path / "policy.yaml")
    loop.tick()
    assert [look.in_force for look in looks] == [False, True, False], "at first the file holds what it held"


@pytest.mark.parametrize("more", [{"target": Mute}, {"dry_run": True}])
def test_what_cannot_be_told_is_none(site: Any, more: dict[str, Any]) -> None:
    loop, _, looks = site(**more)
    loop.tick()
    loop.tick()
    assert [look.in_force for look in looks] == [None, None]


def test_an_engine_that_cannot_be_asked_is_none_and_fails(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _, looks = site()

    def refuse(self: FileChannel) -> str | None:
        raise ConfigError("no answer")

    monkeypatch.setattr(FileChannel, "in_force", refuse)
    loop.tick()
    assert looks[0].in_force is None
    assert looks[0].failing == ("read back",)


def test_who_stands_by_shows_only_that(site: Any) -> None:
    loop, _, looks = site(lease=Held())
    loop.tick()
    assert looks == [Look(1000.0, False)]
