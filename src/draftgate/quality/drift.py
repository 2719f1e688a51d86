"""Validity watched while serving: the share of valid outputs in a window, and alarms with minimum evidence.

The source article alerts when fewer than 95% (code) or 98% (structured) of the outputs in a window are valid. Read
literally on a window of 100, that alerts every 675 outputs at 99% valid: 100 outputs cannot tell 98% from 99%. Here a
CUSUM whose false alarms are at least 10,000 outputs apart guards the floor, and a Page-Hinkley test finds a fall
against the stream's own past, also above the floor. Measured delays are in docs/statistics.md, "Drift".
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from draftgate.errors import ConfigError
from draftgate.stats.drift import Cusum, PageHinkley, require_fields
from draftgate.stats.proportion import needed, wilson_interval
from draftgate.stats.sequence import Interval

__all__ = ["Alert", "ValidityWindow"]


class Alert(StrEnum):
    """BELOW_FLOOR: fewer valid outputs than the floor allows. FALLING: fewer than before, the floor may still hold."""

    BELOW_FLOOR = "below_floor"
    FALLING = "falling"


@dataclass(slots=True)
class ValidityWindow:
    """The latest judged outputs and two detectors that see every one of them.

    Attributes:
        floor: least valid rate, above one half; `gate.FLOORS` has the source's.
        size: outputs in the window, enough that all of them valid certify the floor.
        recent: the window, oldest first.
        below: detects invalid outputs at twice the share that the floor allows.
        falling: detects a rise of invalid outputs above their past share.

    >>> window = ValidityWindow(floor=0.95, size=100)
    >>> {i: str(alert) for i in range(80) if (alert := window.update(i < 60))}
    {71: 'falling', 73: 'below_floor'}
    """

    floor: float
    size: int = 1000
    recent: deque[bool] = field(init=False)
    below: Cusum = field(init=False)
    falling: PageHinkley = field(init=False)

    def __post_init__(self) -> None:
        if not 0.5 < self.floor < 1:
            raise ConfigError(f"floor must be above 0.5 and below 1, but got {self.floor}; 0.98 is 98% valid")
        least = needed(1.0, self.floor)
        if least is None or self.size < least:
            raise ConfigError(f"a window of {self.size} cannot certify {100 * self.floor:g}%; use {least} or more")
        self.recent = deque(maxlen=self.size)
        self.below = Cusum.of_share(1 - self.floor, 2 * (1 - self.floor))
        self.falling = PageHinkley()

    def update(self, valid: bool | None) -> Alert | None:
        """Take one judged output; None, not judged, changes nothing. Returns the alert that it raises, if any."""
        if valid is None:
            return None
        self.recent.append(valid)
        below, falling = self.below.update(not valid), self.falling.update(not valid)
        return Alert.BELOW_FLOOR if below else Alert.FALLING if falling else None

    def interval(self) -> Interval:
        """Wilson's 95% interval of the valid rate in the window, for one look."""
        return wilson_interval(sum(self.recent), len(self.recent))

    @property
    def certified(self) -> bool:
        """Whether the window shows, at one look, that the floor is kept."""
        low = self.interval().low
        return low is not None and low >= self.floor

    def to_mapping(self) -> dict[str, Any]:
        """Settings and state, for JSON."""
        return {
            "floor": self.floor,
            "size": self.size,
            "recent": [int(valid) for valid in self.recent],
            "below": self.below.to_mapping(),
            "falling": self.falling.to_mapping(),
        }

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "ValidityWindow":
        """What `to_mapping` wrote.

        Raises:
            ConfigError: fields are missing, unknown, or not what was written.
        """
        require_fields("ValidityWindow", data, ("floor", "size", "recent", "below", "falling"))
        if not all(valid in (0, 1) for valid in data["recent"]):
            raise ConfigError("ValidityWindow.recent must hold 0 and 1 only; delete the saved state to start afresh")
        window = cls(data["floor"], data["size"])
        window.recent.extend(map(bool, data["recent"]))
        window.below, window.falling = Cusum.from_mapping(data["below"]), PageHinkley.from_mapping(data["falling"])
        return window
