"""PromQL from the metric table: a metric or label that does not exist is an error here, not an empty panel later."""

import re
from collections.abc import Sequence

from draftgate.observe.table import metric

__all__ = ["TARGET", "per", "ratio", "selector"]

TARGET = ("job", "instance")
"""Labels that Prometheus itself adds."""


def selector(name: str, *matchers: str) -> str:
    """A metric with matchers such as 'state="open"'; those of labels that it does not have are left out.

    >>> selector("draftgate_tau", 'workload=~"$workload"', 'position="0"')
    'draftgate_tau{workload=~"$workload"}'

    Raises:
        KeyError: there is no such metric.
    """
    labels = (*metric(name).labels, *TARGET)
    fitting = [m for m in matchers if re.split("[=!]", m)[0] in labels]
    return f"{name}{{{','.join(fitting)}}}" if fitting else name


def per(name: str, over: str, by: Sequence[str], *matchers: str) -> str:
    """How much a counter grew, added up by labels.

    >>> per("draftgate_steps_total", "1h", ("workload",))
    'sum by (workload) (increase(draftgate_steps_total[1h]))'

    Raises:
        KeyError: there is no such metric, or it has no such label.
        ValueError: it is no counter.
    """
    row = metric(name)
    if row.kind != "counter":
        raise ValueError(f"{name} is a {row.kind}, which does not grow")
    if unknown := [label for label in by if label not in (*row.labels, *TARGET)]:
        raise KeyError(f"{name} has no label {unknown[0]}")
    return f"sum by ({', '.join(by)}) (increase({selector(name, *matchers)}[{over}]))"


def ratio(part: str, whole: str, over: str, by: Sequence[str], *matchers: str) -> str:
    """What one counter grew over what another did; no series where the other did not grow.

    >>> ratio("draftgate_drafting_steps_total", "draftgate_steps_total", "1h", ())
    'sum by () (increase(draftgate_drafting_steps_total[1h])) / (sum by () (increase(draftgate_steps_total[1h])) > 0)'
    """
    return f"{per(part, over, by, *matchers)} / ({per(whole, over, by, *matchers)} > 0)"
