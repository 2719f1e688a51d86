import runpy
from pathlib import Path
from xml import sax

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.exact_xml import parse
from draftgate.quality.judgement import Status

mutants = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "validators.py"))["mutants"]
SAMPLE = """<?xml version="1.0"?>
<!-- orders -->
<orders xmlns:x="urn:x" count='2'>
  <order id="1"><x:line price="4.90">Tea &amp; biscuits &#233;</x:line></order>
  <order id="2"><![CDATA[a < b && c]]><empty/></order>
  <?target some data?>
</orders>
"""


def reference(text: str) -> bool:
    try:
        sax.parseString(text.encode(), sax.ContentHandler())  # expat, without namespaces as XML 1.0 has it
    except sax.SAXParseException:
        return False
    return True


def test_agrees_with_expat_on_damaged_documents() -> None:
    texts = [*mutants(SAMPLE, 2000), *mutants("<a b='1'><c>d</c>e</a>", 500, seed=1)]
    truth = [reference(text) for text in texts]
    assert [parse(text, cut=False).status is Status.VALID for text in texts] == truth
    assert 200 < sum(truth) < len(texts) - 500


@given(st.integers(0, len(SAMPLE)))
def test_every_beginning_of_a_document_is_sound(end: int) -> None:
    whole = end >= len(SAMPLE) - 1
    assert parse(SAMPLE[:end], cut=True).status is (Status.VALID if whole else Status.TRUNCATED)


@pytest.mark.parametrize(
    "broken", ["<a></b>", "<a b=c>", "<a/><b/>", "<a>&nope;</a>", "<a><b></a>", "text", "<a 1='2'>"]
)
def test_broken_before_the_end_stays_broken(broken: str) -> None:
    assert parse(broken, cut=False).status is Status.INVALID
    assert parse(broken + "\n<c>more", cut=True).status is Status.INVALID


def test_a_place_counts_characters() -> None:
    (finding,) = parse("  <a>\n<b>\u00e9\u20ac</c></a>", cut=False).findings
    assert (finding.message, finding.line, finding.column) == ("mismatched tag", 2, 6)


def test_a_declaration_may_name_another_encoding() -> None:
    assert parse('\n<?xml version="1.0" encoding="utf-16"?><a>\u00e9</a>', cut=False).status is Status.VALID


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    "text",
    [
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><a>&l9;</a>',
        f'<!DOCTYPE a [<!ENTITY l0 "lol">{LAUGHS}]><a b="&l9;"/>',
        f'<!DOCTYPE a [<!ENTITY b "{"x" * 10_000}">]><a>{"&b;" * 10_000}</a>',
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_what_expands_to_far_more_is_refused(text: str, cut: bool) -> None:
    reading = parse(text, cut)
    assert reading.status is Status.INVALID
    assert reading.findings[0].kind == "unsafe"


def test_small_and_external_entities_are_no_danger() -> None:
    assert parse('<!DOCTYPE a [<!ENTITY b "c">]><a d="&b;">&b;</a>', cut=False).status is Status.VALID
    assert parse('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', cut=False).status is Status.VALID


def test_depth_is_no_danger() -> None:
    assert parse("<a>" * 100_000 + "</a>" * 100_000, cut=False).status is Status.VALID
