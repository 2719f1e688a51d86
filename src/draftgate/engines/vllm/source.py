"""The policies in force in one process of an engine."""

from collections.abc import Callable
from typing import Any

from draftgate.policy.policyset import PolicySet

__all__ = ["SOURCE", "PolicySource"]


class PolicySource:
    """What is in force in this process: samplers and scheduler read it, `Control` writes it between two steps.

    Attributes:
        current: the policies in force; None before the first: vLLM's own rule and draft length.
        limit_tok: longest draft that any policy may have; 0 turns speculation off, None is no limit.
        check: set by the plugin; says why this process cannot serve a set, None when it can.
        cannot_limit: set by the plugin; why drafts cannot be shortened in this process, None when they can.
        report: set by the plugin; its view of this process as plain values.
    """

    def __init__(self) -> None:
        self.current: PolicySet | None = None
        self.limit_tok: int | None = None
        self.check: Callable[[PolicySet], str | None] = lambda policies: None
        self.cannot_limit: str | None = "the draftgate plugin is not active in this process"
        self.report: Callable[[], dict[str, Any]] = dict
        self._changed = False

    def refresh(self) -> bool:
        """Whether `current` or `limit_tok` changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def set(self, policies: PolicySet | None, limit_tok: int | None) -> None:
        """Put policies and limit in force."""
        self._changed |= (policies, limit_tok) != (self.current, self.limit_tok)
        self.current, self.limit_tok = policies, limit_tok


SOURCE = PolicySource()
"""The one of this process."""
