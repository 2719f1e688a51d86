"""Small output checks by name: is this text the kind of thing that was asked for?

They tell whether a workload is checkable at all and catch gross damage. An output that was cut at `max_tokens` is
judged by what is there: it fails when no continuation could repair it.
"""

import ast
import codeop
import json
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from draftgate.workload.prompt import Prompt

__all__ = ["check", "json_prefix"]


def check(prompt: Prompt, text: str, truncated: bool) -> bool | None:
    """Run the check that `prompt.check` names on one output.

    Args:
        prompt: its `prompt` text precedes the output in the `python` check; its `tools` bound `tool-call`.
        text: the output.
        truncated: the output was cut by `max_tokens`, not ended by the model.

    Returns:
        None when nothing can be said: no check, or a whole value is needed and the cut left only a sound beginning.

    >>> check(Prompt("a", prompt="def f(x):", check="python"), " return x +", truncated=False)
    False
    """
    return _CHECKS[prompt.check or "none"](prompt, text, truncated)


def _none(prompt: Prompt, text: str, truncated: bool) -> None:
    return None


def _json(prompt: Prompt, text: str, truncated: bool) -> bool | None:
    return _whole(_unfenced(text), truncated, lambda value: True)


def _json_prefix(prompt: Prompt, text: str, truncated: bool) -> bool:
    return _json(prompt, text, truncated) is not False


def _tool_call(prompt: Prompt, text: str, truncated: bool) -> bool | None:
    names = [tool["function"]["name"] for tool in prompt.tools or ()]

    def calls(value: Any) -> bool:
        return isinstance(value, dict) and value.get("name") in names and isinstance(value.get("arguments"), dict)

    return _whole(_unfenced(text), truncated, calls)


def _python(prompt: Prompt, text: str, truncated: bool) -> bool:
    source = prompt.prompt + text if prompt.prompt else _unfenced(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the code's own, such as an invalid escape: legal, so no failure
        try:
            if not truncated:
                return bool(ast.parse(source))
            # Returns None, and does not raise, when only the end is missing.
            codeop.compile_command(_LAST_LINE.sub("", source), symbol="exec")
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return False
    return True


_CHECKS: Mapping[str, Callable[[Prompt, str, bool], bool | None]] = {
    "json": _json,
    "json-prefix": _json_prefix,
    "none": _none,
    "python": _python,
    "tool-call": _tool_call,
}

_LAST_LINE = re.compile(r"(?:.*\\\n)*.*\Z")  # with the lines that a backslash joins to it
_FENCED = re.compile(r"\s*```\w*(?:\n|\Z)(.*?)(?:\n`{1,3})?\s*", re.DOTALL)


def _unfenced(text: str) -> str:
    fenced = _FENCED.fullmatch(text)
    return fenced[1] if fenced else text


def _whole(text: str, truncated: bool, accept: Callable[[Any], bool]) -> bool | None:
    try:
        return accept(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return None if truncated and json_prefix(text) else False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON (RFC 8259)")


_VALUE = "sv{["  # kinds of token: s string, v other scalar, and each mark as itself
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*'
_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_TOKEN = re.compile(
    rf'[ \t\n\r]*(?:(?P<s>{_STRING}")|(?P<mark>[][{{}}:,])'
    rf"|(?P<v>(?:{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)(?![\w.+-])))"
)
_CUT_STRING = re.compile(rf"{_STRING}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?")
_CUT_SCALAR = re.compile(rf"-|{_INTEGER}(?:\.|(?:\.[0-9]+)?[eE][+-]?)|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?")


def json_prefix(text: str) -> bool:
    """Whether some continuation of `text` is one JSON value (RFC 8259): one scan, a stack of open brackets.

    >>> [json_prefix(text) for text in ('[1, {"a": tr', "[1 2", '{"a": 1}}')]
    [True, False, False]
    """
    stack: list[str] = []
    expected, at = _VALUE, 0
    while token := _TOKEN.match(text, at):
        kind, at = token["mark"] or str(token.lastgroup), token.end()
        if kind not in expected:
            return False
        expected = _after(kind, expected, stack)
    rest = text[at:].lstrip(" \t\n\r")
    cut_string = "s" in expected and _CUT_STRING.fullmatch(rest)
    return not rest or bool(cut_string or ("v" in expected and _CUT_SCALAR.fullmatch(rest)))


def _after(kind: str, expected: str, stack: list[str]) -> str:
    """Kinds of token that may follow; opens and closes brackets on the stack."""
    if kind in "{[":
        stack.append(kind)
        return "s}" if kind == "{" else _VALUE + "]"
    if kind == ",":
        return "s" if stack[-1] == "{" else _VALUE
    if kind == ":":
        return _VALUE
    if kind == "s" and "v" not in expected:  # a key: only there may a string stand and a number not
        return ":"
    if kind in "}]":
        stack.pop()
    return {"{": ",}", "[": ",]"}[stack[-1]] if stack else ""
