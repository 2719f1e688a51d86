"""The metric table in words, for people."""

from collections.abc import Mapping

from draftgate.observe.metric import LABELS
from draftgate.observe.table import METRICS

__all__ = ["markdown"]

_VALUES: Mapping[str, str] = {
    "workload": "the policy set's workloads, `*` for all others of a source that does not name them, up to 32 in all; "
    "then `other`",
    "position": "0 to 15, inside a draft",
    "version": "draftgate's",
}


def markdown() -> str:
    """Tables of all metrics and of all labels."""
    lines = ["| metric | type | labels | what it is | from |", "|---|---|---|---|---|"]
    for row in METRICS:
        labels = ", ".join(row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} | {row.source} |")
    lines += ["", "| label | values |", "|---|---|"]
    for name, values in LABELS.items():
        said = _VALUES.get(name) or ", ".join(f"`{value}`" for value in values or ())
        lines.append(f"| {name} | {said} |")
    return "\n".join(lines) + "\n"
