import ast
import inspect
import runpy
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.exact_python import older, parse
from draftgate.quality.judgement import Status

mutants = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "validators.py"))["mutants"]
SOURCE = inspect.getsource(textwrap)
SAMPLE = '''
import os.path as path, sys
from a.b import (c as d, e)

@decorated(1, *args, key=[x for x in y if x], **more)
async def f(a, /, b: int = 2, *rest: str, c, d=(1, 2), **kw) -> None:
    """Doc."""
    global g
    async with open(a) as f, b: await f.read()
    for i, (j, k) in enumerate(zip(a, b)):
        if i <= 2 < j != k or not (j and k): continue
        elif a is not b: x[1:2, ...] = lambda y: {**y, 'a': -y ** 2}
        else: raise ValueError(f"bad {i!r:>{k}} {j}") from None
    while (n := 10) > 1:
        try: del n
        except (A, B) as e: pass
        except: yield
        else: return
        finally: assert n, "message"
    match a:
        case [1, *_] | {"k": v} if v: print(f'{v}')
        case Point(x=0): x += 1; y @= 2
    s = r'\\d' \\
        """text"""

class A(B, metaclass=C):
    x: int = 0o17 + 0x1F + 1_000.5j
'''


def reference(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
    return True


def accepts(text: str) -> bool:
    return parse(text, cut=False).status is Status.VALID


def test_agrees_with_ast_on_damaged_sources() -> None:
    texts = [*mutants(SAMPLE, 1500), *mutants(SOURCE[:4000].rpartition("\n\n")[0], 800, seed=1)]
    truth = [reference(text) for text in texts]
    differ = [text for text, valid in zip(texts, truth, strict=True) if accepts(text) != valid]
    # Where they differ, the text is right in a newer Python, and right in this one when written the older way.
    assert all(accepts(text) and older(text) != text and reference(older(text)) for text in differ)
    assert len(differ) < 20
    assert 100 < sum(truth) < len(texts) - 1000  # both kinds are there


@pytest.mark.parametrize(
    "text",
    [
        "type X[T: int] = list[T]\n",
        "if a:\n    type X = int\n",
        "def f[T, *Ts, **P](x: T) -> T: ...\n",
        "def f[T = int](): ...\n",
        "class A[T](B): pass\n",
        "x = f'{a['b']}'\n",
        "x = f'{a[\"b\"]:>{w['n']}} {f'{f'{1}'}'}'\n",
        "x = f'{\na # why\n}'\ny = 1\n",
        "x = t'{a}' + t'b'\n",
        "try:\n    x\nexcept A, B, C:\n    y\nexcept D:\n    z\n",
        "x = 'a' f'{'x'}' 'b'\n",
    ],
)
def test_newer_syntax_is_valid_on_every_interpreter(text: str) -> None:
    assert accepts(text), older(text)
    assert older(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "type X[T] = = int\n",
        "def f[T](x: T) -> T: return return\n",
        "x = f'{a b}{c['d']}'\n",
        "x = f'{a['b']!z}'\n",
        "x = f'{}{a['b']}'\n",
        "x = f'{a['b']:{}}'\n",
        "try:\n    x\nexcept A,:\n    y z\n",
        "print 'x'\n",
        "exec 'x' in y\n",
        "f(a=1, 2)\n",
        "x = 5 = y\n",
    ],
)
def test_neither_newer_nor_older_syntax_is_invalid(text: str) -> None:
    assert parse(text, cut=False).status is Status.INVALID


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="only older interpreters refuse it")
def test_a_finding_behind_newer_syntax_keeps_its_line() -> None:
    (finding,) = parse("def f[T](x: T):\n    return x\n\ny = = 1\n", cut=False).findings
    assert (finding.line, finding.column) == (4, 5)


@given(st.integers(min_value=0, max_value=len(SOURCE)))
def test_every_beginning_of_a_source_is_sound(end: int) -> None:
    assert parse(SOURCE[:end], cut=True).status in (Status.VALID, Status.TRUNCATED)


@given(st.integers(min_value=0, max_value=len(SAMPLE)))
def test_so_is_every_beginning_of_the_sample(end: int) -> None:
    assert parse(SAMPLE[:end], cut=True).status in (Status.VALID, Status.TRUNCATED)


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("x = (1 +\n     2)\nz = 'unfini", "invalid", "truncated"),
        ("def f(x):\n    return foo(\n", "invalid", "truncated"),
        ("try:\n    x()\n", "invalid", "truncated"),
        ("s = '''text\n", "invalid", "truncated"),
        ("x = 1 + \\\n  ", "invalid", "truncated"),
        ("x = '\\d'\n", "valid", "valid"),
        ("x = (1]\ny = 2\n", "invalid", "invalid"),
        ("return x x\ny = ", "invalid", "invalid"),
        ("if x:\n  a\n b\nc", "invalid", "invalid"),
        ("def f[T](x: T):\n    return (x,\n", "invalid", "truncated"),
    ],
)
def test_whole_and_cut(text: str, whole: str, cut: str) -> None:
    assert parse(text, cut=False).status == whole
    assert parse(text, cut=True).status == cut


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "-" * 100_000 + "1", "not " * 100_000 + "1", "+".join("1" * 100_000), "a" + ".b" * 100_000]
)
def test_depth_is_a_finding_and_no_crash(text: str) -> None:
    (finding,) = parse(text, cut=False).findings
    assert finding.kind in ("depth", "syntax")
