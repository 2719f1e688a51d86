"""What a controller is: it sees one window at a time and may answer with a change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from draftgate.control.setting import Setting
from draftgate.control.window import Window

__all__ = ["Change", "Controller", "Foresight"]


@dataclass(frozen=True, slots=True)
class Change:
    """A new setting and why."""

    setting: Setting
    reason: str


@dataclass(frozen=True, slots=True)
class Foresight:
    """What a shadow window says of drafts that would run now.

    Attributes:
        change: on to a setting that would pay even if its drafts kept less than that, by chance; None if none would.
        hopeless: no setting would pay even if its drafts kept more.
    """

    change: Change | None = None
    hopeless: bool = False


class Controller(Protocol):
    """Decides on the setting of one workload.

    Attributes:
        setting: what it believes to be in force; the loop sets it when something else is.
    """

    setting: Setting

    @property
    def trying(self) -> bool:
        """Whether the setting is only tried, and may lose time, which the controller has budgeted."""
        ...

    def update(self, window: Window) -> Change | None:
        """Take one window, which ran under `setting`; None keeps it. A change is in `setting` at once."""
        ...

    def give_up(self, window: Window) -> None:
        """Go back from what is only tried: speculation is switched off because of this window under it."""
        ...

    def foresee(self, shadow: Window) -> Foresight:
        """While off: take one shadow window. A change is in `setting` at once."""
        ...

    def to_mapping(self) -> dict[str, Any]:
        """What it has learned, for JSON."""
        ...

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave.

        Raises:
            ConfigError: it is not that.
        """
        ...
