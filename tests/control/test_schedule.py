from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgate.control.schedule import Row, Schedule, load
from draftgate.control.setting import OFF, Setting
from draftgate.errors import ConfigError

ON = Setting(True, None, 5, None)
TEXT = """
- {from: "08:00", to: "18:00", batch: [1, 8], k: 5, tau: 0.2}
- {from: "18:00", to: "08:00", k: 3}
"""


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    path = tmp_path / "schedule.yaml"
    path.write_text(TEXT)
    return load(path)


@pytest.mark.parametrize(
    ("hour", "batch", "k"),
    [(8, 1.0, 5), (17.99, 8.0, 5), (12, 9.0, 0), (18, 9.0, 3), (7.99, 64.0, 3), (0, None, 3), (12, None, 5)],
)
def test_the_first_row_that_fits_is_taken(
    rows: list[Row], plant: Any, hour: float, batch: float | None, k: int
) -> None:
    at_s = 20_000 * 86_400 + hour * 3600
    window = replace(plant().window(ON), start_s=at_s - 1, end_s=at_s, batch=batch)
    schedule = Schedule(rows, ON)
    change = schedule.update(window)
    assert schedule.setting.k == k
    assert (change is None) == (schedule.setting == ON)
    assert schedule.update(window) is None


def test_a_row_without_times_holds_all_day() -> None:
    assert all(Row(ON).fits(float(t), None) for t in range(0, 86_400, 997))


def test_no_row_is_off(plant: Any) -> None:
    schedule = Schedule([Row(ON, 0, 1)], ON)
    schedule.update(replace(plant().window(ON), end_s=5000.0))
    assert schedule.setting == OFF
    schedule.restore(schedule.to_mapping())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "list of rows"),
        ("[3]", "row 1: must be a mapping"),
        ("- {frm: '08:00', k: 3}", "did you mean 'from'"),
        ("- {from: 8, k: 3}", "quoted time"),
        ("- {from: '25:00', k: 3}", "quoted time"),
        ("- {k: 3.5}", "k must be a whole number"),
        ("- {k: -1}", "k must be 1 or more"),
        ("- {k: 3, tau: 2}", "tau must be in"),
        ("- {k: 3, tau: x}", "tau must be a number"),
        ("- {k: 3, batch: [8, 1]}", "batch must be"),
        ("- {k: 3, batch: 8}", "batch must be"),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load(path)
