"""The short form of benchmarks/chaos.py, and that it would notice."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from draftgate.control.lane import Lane
from draftgate.control.loop import Loop

CHAOS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "chaos.py"))


def storms(folder: Path, seed: int, n: int = 1) -> Any:
    left = iter(range(n))
    return CHAOS["chaos"](folder, seed).run(lambda: next(left, None) is not None)


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_that_must_hold_breaks(tmp_path: Path, seed: int) -> None:
    tally = storms(tmp_path, seed)
    assert tally.settled == 1
    assert tally.kills > 5
    assert tally.takeovers > 2
    assert sum(tally.faults.values()) > 10
    assert tally.writes > 3


def test_a_loop_that_raises_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "take", lambda *_: 1 / 0)
    with pytest.raises(CHAOS["Broken"], match="ZeroDivisionError"):
        storms(tmp_path, 0)


def test_two_controllers_at_once_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def controls(loop: Loop, now_s: float) -> bool:
        loop.controls = True
        return True

    monkeypatch.setattr(Loop, "_may_control", controls)
    with pytest.raises(CHAOS["Broken"], match="two controllers"):
        storms(tmp_path, 0)


def test_a_loop_that_never_writes_again_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, calls = Loop._put_in_force, []

    def lazy(loop: Loop, in_force: str | None, now_s: float) -> None:
        calls.append(now_s)
        if len(calls) < 100:
            put(loop, in_force, now_s)

    monkeypatch.setattr(Loop, "_put_in_force", lazy)
    with pytest.raises(CHAOS["Broken"], match=r"in force|still off"):
        storms(tmp_path, 1)
