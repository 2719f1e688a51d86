"""Whether shadow windows are to be believed: what drafts would have kept, against what they keep once they run."""

from dataclasses import dataclass

from draftgate.control.window import Window

__all__ = ["Trust"]

_SHARE = 0.5  # of what was promised, that must be kept: traffic may have changed, but wrong drafts keep nothing
_LEAST = 0.2  # tokens a step, below which a promise says nothing
_LEAST_STEPS = 100


@dataclass(slots=True)
class Trust:
    """Holds until the first window after shadows keeps far less than they promised, and again when one does not.

    Attributes:
        held: whether it does.
    """

    held: bool = True
    _last: Window | None = None  # shadow since speculation was last on

    def learn(self, shadow: Window) -> None:
        """Take a shadow window."""
        self._last = shadow

    def check(self, window: Window, k: int) -> None:
        """Take a window that ran with drafts of at most k tokens, or without any."""
        shadow = self._last
        if shadow is None or not shadow.steps or not window.covered or window.steps < _LEAST_STEPS:
            return
        promised = sum(shadow.kept[:k]) / shadow.steps
        if promised >= _LEAST:
            self.held = window.accepted / window.steps >= _SHARE * promised
        self._last = None
