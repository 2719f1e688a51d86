"""The setup that measured figures depend on; figures of different setups are never mixed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from draftgate.errors import TraceError

__all__ = ["Setup"]


@dataclass(frozen=True, slots=True)
class Setup:
    """Engine, models and hardware.

    Attributes:
        engine: name of the engine.
        version: its version.
        target: target model, name and description.
        target_sha: digest of the target's vocabulary and file size, enough to tell another model.
        draft: draft model likewise, or "lookup".
        hardware: processor or accelerator.
        threads: CPU threads, None where it does not apply.
    """

    engine: str
    version: str
    target: str
    target_sha: str
    draft: str
    hardware: str
    threads: int | None

    @property
    def by_lookup(self) -> bool:
        """Whether drafts come from the text so far, so that they can be told from a finished text."""
        return self.draft == "lookup"

    def key(self) -> str:
        """Short digest of all fields."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def require_same(self, other: "Setup", what: str) -> None:
        """Refuse to mix.

        Raises:
            TraceError: a field differs; the message names it.
        """
        for name, mine in asdict(self).items():
            if mine != getattr(other, name):
                raise TraceError(
                    f"{what}: was recorded with {name} {getattr(other, name)!r}, but this is {mine!r}; "
                    "use a new run directory"
                )

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Setup":
        """The setup that `asdict` wrote.

        Raises:
            TraceError: fields are missing or unknown.
        """
        try:
            return cls(**data)
        except TypeError as error:
            raise TraceError(f"setup does not fit: {error}; it was written by another version of draftgate") from error
