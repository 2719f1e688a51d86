import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from draftgate.errors import InputError, TraceError
from draftgate.report.page import checked, fastest, render, write_report

DATA = Path(__file__).parent / "data" / "result.json"
HOSTILE = ("<script>alert(1)</script>", "$x$ \\frac{a}{b}", '"onload="alert(1)', "a&b;]]>", "名前 🙂", "x" * 300)


@pytest.fixture
def result():
    return json.loads(DATA.read_text())


@pytest.fixture(scope="module")
def text():
    return render(json.loads(DATA.read_text()))


def parsed(text):
    """The page is written so that an XML parser, which forgives nothing, reads it too."""
    return ElementTree.fromstring(text)


def words(element):
    return " ".join(" ".join(element.itertext()).split())


def cells(tree, caption):
    table = next(t for t in tree.iter("table") if words(t.find("caption")).startswith(caption))
    return [[words(cell) for cell in row] for row in table.find("tbody")]


def blank(value):
    """The same result with every figure missing."""
    keep = {"schema", "n", "requests", "steps", "drafted", "searched", "position", "from", "to"}
    if isinstance(value, dict):
        return {k: v if k in keep and not isinstance(v, dict | list) else blank(v) for k, v in value.items()}
    if isinstance(value, list):
        return [blank(v) for v in value]
    return None if isinstance(value, float) else value


def test_page_is_well_formed_with_unique_ids(text):
    tree = parsed(text)
    ids = [e.get("id") for e in tree.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    links = [v for e in tree.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert all(t.find("caption") is not None and t.find("thead") is not None for t in tree.iter("table"))
    assert all(e.get("role") == "img" and e.get("aria-label") for e in tree.iter("svg"))


def test_html_parser_sees_balanced_tags(text):
    open_tags, void = [], {"meta", "br"}

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attrs):
            open_tags.append(tag)

        def handle_startendtag(self, tag, attrs):
            assert tag in void or "svg" in open_tags

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balance().feed(text)
    assert open_tags == []


def test_nothing_is_fetched_and_the_policy_forbids_it(text):
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|<iframe|\ssrc=|\sstyle=|\son\w+=", text)
    assert all(target.startswith("#") for target in re.findall(r"""url\(["']?(.)""", text))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert len(text) < 1_000_000


def test_the_same_result_gives_the_same_page(result, text):
    assert render(copy.deepcopy(result)) == text


def test_every_workload_and_arm_with_its_figures(result, text):
    tree = parsed(text)
    sections = {s.get("id"): s for s in tree.iter("section")}
    for i, w in enumerate(result["workloads"], 1):
        section = sections[f"w{i}"]
        assert w["name"] in words(section.find("header"))
        rows = cells(section, "Arms, measured")
        assert len(rows) == len(w["arms"])
        for row, arm in zip(rows, w["arms"], strict=True):
            speed, low = arm["speedup"], arm["speedup"]["low"]
            assert row[0].startswith(arm["arm"])
            assert row[0].endswith("recommended") == (arm["arm"] == w["recommended"])
            assert row[1].startswith("lossless" if arm["lossless"] else "lossy")
            assert row[2].split() == [f"{speed['estimate']:.2f}", *speed["how"].split()]
            assert row[3:5] == ["–" if low is None else f"[{low:.2f}, {speed['high']:.2f}]", str(speed["n"])]
            assert row[5] == ("–" if arm["predicted"] is None else f"{arm['predicted']['speedup']:.2f}")
            assert row[6] == f"{arm['tokens_per_s']:.1f}"
            rate = arm["acceptance_rate"]
            assert row[7] == ("–" if rate is None else f"{rate:.0%}")
            assert row[8:] == [f"{arm['acceptance_length']:.2f}", f"{arm['coverage']:.1%}"]


def test_acceptance_and_cost_tables_hold_the_figures(result, text):
    tree = parsed(text)
    first = result["workloads"][0]["trace"]
    for row, at in zip(cells(tree, "Acceptance by position"), first["positions"], strict=True):
        assert row[0] == str(at["position"])
        for got, share in ((row[1:4], at["survival"]), (row[4:], at["conditional"])):
            bounds = f"[{100 * share['low']:.0f}, {100 * share['high']:.0f}]"
            assert got == [f"{share['rate']:.1%}", bounds, str(share["n"])]
    for row, at in zip(cells(tree, "Acceptance by category"), first["categories"], strict=True):
        assert (row[0], row[1], row[3]) == (at["category"], f"{at['rate']:.1%}", str(at["n"]))
    for row, at in zip(cells(tree, "Acceptance by offset"), first["offsets"], strict=True):
        assert (row[0], row[1]) == (f"{at['from']}–{at['to'] - 1}", f"{at['rate']:.1%}")
    curve = result["cost"]["curves"][0]
    third = cells(tree, "Seconds of a decode")[2]
    assert third[1] == f"{curve['seconds'][2] / curve['seconds'][0]:.2f} ±{curve['error'][2]:.0%}"
    maxima = {(m["batch"], m["k"]): m for m in result["cost"]["maxima"]}
    batches = sorted({batch for batch, _ in maxima})
    for row in cells(tree, "The speedup if every drafted token"):
        for batch, cell in zip(batches, row[1:], strict=True):
            at = maxima.get((batch, int(row[0])))
            even = at and at["break_even"]
            expected = at and f"{at['all_accepted_speedup']:.2f}x {'never' if even is None else f'{even:.0%}'}"
            assert cell == (expected or "–")


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("faster", "use goodput 1.87x [1.60, 2.10]"), ("off", "off: do not speculate"), ("inconclusive", "inconclusive")],
)
def test_cards_say_what_to_do(result, verdict, said):
    w = result["workloads"][0]
    w |= {"verdict": verdict, "recommended": "goodput", "why": "because", "presets": "presets: worse"}
    arm = next(a for a in w["arms"] if a["arm"] == "goodput")
    arm["speedup"] |= {"estimate": 1.87, "low": 1.6, "high": 2.1}
    card = words(next(parsed(render(result)).iter("article")))
    assert card.startswith(f"{w['name']} {said} because presets: worse policy file")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_inject_nothing(result, name):
    w = result["workloads"][0]
    w |= {"name": name, "recommended": name, "why": name, "presets": name, "policy": name, "verdict": "faster"}
    w["differences"] = [{"arm": name, "prompt": name, "offset": 3, "gap": 0.5, "noise": 0.01, "tie": False}]
    w["arms"][1]["arm"] = w["pareto"][0]["policy"] = w["trace"]["categories"][0]["category"] = name
    result["setup"] |= {"target": name, "hardware": name, "engine": name}
    tree = parsed(render(result))
    assert "script" not in {e.tag for e in tree.iter()}
    assert not [k for e in tree.iter() for k in e.attrib if k.startswith("on")]
    assert words(tree.find(".//article/h2")) == name
    drawn = [t.text for t in tree.iter("text") if t.text and t.text.startswith(name[:20])]
    assert len(drawn) == 2  # in the charts of arms and of categories, as it is written
    assert all(t == name or (len(name) > 34 and t == f"{name[:33]}…") for t in drawn)


