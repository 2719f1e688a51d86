import json
import runpy
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftgate.quality.exact_json import is_prefix, parse, parse_embedded, parse_lines
from draftgate.quality.judgement import Status

mutants = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "validators.py"))["mutants"]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
SAMPLE = json.dumps(
    [
        {"id": 1, "name": 'O\'Neil "Bob"\n\u00e9', "tags": ["a", "b\\"], "score": -1.5e-3, "ok": True, "none": None},
        {"id": 2, "deep": {"list": [[], {}, [0, 10, 2.0]], "empty": ""}, "ok": False},
    ],
    indent=1,
)


def refuse(name: str) -> NoReturn:
    raise ValueError(name)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def reference(text: str) -> bool:
    try:
        json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except ValueError:
        return False
    return True


def accepts(text: str) -> bool:
    return parse(text, cut=False).status is Status.VALID


def test_agrees_with_json_on_damaged_texts() -> None:
    texts = [*mutants(SAMPLE, 2500), *mutants('{"a": [1, 2], "b": "\\u0041"}', 1500, seed=1)]
    truth = [reference(text) for text in texts]
    assert [accepts(text) for text in texts] == truth
    assert 200 < sum(truth) < len(texts) - 2000  # both kinds are there


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_json_writes_and_all_its_beginnings(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse(text, cut=False).value == value
    for end in range(len(text) + 1):
        assert is_prefix(text[:end])
        assert parse(text[:end], cut=True).status in (Status.VALID, Status.TRUNCATED)


@given(st.text('{}[],:"\\ntrueu01.eE+- ', max_size=12))
@example('["\\u00')
@example("[-")
@example("[01")
def test_beginnings_are_closed_and_contain_json(text: str) -> None:
    assert is_prefix(text) or not reference(text)
    if is_prefix(text):
        assert all(is_prefix(text[:end]) for end in range(len(text)))


def completes(text: str) -> bool:
    """By brute force: some short ending makes `text` JSON."""
    ends = ["", "0", '"', '0"', '""', '0":0', '":0', '"":0', ":0", "rue", "ue", "e", "ull", "ll", "l"]
    closers = ["".join(closer) for n in range(4) for closer in product("]}", repeat=n)]
    return any(reference(text + end + closer) for end in ends for closer in closers)


@pytest.mark.parametrize("length", range(4))
def test_agrees_with_brute_force_on_short_texts(length: int) -> None:
    for chars in product('{}[],:"0.-etn', repeat=length):
        text = "".join(chars)
        assert is_prefix(text) is completes(text), text


@pytest.mark.parametrize(
    ("text", "kind", "message", "place"),
    [
        ("NaN", "syntax", "expected a value", (1, 1)),
        ("[1,\n Infinity]", "syntax", "expected a value", (2, 2)),
        ('{"a": 1,}', "syntax", "expected a key in double quotes", (1, 9)),
        ("{'a': 1}", "syntax", "expected a key in double quotes or '}'", (1, 2)),
        ("[1 2]", "syntax", "expected ',' or ']'", (1, 4)),
        ('{"a" 1}', "syntax", "expected ':'", (1, 6)),
        ("[1]\n]", "syntax", "text after the value", (2, 1)),
        ('["a\\x"]', "syntax", "a character or escape that no string may hold", (1, 4)),
        ('["a\nb"]', "syntax", "a character or escape that no string may hold", (1, 4)),
        ("", "syntax", "the text ends before the value does", (1, 1)),
        ('{"a": 1, "a": 2}', "duplicate-key", "the key 'a' is given twice", (None, None)),
        ("[" * 100_000, "depth", "nested deeper than JSON parsers go", (None, None)),
    ],
)
def test_findings(text: str, kind: str, message: str, place: tuple[int | None, int | None]) -> None:
    (finding,) = parse(text, cut=False).findings
    assert (finding.kind, finding.message, (finding.line, finding.column)) == (kind, message, place)


def test_nesting_without_end_is_no_crash() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        assert parse(text, cut=False).status is Status.INVALID
        assert parse(text, cut=True).status is Status.INVALID


def test_numbers_may_be_longer_than_python_reads() -> None:
    assert accepts("9" * 10_000)
    assert not accepts("[" + "9" * 10_000 + ",]")


def test_lines() -> None:
    assert parse_lines('{"a": 1}\n\n[2]\n', cut=False).value == [{"a": 1}, [2]]
    (finding,) = parse_lines('{"a": 1}\n{"a": }', cut=False).findings
    assert (finding.line, finding.column) == (2, 7)
    assert parse_lines('{"a": 1}\n{"a":', cut=True).status is Status.TRUNCATED
    assert parse_lines('{"a":\n{"a": 1}', cut=True).status is Status.INVALID


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Here you are: {"a": 1}. Enjoy!', {"a": 1}),
        ("As [1] says, {braces} hold [2, 3].", [2, 3]),
        ("no value (at all)", None),
        ("{not json} [neither", None),
    ],
)
def test_values_between_sentences(text: str, value: object) -> None:
    reading = parse_embedded(text, cut=False)
    assert (reading and reading.value) == value


def test_a_value_between_sentences_may_be_cut() -> None:
    reading = parse_embedded('See [below]: {"a": [1, 2', cut=True)
    assert reading
    assert reading.status is Status.TRUNCATED
    assert parse_embedded('See [below]: {"a": [1, 2', cut=False) is None
