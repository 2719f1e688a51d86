"""Shadow windows are believed until drafts that run keep far less."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftgate.control.setting import OFF, Setting
from draftgate.control.trust import Trust
from draftgate.control.window import Window

Made = Callable[[float], Window]


@pytest.fixture
def ran(plant: Any) -> Made:
    """(chance that a position is kept) -> a window that ran with k = 4."""
    return lambda cond: plant(cond=cond).window(Setting(True, None, 4, None))  # type: ignore[no-any-return]


@pytest.fixture
def shadow(plant: Any) -> Made:
    """The same of a shadow of longer drafts."""
    return lambda cond: replace(plant(cond=cond).window(Setting(True, None, 7, None)), seconds=0.0, shadow=True)


def after(*windows: Window) -> Trust:
    trust = Trust()
    for window in windows:
        trust.learn(window) if window.shadow else trust.check(window, 4)
    return trust


def test_a_promise_that_is_not_kept_ends_it_and_one_that_is_brings_it_back(ran: Made, shadow: Made) -> None:
    assert after().held
    assert after(shadow(0.7), ran(0.6)).held
    assert not after(shadow(0.7), ran(0.1)).held
    assert after(shadow(0.7), ran(0.1), shadow(0.7), ran(0.65)).held


def test_only_the_first_window_that_drafts_is_compared(ran: Made, shadow: Made, plant: Any) -> None:
    """Later, traffic may have changed; and what runs without drafts says nothing."""
    assert after(shadow(0.7), ran(0.7), ran(0.05)).held
    assert not after(shadow(0.7), plant().window(OFF), ran(0.05)).held


def test_little_is_no_evidence(ran: Made, shadow: Made) -> None:
    assert not after(shadow(0.7), ran(0.05), shadow(0.05), ran(0.05)).held, "nothing was promised"
    assert after(shadow(0.7), replace(ran(0.05), steps=99)).held