def test_names_that_xml_and_utf8_cannot_hold(result, tmp_path):
    result["workloads"][0]["arms"][1]["arm"] = "a\x00b\x1b\nc\ud800"
    write_report(result, tmp_path / "report.html")
    assert "a\ufffdb\ufffd\ufffdc\ufffd" in (tmp_path / "report.html").read_text("utf-8")


def test_missing_figures_are_dashes_and_never_zero(result):
    bare = blank(result)
    bare["cost"], bare["settings"] = result["cost"], result["settings"]
    for w in bare["workloads"]:
        w["presets"] = None
        for arm in w["arms"]:
            arm |= {"predicted": None, "requests": 0}
            arm["speedup"]["n"] = 0
        for share in (*w["trace"]["categories"], *w["trace"]["offsets"]):
            share["n"] = 0
        for row in w["trace"]["positions"]:
            row["survival"]["n"] = row["conditional"]["n"] = 0
    tree = parsed(render(bare))
    for row in cells(tree, "Arms, measured"):
        assert row[2:] == ["– not run", "–", "0", "–", "–", "–", "–", "–"]
    assert all(row[1:] == ["–", "–", "0"] for row in cells(tree, "Acceptance by category"))
    assert "No output of a lossless arm was compared." in words(tree)
    assert "None" not in words(tree)


def test_missing_parts_are_left_out(result):
    w = result["workloads"][0]
    w |= {"pareto": [], "differences": [], "presets": None, "verdict": "off", "recommended": "none"}
    w["trace"] |= {"positions": [], "categories": [], "offsets": []}
    w["trace"]["per_request"] = {"n": 0, "mean": None, "sd": None}
    w["arms"] = w["arms"][:1]
    result["cost"] |= {"curves": [], "maxima": []}
    result["setup"]["threads"] = None
    tree = parsed(render(result))
    assert "No policy was scored." in words(tree)
    assert "threads: –" in words(tree)


def test_sampled_runs_are_not_said_to_be_equal(result):
    result["settings"]["sampling"]["temperature"] = 0.7
    said = words(parsed(render(result)))
    assert "temperature 0.7" in said
    assert "texts differ between runs by chance" in said
    assert "token for token" not in said


def test_equal_texts_are_counted_over_lossless_arms(result, text):
    arms = result["workloads"][0]["arms"]
    n = sum(a["requests"] for a in arms if a["lossless"] and a["arm"] != "none")
    assert f"all {n} outputs of lossless arms are token for token" in words(parsed(text))


