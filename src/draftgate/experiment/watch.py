"""How long work tells what it is doing."""

from typing import Protocol

__all__ = ["Silent", "Watch"]


class Watch(Protocol):
    """Receives progress; the CLI draws it."""

    def phase(self, name: str, total: float | None) -> None:
        """A phase began; `total` is in the units of `advance`, None when unknown."""
        ...

    def advance(self, amount: float, note: str = "") -> None:
        """Part of the phase is done."""
        ...

    def say(self, text: str) -> None:
        """One line worth keeping."""
        ...


class Silent:
    """Shows nothing."""

    def phase(self, name: str, total: float | None) -> None:
        """Ignore."""

    def advance(self, amount: float, note: str = "") -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""
