import runpy
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.exact_toml import parse
from draftgate.quality.judgement import Status

mutants = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "validators.py"))["mutants"]
SAMPLE = '''title = "a \\"quoted\\" title" # comment
[owner]
name = 'Ann'
born = 1979-05-27T07:32:00Z
[servers."alpha.one"]
ports = [8000, 8001,
  0xFF, 1_000]
limits = {cpu = 0.5, on = true, deep.key = inf}
text = """
several
lines\\
"""
[[jobs]]
id = 1
[[jobs]]
id = 2
'''


def reference(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


def test_agrees_with_tomllib_on_damaged_documents() -> None:
    texts = [*mutants(SAMPLE, 1500), *mutants("a.b = [1, '2']\n[c]\nd = {e = 1}\n", 1000, seed=1)]
    truth = [reference(text) for text in texts]
    assert [parse(text, cut=False).status is Status.VALID for text in texts] == truth
    assert 100 < sum(truth) < len(texts) - 1000


@given(st.integers(0, len(SAMPLE)))
def test_every_beginning_of_a_document_is_sound(end: int) -> None:
    assert parse(SAMPLE[:end], cut=True).status in (Status.VALID, Status.TRUNCATED)


@pytest.mark.parametrize("broken", ["a = \n", "a = 1\na = 2\n", "[a\n", "a = [1 2]\n", "a b = 1\n", "a = 'x' y\n"])
def test_broken_before_the_end_stays_broken(broken: str) -> None:
    assert parse(broken, cut=False).status is Status.INVALID
    assert parse(broken + "c = 1\nd = 2", cut=True).status is Status.INVALID


def test_findings_have_places() -> None:
    (finding,) = parse("a = 1\nb = [1 2]\n", cut=False).findings
    assert (finding.line, finding.column) == (2, 8)
    (finding,) = parse("a = [1,\n", cut=False).findings
    assert (finding.line, finding.message) == (None, "Invalid value, at the end")


def test_depth_and_endless_numbers_are_findings() -> None:
    assert parse("a = " + "[" * 100_000, cut=False).findings[0].kind == "depth"
    assert parse("a = " + "9" * 5000, cut=False).findings[0].kind == "syntax"
    assert parse("a = 2024-13-45", cut=False).findings[0].kind == "syntax"
