"""Arms of a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftgate.policy.file import dump, parse
from draftgate.policy.policy import NONE, Policy

__all__ = ["BASELINE", "Arm"]


@dataclass(frozen=True)
class Arm:
    """One configuration that is run live.

    Attributes:
        origin: why it is compared: "baseline", "engine default", "lossless", "source preset", "search" or "given".
        prediction: what replay expected of it, plain values; None when it was not predicted.
    """

    policy: Policy
    origin: str
    prediction: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.name

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"policy": dump(self.policy), "origin": self.origin, "prediction": self.prediction}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Arm":
        """What `to_mapping` wrote."""
        return cls(parse(data["policy"]), data["origin"], data["prediction"])


BASELINE = Arm(NONE, "baseline")