def test_text_differences_are_counted_and_listed(result):
    row = {"arm": "goodput", "prompt": "p1", "offset": 3, "gap": 0.01, "noise": 0.02, "tie": True}
    ending = {"arm": "goodput", "prompt": "p2", "offset": 9, "gap": None, "noise": None, "tie": False}
    result["workloads"][0]["differences"] = [row, ending]
    tree = parsed(render(result))
    assert (
        "2 outputs of lossless arms differ from the output without speculation: 1 first differ at a near-tie"
        in words(tree)
    )
    assert cells(tree, "Measured. Gap") == [
        ["goodput", "p1", "3", "0.0100", "0.0200", "yes"],
        ["goodput", "p2", "9", "–", "–", "no"],
    ]


def arm(
    predicted=1.5, measured=1.5, length=2.0, estimator="renewal", lossless=False, bounds=(1.4, 1.6), live=(1.4, 1.6)
):
    interval = None if bounds is None else {"low": bounds[0], "high": bounds[1]}
    return {
        "lossless": lossless,
        "acceptance_length": length,
        "speedup": {"estimate": measured, "low": live[0], "high": live[1]},
        "predicted": {
            "estimator": estimator,
            "acceptance_length": 2.0,
            "speedup": predicted,
            "speedup_interval": interval,
        },
    }


def test_predictions_are_held_against_what_was_measured():
    found = checked(arm(predicted=1.55, length=1.6))
    assert (found.apart, found.says) == (False, "intervals overlap")
    assert found.speedup_off == pytest.approx(1.55 / 1.5 - 1)
    assert found.length_off == pytest.approx(2.0 / 1.6 - 1)


def test_intervals_that_do_not_meet_are_apart():
    assert checked(arm(predicted=3.0, bounds=(2.8, 3.2))).says == "intervals are apart"
    assert checked(arm(predicted=0.5, bounds=(0.4, 0.6))).apart
    assert checked(arm(predicted=3.0, live=(None, None))).says == "no two intervals to compare"
    assert checked(arm(predicted=3.0, bounds=None)).apart is None


def test_what_was_not_predicted_or_not_run_is_not_checked():
    assert checked(arm() | {"predicted": None}) is None
    assert checked(arm(measured=None)) is None
    assert checked(arm(predicted=None, length=None)).speedup_off is None


def test_predictions_that_are_apart_are_on_the_page(result):
    w = result["workloads"][0]
    w["arms"][1]["predicted"] |= {
        "speedup": 9.0,
        "speedup_interval": {"estimate": 9.0, "low": 8.0, "high": 9.5, "n": 12},
    }
    w["arms"][1]["speedup"] |= {"estimate": 1.2, "low": 1.1, "high": 1.3}
    tree = parsed(render(result))
    rows = cells(tree, "Replayed from")
    assert rows[0][-1] == "intervals are apart"
    apart = sum(row[-1] == "intervals are apart" for row in rows)
    assert f"{apart} of {len(rows)} predictions are apart from what was measured" in words(tree)


def test_fastest_points_under_limits():
    points = [{"speedup": s, "given_up_nats": g} for s, g in ((2.0, 0.5), (1.5, 0.02), (1.2, 0.0), (None, 0.0))]
    assert [(limit, p["speedup"]) for limit, p in fastest(points)] == [(0.0, 1.2), (0.05, 1.5), (1.0, 2.0)]
    assert fastest([]) == []


def test_written_whole_or_refused(result, tmp_path):
    write_report(result, tmp_path / "new" / "report.html")
    assert (tmp_path / "new" / "report.html").read_text("utf-8") == render(result)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["report.html"]
    with pytest.raises(TraceError, match="schema 2 but this version reads 1"):
        write_report(result | {"schema": 2}, tmp_path / "other.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(result, tmp_path / "file" / "report.html")


def test_quality_is_a_table_where_outputs_were_judged(result):
    arms = result["workloads"][0]["arms"]
    judged = {"valid": {"estimate": 0.75, "low": 0.5, "high": 0.9, "n": 24, "how": "measured"}, "truncated": 3}
    difference = {"estimate": -0.25, "low": -0.4, "high": -0.1, "n": 24, "how": "measured"}
    quality = {"verdict": "failed", "why": "proven <worse>", "difference": difference, "floor": 0.95, "margin": 0.05}
    arms[0] |= judged | {"goodput_tok_s": 50.0}
    arms[1] |= judged | {"goodput_tok_s": 70.0, "quality": quality | {"needed": 0}}
    rows = cells(parsed(render(result)), "Measured on the same outputs")
    assert rows[0][1:] == ["75.0%", "[50, 90]", "24", "3", "50.0", "–", "–", "baseline", ""]
    assert rows[1][1:] == ["75.0%", "[50, 90]", "24", "3", "70.0", "-25.0%", "[-40, -10]", "failed", "proven <worse>"]


def test_judged_outputs_have_their_figures_and_unjudged_ones_are_said_to_be(result, text):
    arms = result["workloads"][0]["arms"]
    rows = cells(parsed(text), "Measured on the same outputs")
    assert [row[1] for row in rows] == [f"{arm['valid']['estimate']:.1%}" for arm in arms]
    assert [row[8] for row in rows] == ["baseline"] + [arm["quality"]["verdict"] for arm in arms[1:]]
    assert text.count("No output was judged") == 1  # chat
