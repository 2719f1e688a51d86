import sys
from xml.etree import ElementTree

import pytest

from draftgate.errors import MissingExtraError
from draftgate.report import charts

SHARE = {"n": 10, "rate": 0.5, "low": 0.2, "high": 0.8}
NONE = {"n": 0, "rate": None, "low": None, "high": None}


def arm(name, estimate=1.5, low=1.2, high=1.9, predicted=None):
    return {
        "arm": name,
        "lossless": True,
        "speedup": {"estimate": estimate, "low": low, "high": high},
        "predicted": predicted,
    }


def drawn(svg):
    root = ElementTree.fromstring(svg)
    return root, [t.text for t in root.iter("text")]


def test_speedups_name_every_arm_also_those_never_run():
    root, texts = drawn(
        charts.speedups("c", "label", [arm("none", 1.0, 1.0, 1.0), arm("ran"), arm("idle", None, None, None)])
    )
    assert {"none", "ran", "idle", "1x", "speedup over no speculation"} <= set(texts)
    assert (root.get("role"), root.get("aria-label")) == ("img", "label")


def test_charts_hold_when_nothing_was_measured():
    drawn(charts.speedups("a", "", [arm("x", None, None, None, {"speedup": None, "speedup_interval": None})]))
    drawn(charts.pareto("b", "", [], [arm("x")], 0.05))
    drawn(charts.acceptance_by_position("c", "", [{"position": 0, "survival": NONE, "conditional": NONE}]))
    drawn(charts.acceptance_shares("d", "", [NONE, SHARE], ["a", "b"], "axis"))
    drawn(charts.break_even("e", "", [{"batch": 1, "k": 1, "break_even": None}]))
    drawn(charts.step_cost("f", "", [{"batch": 1, "seconds": [0.1], "error": [0.0]}]))


def test_colours_follow_the_page_and_styles_are_attributes():
    svg = charts.acceptance_shares("c", "label", [SHARE], ["word"], "category")
    assert 'fill="currentColor"' in svg
    assert charts._INK not in svg
    assert not {"style", "metadata"} & {e.tag for e in ElementTree.fromstring(svg).iter()}
    assert " style=" not in svg
    assert "font-family" not in svg


def test_ids_are_stable_and_differ_between_charts():
    one, again, other = (charts.acceptance_shares(name, "", [SHARE], ["word"], "x") for name in ("one", "one", "two"))
    ids = [{e.get("id") for e in ElementTree.fromstring(svg).iter() if e.get("id")} for svg in (one, other)]
    assert one == again
    assert ids[0]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(
    "style", ["font: 9px 'DejaVu Sans', sans-serif; fill: red", "font-size: 9px; font-family: 'X'; fill: red"]
)
def test_fonts_are_left_to_the_page(style):
    assert charts._presentation(style) == {"font-size": "9px", "fill": "red"}


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"draftgate\[tune\]"):
        charts.acceptance_shares("c", "", [SHARE], ["word"], "x")
