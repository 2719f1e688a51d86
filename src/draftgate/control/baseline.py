"""What the engine gives without speculation, now: measured while off, else modelled from step costs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftgate.control.belief import StepTable
from draftgate.control.window import Window
from draftgate.errors import ConfigError

__all__ = ["Baseline"]

_KEEP = 0.8  # of earlier evidence, at each further window at that batch size
_MOST = math.log(1.5)  # that one window may differ from what was known: a host that paused must not be believed


@dataclass(slots=True)
class Baseline:
    """Tokens per engine second while off, by batch size in powers of two.

    A batch size that was not seen off is None without step costs; with them it is what they say, corrected by the ratio
    of measured to modelled seconds that any window showed.

    Attributes:
        table: measured step costs; None when there are none.
        seen: log throughput by rounded log2 of the batch size.
        ratio: log of measured over modelled throughput; None while unknown.
    """

    table: StepTable | None = None
    seen: dict[int, float] = field(default_factory=dict)
    ratio: float | None = None

    def learn(self, window: Window) -> None:
        """Take a window; it counts as off when nothing was drafted in it."""
        rate = window.tokens_per_s
        if not rate or not window.steps:
            return
        if window.covered == 0:
            at, known = _bin(window.batch), self.at(window.batch)
            new = math.log(rate) if known is None else _near(math.log(known), math.log(rate))
            self.seen[at] = _mixed(self.seen.get(at), new)
        if self.table is not None:
            self.ratio = _mixed(self.ratio, math.log(rate / _modelled(self.table, window)))

    def to_mapping(self) -> dict[str, Any]:
        """State for JSON."""
        return {"seen": {str(at): value for at, value in self.seen.items()}, "ratio": self.ratio}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave.

        Raises:
            ConfigError: it is not that.
        """
        try:
            seen = {int(at): float(value) for at, value in data["seen"].items()}
            self.ratio = None if data["ratio"] is None else float(data["ratio"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"saved baseline cannot be read: {error!r}; delete it to start afresh") from None
        self.seen = seen

    def at(self, batch: float | None) -> float | None:
        """Tokens per engine second at a batch size; None when not known."""
        if (measured := self.seen.get(_bin(batch))) is not None:
            return math.exp(measured)
        if self.table is None or self.ratio is None:
            return None
        return math.exp(self.ratio) * (batch or 1.0) / float(self.table.step_s(batch)[0])


def _modelled(table: StepTable, window: Window) -> float:
    """Throughput that the step costs give for what the window drafted and committed."""
    step_s = table.step_s(window.batch)
    mean = min(round(window.drafted / window.covered), len(step_s) - 1) if window.covered else 0
    seconds = window.covered * step_s[mean] + (window.steps - window.covered) * step_s[0]
    return float(window.committed * (window.batch or 1.0) / seconds)


def _bin(batch: float | None) -> int:
    return round(math.log2(max(batch or 1.0, 1.0)))


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else _KEEP * old + (1 - _KEEP) * _near(old, new)


def _near(known: float, new: float) -> float:
    return min(max(new, known - _MOST), known + _MOST)
