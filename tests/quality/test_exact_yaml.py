import runpy
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.exact_yaml import MAX_NODES, parse
from draftgate.quality.judgement import Status

mutants = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "validators.py"))["mutants"]
SAMPLE = """# a service
version: "3.9"
services:
  web: &web
    image: 'nginx:1.25'
    ports: [80, "443:443"]
    environment: {DEBUG: false, LEVEL: ~}
    command: >-
      run --all
      now
  api:
    <<: *web
    started: 2024-02-29
    notes: |
      first: line
        second
list:
- 1.5e3
- - nested
  - ? key
    : value
...
---
other: document
"""


def reference(text: str) -> bool:
    try:
        list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, TypeError):  # an impossible date, a key that is a list
        return False
    return True


def test_agrees_with_safe_load_on_damaged_documents() -> None:
    texts = [*mutants(SAMPLE, 2000), *mutants("a: [1, {b: c}]\nd:\n- 'e'\n- \"f\"\n", 800, seed=1)]
    readings = [(parse(text, cut=False), reference(text)) for text in texts]
    # An anchor that holds itself is refused on purpose.
    pairs = [(mine.status is Status.VALID, real) for mine, real in readings if "unsafe" not in str(mine.findings)]
    # The reference is PyYAML's own parser. libyaml takes "b:{c}" in a flow for an error; nothing else was seen.
    assert sum(mine != real for mine, real in pairs) <= 3
    assert len(pairs) > 2700
    assert 300 < sum(real for _, real in pairs) < len(pairs) - 300


@given(st.integers(0, len(SAMPLE)))
def test_every_beginning_of_a_document_is_sound(end: int) -> None:
    assert parse(SAMPLE[:end], cut=True).status in (Status.VALID, Status.TRUNCATED)


@pytest.mark.parametrize("broken", ["a: b: c\n", "a: [1, }\n", "- a\nb: c\n", "a: *nope\n", "a: 'b' c\n", "\t- a: %\n"])
def test_broken_before_the_end_stays_broken(broken: str) -> None:
    assert parse(broken, cut=False).status is Status.INVALID
    assert parse(broken + "more: text\nand: mo", cut=True).status is Status.INVALID


def test_values() -> None:
    assert parse("a: [1, yes]", cut=False).value == {"a": [1, True]}
    assert parse("a: 1\n---\nb: 2\n", cut=False).value == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("cut", [False, True])
def test_what_stands_for_far_more_is_refused(cut: bool) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    reading = parse(bomb + "end: 1\n", cut)
    assert (reading.status, reading.findings[0].kind) == (Status.INVALID, "unsafe")
    assert str(MAX_NODES) in reading.findings[0].message
    assert parse("&a [*a]\n", cut).findings[0].kind == "unsafe"


def test_an_alias_may_be_used_again() -> None:
    assert parse("a: &a [1, 2]\nb: [*a, *a]\nc: &c 3\nd: *c\n", cut=False).value["d"] == 3


def test_depth_and_tags() -> None:
    assert parse("- " * 100_000, cut=False).findings[0].kind == "depth"
    assert parse("[" * 100_000, cut=False).status is Status.INVALID
    assert parse("!!python/object/apply:os.getcwd []", cut=False).status is Status.INVALID


@pytest.mark.parametrize("text", ["a: 2024-13-45\n", "a: " + "9" * 5000 + "\n", "{[1]: 2}\n", "a: \x07\n"])
def test_what_cannot_be_built_is_a_finding(text: str) -> None:
    assert parse(text, cut=False).findings[0].kind == "syntax"
