"""Fixed settings by time of day and batch size: for traffic whose pattern is known, and for comparison.

    - {from: "08:00", to: "18:00", batch: [1, 8], k: 5, tau: 0.2}
    - {from: "18:00", to: "08:00", k: 3}

Times are UTC; a row without times or batch holds at any. The first row that fits is taken, and none is off.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgate.control.controller import Change, Foresight
from draftgate.control.setting import OFF, Setting
from draftgate.control.window import Window
from draftgate.errors import ConfigError, nearest
from draftgate.files import read_yaml

__all__ = ["Row", "Schedule", "load"]

_DAY_S = 24 * 3600
_KEYS = ("from", "to", "batch", "k", "tau", "cut")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the schedule.

    Attributes:
        start_s, end_s: seconds since midnight UTC; the end may be on the next day, and equal ones mean all day.
        batch: least and greatest mean batch size, both included.
    """

    setting: Setting
    start_s: int = 0
    end_s: int = 0
    batch: tuple[float, float] = (0.0, float("inf"))

    def fits(self, time_s: float, batch: float | None) -> bool:
        """Whether it holds at a time and batch size; an unknown batch counts as 1."""
        at_s = time_s % _DAY_S
        length_s = (self.end_s - self.start_s) % _DAY_S or _DAY_S
        low, high = self.batch
        return (at_s - self.start_s) % _DAY_S < length_s and low <= (batch or 1.0) <= high


class Schedule:
    """Follows rows."""

    def __init__(self, rows: Sequence[Row], setting: Setting) -> None:
        """Start at a setting, until the first window."""
        self.setting = setting
        self._rows = tuple(rows)

    @property
    def trying(self) -> bool:
        """Never."""
        return False

    def give_up(self, window: Window) -> None:
        """Nothing is tried."""

    def foresee(self, shadow: Window) -> Foresight:
        """Nothing: its rows say when."""
        return Foresight()

    def update(self, window: Window) -> Change | None:
        """Take the row of the window's end and batch size."""
        chosen = next((r.setting for r in self._rows if r.fits(window.end_s, window.batch)), OFF)
        if chosen == self.setting:
            return None
        was, self.setting = self.setting, chosen
        return Change(chosen, f"schedule: {was} -> {chosen}")

    def to_mapping(self) -> dict[str, Any]:
        """Nothing: the clock knows."""
        return {}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def load(path: Path) -> list[Row]:
    """Read a schedule file.

    Raises:
        ConfigError: not readable, or a row is wrong; the message names the file and the row.
    """
    rows = read_yaml(path)
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f'{path}: must be a list of rows such as {{from: "08:00", to: "18:00", k: 5}}')
    return [_row(f"{path}: row {i}", row) for i, row in enumerate(rows, 1)]


def _row(where: str, row: Any) -> Row:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: must be a mapping but got {row!r:.40}")
    if unknown := [key for key in row if key not in _KEYS]:
        raise ConfigError(f"{where}: unknown key '{unknown[0]}'; {nearest(str(unknown[0]), _KEYS)}")
    k = row.get("k", 0)
    if type(k) is not int:
        raise ConfigError(f"{where}: k must be a whole number but got {k!r:.40}")
    tau, cut = (_number(where, key, row.get(key)) for key in ("tau", "cut"))
    try:
        setting = Setting(k > 0, tau, k, cut)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    start_s, end_s = (_time(where, key, row.get(key, "00:00")) for key in ("from", "to"))
    return Row(setting, start_s, end_s, _batch(where, row.get("batch")))


def _number(where: str, key: str, value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise ConfigError(f"{where}: {key} must be a number but got {value!r:.40}")
    return None if value is None else float(value)


def _time(where: str, key: str, value: Any) -> int:
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f'{where}: {key} must be a quoted time such as "08:30" but got {value!r:.40}')
    return 3600 * int(match[1]) + 60 * int(match[2])


def _batch(where: str, value: Any) -> tuple[float, float]:
    if value is None:
        return Row(OFF).batch
    numbers = isinstance(value, list) and len(value) == 2 and all(type(n) in (int, float) for n in value)
    if not numbers or not 0 <= value[0] <= value[1]:
        raise ConfigError(f"{where}: batch must be [least, greatest] but got {value!r:.40}")
    return float(value[0]), float(value[1])
