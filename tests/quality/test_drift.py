import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError
from draftgate.quality.drift import Alert, ValidityWindow
from draftgate.quality.gate import FLOORS
from draftgate.stats import needed, wilson_interval

judged = st.lists(st.sampled_from([True, True, True, False, None]), max_size=300)


def alerts(window: ValidityWindow, stream: Iterable[bool | None]) -> list[tuple[int, Alert]]:
    """(outputs seen, alert) of each alert."""
    return [(n, alert) for n, valid in enumerate(stream, 1) if (alert := window.update(valid))]


def drawn(seed: int, valid: float, n: int) -> list[bool]:
    return [bool(x) for x in np.random.default_rng(seed).random(n) < valid]


def test_a_window_too_small_to_certify_the_floor_is_refused() -> None:
    with pytest.raises(ConfigError, match="a window of 100 cannot certify 98%; use 189 or more"):
        ValidityWindow(floor=0.98, size=100)
    for floor in (0.95, 0.98):
        least = needed(1.0, floor)
        assert least is not None
        window = ValidityWindow(floor, least)
        alerts(window, [True] * (least - 1))
        assert not window.certified
        window.update(True)
        assert window.certified


def test_old_outputs_leave_the_window() -> None:
    window = ValidityWindow(floor=0.95, size=80)
    alerts(window, [False] * 100 + [True] * 80)
    assert (window.interval().estimate, window.interval().n) == (1.0, 80)


@given(judged)
def test_the_interval_is_that_of_the_latest_judged_outputs(stream: list[bool | None]) -> None:
    window = ValidityWindow(floor=0.95, size=80)
    alerts(window, stream)
    latest = [valid for valid in stream if valid is not None][-80:]
    assert window.interval() == wilson_interval(sum(latest), len(latest))


def test_outputs_that_were_not_judged_change_nothing() -> None:
    window = ValidityWindow(floor=0.95)
    before = window.to_mapping()
    assert not alerts(window, [None] * 500)
    assert window.to_mapping() == before
    assert window.interval().estimate is None
    assert not window.certified


@pytest.mark.parametrize("floor", [floor for floor in FLOORS.values() if floor is not None])
def test_outputs_that_keep_the_floor_raise_few_alerts(floor: float) -> None:
    healthy, just = ValidityWindow(floor), ValidityWindow(floor)
    assert not alerts(healthy, drawn(1, (1 + floor) / 2, 20_000))
    assert len(alerts(just, drawn(2, floor, 40_000))) <= 4 + 4  # two detectors, 10,000 outputs apart each


@pytest.mark.parametrize(("floor", "valid", "within"), [(0.95, 0.85, 600), (0.98, 0.90, 600), (0.98, 0.0, 40)])
def test_a_breakdown_is_found(floor: float, valid: float, within: int) -> None:
    for seed in range(10):
        window = ValidityWindow(floor)
        alerts(window, drawn(seed, 0.995, 1000))
        assert Alert.BELOW_FLOOR in [alert for _, alert in alerts(window, drawn(seed + 100, valid, within))]


def test_a_fall_above_the_floor_is_found() -> None:
    window = ValidityWindow(floor=0.6)
    found = alerts(window, drawn(3, 0.995, 2000) + drawn(4, 0.85, 500))
    assert [alert for _, alert in found] == [Alert.FALLING]
    assert 2000 < found[0][0] < 2300


@given(judged, judged)
def test_a_restart_changes_nothing(before: list[bool | None], after: list[bool | None]) -> None:
    window = ValidityWindow(floor=0.95, size=80)
    alerts(window, before)
    restored = ValidityWindow.from_mapping(json.loads(json.dumps(window.to_mapping())))
    assert restored == window
    assert alerts(restored, after) == alerts(window, after)
    assert restored.interval() == window.interval()


def test_a_damaged_state_is_refused() -> None:
    state = ValidityWindow(floor=0.95).to_mapping()
    with pytest.raises(ConfigError, match="has no field 'flor'; did you mean 'floor'"):
        ValidityWindow.from_mapping({**state, "flor": 0.9})
    with pytest.raises(ConfigError, match="recent missing"):
        ValidityWindow.from_mapping({name: value for name, value in state.items() if name != "recent"})
    with pytest.raises(ConfigError, match="must hold 0 and 1 only"):
        ValidityWindow.from_mapping({**state, "recent": [2]})


@pytest.mark.parametrize("floor", [0.5, 1.0, 98.0])
def test_a_floor_is_a_share_above_one_half(floor: float) -> None:
    with pytest.raises(ConfigError, match=r"floor must be above 0\.5 and below 1"):
        ValidityWindow(floor)
