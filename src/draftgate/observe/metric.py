"""What a metric is, and which values its labels can have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

import draftgate
from draftgate.control.breaker import Phase
from draftgate.policy.category import Category

__all__ = ["LABELS", "OTHER", "POSITIONS", "Metric", "Reading"]

T = TypeVar("T")
Reading = float | None | Mapping[str, float | None]
"""A value, or values by the last label of the metric; None where it is not known."""

OTHER = "other"  # workloads beyond the limit, added up
POSITIONS = 16  # longer drafts are counted as a whole only

LABELS: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
    {
        "workload": None,  # bounded by the exporter
        "position": tuple(map(str, range(POSITIONS))),
        "category": tuple(c.name.lower() for c in Category),
        "state": tuple(Phase),
        "action": ("hold", "change", "open", "half-open", "close"),
        "kind": ("source", "left_out", "read_back", "in_force", "write", "state", "window", "trace", "status"),
        "reason": ("lagged", "disk", "aborted_early"),
        "version": (draftgate.__version__,),
    }
)
"""Label -> all values it can have. The exporter drops any other value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """One metric.

    Attributes:
        help: one sentence.
        source: what it is read from.
        labels: "workload" first where it has one; at most one more, whose values `read` returns as a mapping.
        read: of a counter, what to add; of a gauge, what to show.
        lasts: a gauge that stays true until it is replaced; the others are dropped when nothing new comes.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    source: str
    labels: tuple[str, ...]
    read: Callable[[T], Reading]
    lasts: bool = False
