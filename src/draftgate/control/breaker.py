"""The two-way breaker of one workload: closed (speculation may run), open (off), half-open (on again, on probation).

    closed --reason--> open --time is up--> half-open --enough good windows--> closed
                        ^------------reason------'

Opening acts at once. Every opening in a row adds half to the time until the next probe, up to a cap, with jitter so
that a fleet does not probe together. It is short again when being on has paid: since it was last short, more time was
saved than lost, failed probes included. So it neither stays off for ever nor flaps at a loss, and short bursts of bad
drafts cost little. Its state is saved: a restart neither forgets an open breaker nor opens a closed one.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from draftgate.errors import ConfigError
from draftgate.stats.drift import require_fields

__all__ = ["Breaker", "Limits", "Phase"]

_SKIPS = 3  # probes that evidence may spare: what says that drafts would not pay may be wrong
_GROWTH = 1.5  # of the wait: what was repaired after T seconds is found T / 2 later at most
_STATE = ("phase", "opened", "until_s", "good", "saved_s", "reason", "skipped", "slow", "hurried")


class Phase(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Limits:
    """How a breaker acts.

    Attributes:
        backoff_s: seconds until the first probe.
        cap_s: longest time until a probe.
        jitter: relative spread of these times, in [0, 1).
        probes: good windows that close it.
        steady: good windows while closed that must have paid, where it opens for another reason than lost time.
        allowance: share of all time that may be lost; it is added to what was saved.
        least_steps: decode steps below which a window of probation is no evidence.

    Raises:
        ConfigError: a value is out of range.
    """

    backoff_s: float = 10.0
    cap_s: float = 3600.0
    jitter: float = 0.2
    probes: int = 2
    steady: int = 5
    allowance: float = 0.01
    least_steps: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.backoff_s <= self.cap_s < math.inf or not 0 <= self.jitter < 1:
            raise ConfigError(f"breaker: needs 0 < backoff_s <= cap_s and jitter in [0, 1) but got {self}")
        if min(self.probes, self.steady) < 1 or self.least_steps < 0 or not 0 <= self.allowance < 1:
            raise ConfigError(
                f"breaker: needs probes and steady of 1 or more, least_steps >= 0, allowance in [0, 1) but got {self}"
            )


@dataclass(slots=True)
class Breaker:
    """State of one workload's breaker.

    Attributes:
        opened: openings in a row, since it was last steady, and probes that were left out.
        until_s: when an open breaker probes, seconds since 1970.
        good: good windows in a row in this phase.
        saved_s: engine seconds saved against no speculation since the wait was last short; negative when lost.
        reason: why it last opened; None when it never did.
        slow: whether it last opened because time was being lost.
        skipped: probes left out in a row because there was no hope.
        hurried: whether a probe came before its time, and being on has not paid since.
    """

    limits: Limits
    rng: random.Random
    phase: Phase = Phase.CLOSED
    opened: int = 0
    until_s: float = 0.0
    good: int = 0
    saved_s: float = 0.0
    reason: str | None = None
    skipped: int = 0
    slow: bool = False
    hurried: bool = False

    @property
    def on(self) -> bool:
        """Whether speculation may run."""
        return self.phase is not Phase.OPEN

    def open(self, reason: str, now_s: float, slow: bool = False) -> None:
        """Switch off, or stay off; from then on the time to the next probe counts.

        Args:
            slow: what is wrong is that time is being lost.
        """
        if self.on and self.saved_s >= 0 and (slow or self.good >= self.limits.steady):
            self.opened, self.saved_s, self.hurried = 0, 0.0, False
        self._put_off(now_s)
        self.phase, self.good, self.reason, self.slow = Phase.OPEN, 0, reason, slow

    def _put_off(self, now_s: float) -> None:
        limits = self.limits
        wait_s = min(limits.backoff_s * _GROWTH ** min(self.opened, 60), limits.cap_s)
        self.opened += 1
        self.until_s = now_s + wait_s * (1 + limits.jitter * self.rng.uniform(-1, 1))

    @property
    def may_hurry(self) -> bool:
        """Whether evidence that drafts would pay may end its wait: time was lost, and it has not hurried in vain."""
        return self.phase is Phase.OPEN and self.slow and not self.hurried

    def hurry(self) -> None:
        """End the wait, which must be allowed: it is half-open now."""
        self._probe()
        self.hurried = True

    def wait(self, now_s: float, hopeless: bool = False) -> bool:
        """Let time pass; returns whether an open breaker has just become half-open.

        Args:
            hopeless: there is evidence that drafts would not pay. Then only every fourth probe is made.
        """
        if self.phase is not Phase.OPEN:
            return False
        # A clock that was set back must not keep it open for longer than any back-off takes.
        self.until_s = min(self.until_s, now_s + self.limits.cap_s * (1 + self.limits.jitter))
        if now_s < self.until_s:
            return False
        if hopeless and self.skipped < _SKIPS:
            self.skipped += 1
            self._put_off(now_s)
            return False
        self._probe()
        return True

    def _probe(self) -> None:
        self.phase, self.good, self.skipped = Phase.HALF_OPEN, 0, 0

    def count(self, seconds: float, saved_s: float) -> None:
        """Book a window, before it is judged: its engine seconds, and those it saved against no speculation."""
        self.saved_s += saved_s + self.limits.allowance * seconds

    def passed(self, steps: int) -> bool:
        """Take a window without a reason to open; returns whether that has just closed a half-open breaker."""
        if self.phase is Phase.OPEN or steps < self.limits.least_steps:
            return False
        self.good += 1
        if self.phase is Phase.HALF_OPEN and self.good >= self.limits.probes:
            self.phase, self.good = Phase.CLOSED, 0
            return True
        return False

    def to_mapping(self) -> dict[str, Any]:
        """State for JSON."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_mapping` gave.

        Raises:
            ConfigError: it is not that; nothing has changed then.
        """
        require_fields("Breaker", data, _STATE)
        try:
            phase, until_s, saved_s = Phase(data["phase"]), float(data["until_s"]), float(data["saved_s"])
            opened, good, skipped = (int(data[name]) for name in ("opened", "good", "skipped"))
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"breaker: saved state cannot be read: {error}") from None
        reason, slow, hurried = data["reason"], data["slow"], data["hurried"]
        typed = isinstance(reason, str | None) and isinstance(slow, bool) and isinstance(hurried, bool)
        if min(opened, good, skipped) < 0 or not math.isfinite(until_s + saved_s) or not typed:
            raise ConfigError(f"breaker: saved state is out of range: {dict(data)}")
        self.phase, self.opened, self.until_s, self.good, self.reason = phase, opened, until_s, good, reason
        self.saved_s, self.skipped, self.slow, self.hurried = saved_s, skipped, slow, hurried
