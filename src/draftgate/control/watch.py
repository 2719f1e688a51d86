"""What a loop shows to somebody who watches it: one `Look` after each tick. Watching changes no decision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from draftgate.control.breaker import Phase
from draftgate.control.lane import Decision
from draftgate.control.setting import Setting
from draftgate.control.window import Window

__all__ = ["LaneState", "Look", "Watcher"]


@dataclass(frozen=True, slots=True)
class LaneState:
    """Where one workload stands.

    Attributes:
        setting: what is wanted in force.
        phase: of its breaker.
    """

    setting: Setting
    phase: Phase


@dataclass(frozen=True, slots=True)
class Look:
    """What one tick of a loop found and did.

    Attributes:
        time_s: when, by the loop's clock, seconds since 1970.
        controls: whether this process holds the lease; if not, there is nothing else to tell.
        fresh_s: when metrics last arrived, by the same clock; None before.
        in_force: whether the engine has what is wanted in force; None when that cannot be told.
        failing: what fails at the moment, by the topics of `Loop`.
        windows: that arrived, flawed ones included.
        lanes: state by workload.
    """

    time_s: float
    controls: bool
    fresh_s: float | None = None
    in_force: bool | None = None
    failing: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    decisions: tuple[Decision, ...] = ()
    lanes: Mapping[str, LaneState] = field(default_factory=dict)


Watcher = Callable[[Look], None]
