"""An engine whose clock is the time of what it has served: nothing else that a machine does counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftgate.engines.base import Capabilities, Completion, Engine, Request
from draftgate.policy.policy import Policy
from draftgate.trace.setup import Setup

__all__ = ["Clocked"]


@dataclass
class Clocked:
    """What a closed loop needs of an engine.

    Attributes:
        engine: serves; may be replaced meanwhile.
        now_s: decode seconds so far.
    """

    engine: Engine
    now_s: float = 0.0

    @property
    def capabilities(self) -> Capabilities:
        """Of the engine."""
        return self.engine.capabilities

    @property
    def setup(self) -> Setup:
        """Of the engine."""
        return self.engine.setup

    @property
    def end_tokens(self) -> frozenset[int]:
        """Of the engine."""
        return self.engine.end_tokens

    def complete(self, requests: Sequence[Request], policy: Policy, record: bool) -> list[Completion]:
        """Complete a batch, which does not move the clock."""
        return self.engine.generate(requests, policy, record)

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete a batch."""
        done = self.complete(requests, policy, record)
        self.now_s += max(d.decode_s for d in done)
        return done
