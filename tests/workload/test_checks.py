import inspect
import json
import textwrap
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftgate.workload import Message, Prompt, check
from draftgate.workload.checks import json_prefix
from draftgate.workload.prompt import CHECK_NAMES

TOOLS = ({"type": "function", "function": {"name": "add"}},)


def run(name: str, text: str, truncated: bool = False, prompt: str = "go") -> bool | None:
    return check(Prompt("p", prompt=prompt, tools=TOOLS, check=name), text, truncated)


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_every_named_check_exists(name: str) -> None:
    assert run(name, "'") in (None, False)


def test_nothing_to_check() -> None:
    assert run("none", "{") is None
    assert check(Prompt("p", prompt="x"), "{", truncated=False) is None


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ('{"a": [1, 2.5e3, true, null]}', True, True),
        (' ```json\n{"a": 1}\n``` ', True, True),
        ("```\n[]\n```", True, True),
        ('{"a": 1', False, None),
        ('```json\n{"a": 1', False, None),
        ("```json", False, None),
        ('{"a": 1}\n``', False, False),
        ('```json\n{"a": 1}\n```\nHere it is.', False, False),
        ("", False, None),
        ("NaN", False, False),
        ("[Infinity]", False, False),
        ("{'a': 1}", False, False),
        ('{"a": 1,}', False, False),
        ('{"a": 1}{"a": 2}', False, False),
    ],
)
def test_json(text: str, whole: bool, cut: bool | None) -> None:
    assert run("json", text) is whole
    assert run("json", text, truncated=True) is cut
    assert run("json-prefix", text) is whole
    assert run("json-prefix", text, truncated=True) is (cut is not False)


def test_deep_nesting_is_no_crash() -> None:
    assert run("json", "[" * 100_000 + "]" * 100_000) is False
    assert run("json-prefix", "[" * 100_000, truncated=True) is True
    assert run("python", "x = " + "(" * 100_000, prompt="#\n") is False


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', True, True),
        ('```json\n{"name": "add", "arguments": {}}\n```', True, True),
        ('{"name": "add", "argum', False, None),
        ('{"name": "subtract", "arguments": {}}', False, False),
        ('{"name": "add", "arguments": []}', False, False),
        ('{"name": "add"}', False, False),
        ('[{"name": "add", "arguments": {}}]', False, False),
        ('{"name": ["add"], "arguments": {}}', False, False),
        ("I would add them.", False, False),
    ],
)
def test_tool_call(text: str, whole: bool, cut: bool | None) -> None:
    assert run("tool-call", text) is whole
    assert run("tool-call", text, truncated=True) is cut


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("    return x\n", True, True),
        ("    return (x +\n            y)\n    z = 'unfini", False, True),
        ("    return foo(\n", False, True),
        ("    try:\n        x()\n", False, True),
        ("    s = '''text\n", False, True),
        ("    return x + \\\n  ", False, True),
        ("    return '\\d'\n", True, True),
        ("    return x x\n", False, False),
        ("  return\n return\n", False, False),
        ("    return x\n```\nThis function returns x.\n", False, False),
        ("    return '\0'\n", False, False),
    ],
)
def test_python_continues_the_prompt(text: str, whole: bool, cut: bool) -> None:
    assert run("python", text, prompt="def f(x, y):\n") is whole
    assert run("python", text, truncated=True, prompt="def f(x, y):\n") is cut


def test_python_in_an_answer() -> None:
    chat = Prompt("p", messages=(Message("user", "Write f!"),), check="python")
    assert check(chat, "```python\ndef f(): ...\n```", truncated=False) is True
    assert check(chat, "```python\ndef f(): ...\ndef g(", truncated=True) is True
    assert check(chat, "def f() ...", truncated=False) is False


@given(st.integers(min_value=0, max_value=len(inspect.getsource(textwrap))))
def test_python_cut_anywhere_is_sound(end: int) -> None:
    assert run("python", inspect.getsource(textwrap)[:end], truncated=True, prompt="#\n") is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_every_beginning_of_json_is_a_prefix(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for end in range(len(text) + 1):
        assert json_prefix(text[:end])


@given(st.text('{}[],:"\\ntrueu01.eE+- ', max_size=12))
@example('["\\u00')
@example("[-")
@example("[01")
def test_prefixes_are_closed_and_contain_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        parses = False
    else:
        parses = True
    assert json_prefix(text) or not parses
    if json_prefix(text):
        assert all(json_prefix(text[:end]) for end in range(len(text)))


def completes(text: str) -> bool:
    """By brute force: some short ending makes `text` JSON."""
    ends = ["", "0", '"', '0"', '""', '0":0', '":0', '"":0', ":0", "rue", "ue", "e", "ull", "ll", "l"]
    closers = ["".join(closer) for n in range(4) for closer in product("]}", repeat=n)]
    return any(_parses(text + end + closer) for end in ends for closer in closers)


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("length", range(4))
def test_agrees_with_brute_force_on_short_texts(length: int) -> None:
    for chars in product('{}[],:"0.-etn', repeat=length):
        text = "".join(chars)
        assert json_prefix(text) is completes(text), text
