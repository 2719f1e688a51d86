"""The result of `draftgate tune` as one HTML page: no script, nothing fetched, nothing a name can inject."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgate.errors import TraceError, require
from draftgate.experiment.plan import LOSSY_NATS
from draftgate.files import write_atomic
from draftgate.report import charts

__all__ = ["Check", "checked", "render", "write_report"]

_SCHEMA = 1
_INTERVALS = {None: "no two intervals to compare", False: "intervals overlap", True: "intervals are apart"}
_GIVEN_UP_NATS = (0.0, 0.001, 0.01, LOSSY_NATS, 0.1, 1.0)


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page of a tuning result, whole or not at all.

    Raises:
        TraceError: the result is of another schema.
        MissingExtraError: jinja2 or matplotlib is not installed.
        InputError: the place cannot be written.
    """
    write_atomic(path, render(result).encode("utf-8", "replace"))


def render(result: Mapping[str, Any]) -> str:
    """The page as text; the same result gives the same text.

    Raises:
        TraceError: the result is of another schema.
        MissingExtraError: jinja2 or matplotlib is not installed.
    """
    if result.get("schema") != _SCHEMA:
        raise TraceError(
            f"report: the result has schema {result.get('schema')!r} but this version reads {_SCHEMA}; "
            "write it with the version of draftgate that measured it"
        )
    jinja2 = require("jinja2", "tune")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("draftgate", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    trusted = require("markupsafe", "tune").Markup
    environment.filters |= {f.__name__: f for f in (number, percent, span, checked, fastest, bins)}
    environment.globals |= {name: _trusted(getattr(charts, name), trusted) for name in charts.__all__}
    environment.globals |= {"lossy_nats": LOSSY_NATS}
    style = environment.get_template("style.css.j2").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page: str = environment.get_template("page.html.j2").render(result=result, style=trusted(style), style_sha=digest)
    return page


def _trusted(chart: Any, trusted: Any) -> Any:
    """A chart whose SVG the template does not escape again: its own serialiser has escaped every name."""
    return lambda *args: trusted(chart(*args))


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or an en dash where nothing was measured.

    >>> number(1.234), number(None), number(0.0, ".1f")
    ('1.23', '–', '0.0')
    """
    return "–" if value is None else format(value, form)


def percent(value: float | None, form: str = ".0f") -> str:
    """A share in percent, or an en dash.

    >>> percent(0.625, ".1f"), percent(None)
    ('62.5%', '–')
    """
    return "–" if value is None else f"{100 * value:{form}}%"


def span(value: Mapping[str, Any] | None, scale: float = 1.0, form: str = ".2f") -> str:
    """The bounds of an interval, or an en dash while there are none.

    >>> span({"low": 1.6, "high": 2.1}), span({"low": None, "high": None}), span(None)
    ('[1.60, 2.10]', '–', '–')
    """
    if value is None or value["low"] is None or value["high"] is None:
        return "–"
    return f"[{scale * value['low']:{form}}, {scale * value['high']:{form}}]"


def fastest(front: list[Mapping[str, Any]]) -> list[tuple[float | None, Mapping[str, Any]]]:
    """The fastest points of a front that give up at most so many nats a token; None for any amount.

    Limits that add nothing to a stricter one are left out.
    """
    rows: list[tuple[float | None, Mapping[str, Any]]] = []
    for limit in (*_GIVEN_UP_NATS, None):
        within = [p for p in front if p["speedup"] is not None and (limit is None or p["given_up_nats"] <= limit)]
        best = max(within, key=lambda p: p["speedup"], default=None)
        if best is not None and best not in [point for _, point in rows]:
            rows.append((limit, best))
    return rows


def bins(offsets: list[Mapping[str, Any]]) -> list[str]:
    """Names of bins of offsets, first and last offset of each.

    >>> bins([{"from": 0, "to": 12}, {"from": 12, "to": 13}])
    ['0–11', '12']
    """
    return [f"{b['from']}–{b['to'] - 1}" if b["to"] - b["from"] > 1 else str(b["from"]) for b in offsets]


@dataclass(frozen=True, slots=True)
class Check:
    """Replay against live for one arm.

    Attributes:
        length_off: predicted over measured acceptance length, less 1; None when either is missing.
        speedup_off: likewise for the speedup.
        apart: whether the intervals of the speedups do not overlap, which other prompts alone do not explain; None when
            one is missing.
        says: that in words.
    """

    length_off: float | None
    speedup_off: float | None
    apart: bool | None
    says: str


def checked(arm: Mapping[str, Any]) -> Check | None:
    """How far a prediction was from what was measured; None for an arm that was not predicted or never run."""
    predicted, speed = arm["predicted"], arm["speedup"]
    if predicted is None or speed["estimate"] is None:
        return None
    length = _off(predicted["acceptance_length"], arm["acceptance_length"])
    apart = _apart(predicted["speedup_interval"], speed)
    return Check(length, _off(predicted["speedup"], speed["estimate"]), apart, _INTERVALS[apart])


def _off(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None


def _apart(a: Mapping[str, Any] | None, b: Mapping[str, Any]) -> bool | None:
    if a is None or None in (a["low"], a["high"], b["low"], b["high"]):
        return None
    return bool(a["high"] < b["low"] or b["high"] < a["low"])
