"""A setting: the few numbers that a controller moves, and how they change a policy."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from draftgate.errors import ConfigError
from draftgate.policy.length import Cut, Fixed, Goodput, Length
from draftgate.policy.policy import Policy

__all__ = ["OFF", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One position of the knobs; immutable and checked when made.

    Attributes:
        on: whether anything is drafted.
        tau: base threshold in [0, 1]; None keeps the policy's.
        k: longest draft; 0 exactly when off.
        cut: least evidence of a drafted token; None does not cut.

    Raises:
        ConfigError: a value is out of range.

    >>> str(Setting(True, 0.2, 5, None)), str(OFF)
    ('k=5 tau=0.2', 'off')
    """

    on: bool
    tau: float | None
    k: int
    cut: float | None

    def __post_init__(self) -> None:
        if self.k < 0 or self.on != (self.k > 0):
            raise ConfigError(f"setting: k must be 1 or more when on and 0 when off, but got k = {self.k}")
        if self.tau is not None and not 0 <= self.tau <= 1:  # also refuses NaN
            raise ConfigError(f"setting: tau must be in [0, 1] but got {self.tau}")
        if self.cut is not None and not abs(self.cut) < float("inf"):
            raise ConfigError(f"setting: cut must be a finite number but got {self.cut}")

    @classmethod
    def of(cls, policy: Policy) -> "Setting":
        """Where a policy stands."""
        if not policy.drafts:
            return OFF
        cut = policy.length.least if isinstance(policy.length, Cut) else None
        return cls(True, policy.tau, policy.length.most, cut)

    def applied_to(self, policy: Policy) -> Policy:
        """The policy with these numbers, under its own name. Off keeps its rule and threshold, and drafts nothing.

        Raises:
            ConfigError: the policy's rule has no threshold, or its thresholds follow a position schedule, and tau is
                given.
        """
        if not self.on:
            return replace(policy, length=Fixed(0))
        tau = policy.tau if self.tau is None else self.tau
        return replace(policy, tau=tau, length=self._length(policy.length))

    def _length(self, length: Length) -> Length:
        if self.cut is not None:
            return Cut(self.k, self.cut)
        if isinstance(length, Goodput):
            k = min(self.k, length.k)  # its cost curves end there
            return replace(length, k=k, verify_s={b: curve[: k + 1] for b, curve in length.verify_s.items()})
        return Fixed(self.k)

    def __str__(self) -> str:
        if not self.on:
            return "off"
        given = [f"{name}={value:g}" for name in ("tau", "cut") if (value := getattr(self, name)) is not None]
        return " ".join([f"k={self.k}", *given])

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


OFF = Setting(False, None, 0, None)
