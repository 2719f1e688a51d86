"""Arms of a comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgate.errors import ConfigError
from draftgate.policy.file import dump, parse
from draftgate.policy.policy import NONE, Policy

__all__ = ["BASELINE", "Arm", "require_distinct"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration that is run live.

    Attributes:
        origin: why it is compared: "baseline", "engine default", "lossless", "source preset", "search", "given", or
            "truncation control": no drafts, but the cut that a lossy arm's rule puts on the target's law.
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
        """What `to_mapping` wrote, also after JSON.

        Raises:
            KeyError: a value is missing.
            ConfigError: the policy is not valid.
        """
        return cls(parse(data["policy"]), data["origin"], data["prediction"])


def require_distinct(arms: Sequence[Arm]) -> None:
    """Refuse two arms of one name: measurements are paired by it.

    Raises:
        ConfigError: two arms have the same name.
    """
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two arms are called '{name}'; change the 'name' in one of the policy files")


BASELINE = Arm(NONE, "baseline")
