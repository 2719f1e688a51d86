"""The dashboard against Grafana's own model of it: the Foundation SDK is generated from Grafana's schemas."""

import copy
import enum
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from draftgate.observe.grafana import dashboard
from draftgate.observe.panels import ROWS
from draftgate.observe.query import TARGET
from draftgate.observe.table import METRICS, metric

WRITTEN = Path(__file__).parents[2] / "deploy" / "grafana" / "draftgate.json"


def wrong_types(value: Any, hint: Any, at: str) -> Iterator[str]:
    """Where a value of the SDK's model does not have the type that the model declares."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return
    if origin in (typing.Union, types.UnionType):
        found = [list(wrong_types(value, choice, at)) for choice in arguments]
        if all(found):  # of the choices, say what is wrong with the one that fits furthest down
            yield max((first for first, *_ in found), key=lambda text: len(text.partition(":")[0]))
    elif origin is list:
        if not isinstance(value, list):
            yield f"{at}: {value!r} is no list"
            return
        for i, item in enumerate(value):
            yield from wrong_types(item, arguments[0], f"{at}[{i}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{at}: {value!r} is no object"
            return
        for key, item in value.items():
            yield from wrong_types(item, arguments[1], f"{at}.{key}")
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{at}: {value!r} is none of {arguments}"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            yield f"{at}: {value!r} is none of {list(hint)}"
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{at}: {value!r} is no number"
    elif not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        yield f"{at}: {value!r} is no {hint.__name__}"
    elif hint not in (int, str, bool, type(None)):
        yield from wrong_fields(value, at)


def wrong_fields(value: Any, at: str) -> Iterator[str]:
    hints = typing.get_type_hints(type(value), vars(sys.modules[type(value).__module__]))
    for name, hint in hints.items():
        if name in vars(value):
            yield from wrong_types(getattr(value, name), hint, f"{at}.{name}")


def lost(given: Any, kept: Any, at: str) -> Iterator[str]:
    """What the model did not take up: keys that Grafana does not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                yield f"{at}: unknown key {key}"
            else:
                yield from lost(value, kept[key], f"{at}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for i, (a, b) in enumerate(zip(given, kept, strict=True)):
            yield from lost(a, b, f"{at}[{i}]")
    elif given != kept:
        yield f"{at}: {given!r} became {kept!r}"


def problems(data: dict[str, Any]) -> list[str]:
    register_default_plugins()
    model = Dashboard.from_json(copy.deepcopy(data))
    kept = json.loads(JSONEncoder().encode(model))
    found = [*wrong_fields(model, "dashboard"), *lost(data, kept, "dashboard")]
    for i, panel in enumerate(model.panels or []):
        if panel.type_val != "row":
            for name, part in (("options", panel.options), ("custom", panel.field_config.defaults.custom)):
                if part is not None:
                    found += wrong_fields(part, f"panels[{i}].{name}")
            for target in panel.targets:
                found += wrong_fields(target, f"panels[{i}].targets")
    return found


def test_the_written_one_is_current() -> None:
    assert WRITTEN.read_bytes() == dashboard(), "run: draftgate observe dashboard --out deploy/grafana/draftgate.json"


def test_grafana_knows_every_key_and_type() -> None:
    assert problems(json.loads(dashboard())) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["panels"][1].update(titel="x"), "unknown key titel"),
        (lambda d: d["panels"][1]["gridPos"].update(h="8"), "'8' is no int"),
        (lambda d: d["panels"][1]["targets"][0].update(expresion="x"), "unknown key expresion"),
        (lambda d: d["panels"][1]["options"]["tooltip"].update(mode="many"), "'many' is none of"),
        (lambda d: d["panels"][1]["fieldConfig"]["defaults"].update(unit=1), "1 is no str"),
        (lambda d: d["templating"]["list"][1].update(type="queri"), "'queri' is none of"),
        (lambda d: d.update(graphTooltip=7), "7 is none of"),
    ],
)
def test_the_check_finds_what_is_wrong(change: Any, says: str) -> None:
    data = json.loads(dashboard())
    change(data)
    assert any(says in problem for problem in problems(data))


def test_panels_do_not_overlap_and_their_ids_differ() -> None:
    panels = json.loads(dashboard())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    cells = [
        (x, y)
        for g in (p["gridPos"] for p in panels)
        for x in range(g["x"], g["x"] + g["w"])
        for y in range(g["y"], g["y"] + g["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


QUERIES = [
    pytest.param(expr, legend, id=f"{panel.title} {i}")
    for panels in ROWS.values()
    for panel in panels
    for i, (expr, legend) in enumerate(panel.queries)
]


@pytest.mark.parametrize(("expr", "legend"), QUERIES)
def test_every_metric_and_label_is_in_the_table(expr: str, legend: str) -> None:
    names = set(re.findall(r"draftgate_\w+", expr))
    assert names
    labels = {label for name in names for label in metric(name).labels} | set(TARGET)
    asked = set(re.findall(r"(\w+)[=!]~?\"", expr)) | set(re.findall(r"{{(\w+)}}", legend))
    for group in re.findall(r"by \(([^)]*)\)", expr):
        asked |= set(group.split(", "))
        assert set(re.findall(r"{{(\w+)}}", legend)) <= set(group.split(", ")), (
            "the legend asks for a label summed away"
        )
    assert asked <= labels


def test_every_metric_of_the_table_is_shown() -> None:
    """Those left out are in another form on the dashboard, or are its variables."""
    shown = set(re.findall(r"draftgate_\w+", json.dumps(json.loads(dashboard()))))
    left_out = {row.name for row in METRICS} - shown
    assert left_out == {
        "draftgate_acceptance_length_tokens",
        "draftgate_acceptance_ratio",
        "draftgate_conditional_acceptance_ratio",
        "draftgate_controls",
        "draftgate_coverage_ratio",
        "draftgate_engine_seconds_total",
        "draftgate_look_timestamp_seconds",
        "draftgate_throughput_tokens_per_second",
        "draftgate_validity_ratio",
        "draftgate_window_end_timestamp_seconds",
    }
