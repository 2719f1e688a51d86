"""Where the tool calls are in an output: one grammar a format, read strictly from left to right.

    openai        a message or call object: {"tool_calls": [{"function": {"name": ..., "arguments": "{...}"}}]}
    hermes        <tool_call>{"name": ..., "arguments": {...}}</tool_call>, repeated; Hermes, Qwen 2.5, Qwen 3
    qwen3-coder   <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>, repeated; the outer
                  tag may be missing
    llama3        <|python_tag|>{"name": ..., "parameters": {...}}; {...}; the tag may be missing
    mistral       [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]
    mistral-v11   [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}, repeated; the marks after the name may be missing
    json          one call object, or an array of them
    fenced        the same in a Markdown fence, closed or not

Text may stand before a tag, as engines hand it on as content, and a thought up to `</think>` before anything. Nothing
but an end-of-turn token may follow. What only some engines repair (a missing closing tag, Python literals, text after
a call) is refused: the formats as the models' own templates write them are the common ground.

Sources: vLLM 0.32 `vllm/tool_parsers/{hermes,llama}_tool_parser.py`, `vllm/parser/{qwen3,mistral}.py`; SGLang
`srt/function_call/{qwen25,qwen3_coder,llama32,mistral}_detector.py`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftgate.quality.scan import (
    Broken,
    Cut,
    expect,
    is_cut,
    more,
    name_in_tag,
    parse_json,
    read_json,
    short,
    skip,
    word,
)

__all__ = ["Reading", "Written", "read"]


@dataclass(frozen=True, slots=True)
class Written:
    """One complete call, its parts not yet checked.

    Attributes:
        form: name of the format.
        value: any JSON value; should be {"name": ..., "arguments": {...}}, whatever the format calls them.
        at: where it starts [characters]; None in an object that came parsed.
    """

    form: str
    value: Any
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in an output.

    Attributes:
        form: name of the format; None when no call begins.
        calls: the complete ones, in order.
        broken: why reading stopped before the end of the text, if it did.
        cut: the text ends inside a call, or before anything was said.
    """

    form: str | None
    calls: tuple[Written, ...] = ()
    broken: Broken | None = None
    cut: bool = False


def read(output: str | Mapping[str, Any]) -> Reading:
    """Find the calls in a text, or in a message or call object of the OpenAI API.

    >>> read('Sure. <tool_call>{"name": "f", "arguments": {}}</tool_call>').calls[0].value["name"]
    'f'
    >>> read('[TOOL_CALLS]f[ARGS]{"x": 1').cut
    True
    """
    if isinstance(output, str):
        return _read_text(_without_end_tokens(output))
    return _collect("openai", _message(output))


def _read_text(text: str) -> Reading:
    start = _after_thought(text)
    if bare := _BARE.match(text, start):
        form, end = ("fenced", _fence_end(text, bare)) if bare["fence"] else ("json", len(text))
        return _collect(form, _json_calls(text[:end], bare.end(), form))
    if opener := _OPENER.search(text, start):
        form = str(opener.lastgroup).replace("_", "-")
        return _collect(form, _GRAMMARS[form](text, opener.start()))
    return Reading(None, cut=text.endswith(_CUT_OPENERS) or bool(_NOTHING_YET.fullmatch(text, start)))


def _collect(form: str, grammar: Iterator[Written]) -> Reading:
    calls: list[Written] = []
    broken, cut = None, False
    try:
        calls.extend(grammar)  # what came before a failure stays
    except Broken as error:
        broken = error
    except Cut:
        cut = True
    return Reading(calls[0].form if calls else form, tuple(calls), broken, cut)


# The grammars: each from the offset of its first mark to the end of the text.


def _message(value: Mapping[str, Any]) -> Iterator[Written]:
    """A server closes the objects around arguments that the token limit cut, so those of the last call may be."""
    calls = _each(value)
    for i, call in enumerate(calls, 1):
        yield _call("openai", call, None, may_be_cut=i == len(calls))


def _json_calls(text: str, at: int, form: str) -> Iterator[Written]:
    while True:
        value, end = read_json(text, at)
        for call in _each(value):
            yield _call(form, call, at)
        if not more(text, end, ";"):
            return
        at = expect(text, end, ";")[1]


def _llama3(text: str, at: int) -> Iterator[Written]:
    return _json_calls(text, at + len(_PYTHON), "llama3")


def _hermes(text: str, at: int) -> Iterator[Written]:
    while more(text, at, _CALL):
        start = skip(text, at)
        _, at = expect(text, at, _CALL)
        if is_cut(text, skip(text, at), _FUNCTION):  # the qwen3-coder format begins alike
            raise Cut
        value, at = read_json(text, at)
        yield Written("hermes", value, start)
        _, at = expect(text, at, _CALL_END)


def _qwen3_coder(text: str, at: int) -> Iterator[Written]:
    while more(text, at, _CALL, _FUNCTION):
        start = skip(text, at)
        opener, at = expect(text, at, _CALL, _FUNCTION)
        if opener == _CALL:
            _, at = expect(text, at, _FUNCTION)
        name, at = name_in_tag(text, at)
        arguments, at = _parameters(text, at)
        yield Written("qwen3-coder", {"name": name, "arguments": arguments}, start)
        if opener == _CALL:
            _, at = expect(text, at, _CALL_END)


def _parameters(text: str, at: int) -> tuple[dict[str, str], int]:
    values: dict[str, str] = {}
    while True:
        start = at
        tag, at = expect(text, at, _PARAMETER, _FUNCTION_END)
        if tag == _FUNCTION_END:
            return values, at
        name, at = name_in_tag(text, at)
        end = _VALUE_END.search(text, at)
        if end is None:
            raise Cut
        if end[0] != _PARAMETER_END:  # engines end the value here all the same
            raise Broken(f"the value of {short(name)} is not closed by {_PARAMETER_END}", end.start())
        if name in values:
            raise Broken(f"the parameter {short(name)} is given twice", start)
        # The template puts a value on lines of its own.
        values[name] = text[at : end.start()].removeprefix("\n").removesuffix("\n")
        at = end.end()


def _mistral(text: str, at: int) -> Iterator[Written]:
    value, end = read_json(text, at + len(_TOOL_CALLS))
    for call in _each(value):
        yield Written("mistral", call, at)
    more(text, end)


def _mistral_v11(text: str, at: int) -> Iterator[Written]:
    while more(text, at, _TOOL_CALLS):
        start = skip(text, at)
        _, at = expect(text, at, _TOOL_CALLS)
        name, at = word(text, at)
        mark, after = expect(text, at, "[CALL_ID]", "[ARGS]", "{")
        if mark == "[CALL_ID]":
            _, at = word(text, after)
            mark, after = expect(text, at, "[ARGS]", "{")
        value, at = read_json(text, at if mark == "{" else after)
        yield Written("mistral-v11", {"name": name, "arguments": value}, start)


_GRAMMARS: Mapping[str, Callable[[str, int], Iterator[Written]]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "mistral-v11": _mistral_v11,
    "qwen3-coder": _qwen3_coder,
}


def _each(value: Any) -> list[Any]:
    """The calls in a value: those of a message, of an array, or the value itself."""
    if isinstance(value, Mapping) and "tool_calls" in value:
        value = value["tool_calls"] or []
    return value if isinstance(value, list) else [value]


def _call(form: str, value: Any, at: int | None, may_be_cut: bool = False) -> Written:
    """A call in JSON: as the OpenAI API nests it, as Llama 3 calls its arguments, or plain."""
    if not isinstance(value, Mapping):
        return Written(form, value, at)
    if isinstance(function := value.get("function"), Mapping):
        return Written("openai", {**function, "arguments": _decoded(function.get("arguments"), at, may_be_cut)}, at)
    if "parameters" not in value:
        return Written(form, value, at)
    if "arguments" in value:
        raise Broken("a call must have either arguments or parameters, not both", at)
    return Written("llama3" if form == "json" else form, {**value, "arguments": value["parameters"]}, at)


def _decoded(arguments: Any, at: int | None, may_be_cut: bool) -> Any:
    """The OpenAI API sends arguments as JSON in a string."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return parse_json(arguments)
    except Broken as error:
        raise Broken(f"the arguments: {error}", at) from None
    except Cut:
        if may_be_cut:
            raise
        raise Broken("the arguments: not JSON: they end too early", at) from None


# What stands around the calls.


def _without_end_tokens(text: str) -> str:
    end = len(text.rstrip())
    while token := next((token for token in _END_TOKENS if text.endswith(token, 0, end)), ""):
        end -= len(token)
        while end and text[end - 1].isspace():
            end -= 1
    return text[:end]


def _after_thought(text: str) -> int:
    """Where the answer starts. A template may have opened the thought in the prompt already."""
    end = text.find(_THOUGHT_END)
    if _THOUGHT.match(text):
        return end + len(_THOUGHT_END) if end >= 0 else len(text)
    in_answer = end < 0 or _BARE.match(text) or _OPENER.search(text, 0, end)
    return 0 if in_answer else end + len(_THOUGHT_END)


def _fence_end(text: str, bare: re.Match[str]) -> int:
    return max(bare.end(), len(text.rstrip().rstrip(bare["fence"][0])))


_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_TOOL_CALLS, _PYTHON = "[TOOL_CALLS]", "<|python_tag|>"
_THOUGHT_END = "</think>"
_END_TOKENS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>")
_CUT_OPENERS = tuple(tag[:n] for tag in (_CALL, _FUNCTION, _TOOL_CALLS, _PYTHON) for n in range(1, len(tag)))

_VALUE_END = re.compile(f"{_PARAMETER_END}|{_PARAMETER}|{_FUNCTION_END}")
_THOUGHT = re.compile(r"\s*+<think>")
_NOTHING_YET = re.compile(r"\s*+(?:[`~]{1,3}+[\w+-]*+)?+\s*+")
_BARE = re.compile(  # JSON at the start, or at the start of a fence; not prose such as "{thinking}" or "[Note]"
    r"\s*+(?:(?P<fence>`{3,}+|~{3,}+)[\w+-]*+[ \t]*+\r?\n\s*+)?+(?=\{(?!\s*+[a-zA-Z])|\[\s*+(?:[{\]]|\Z))"
)
_OPENER = re.compile(
    r"(?P<qwen3_coder>(?:<tool_call>\s*+)?<function=)|(?P<hermes><tool_call>)|(?P<llama3><\|python_tag\|>)"
    r"|(?P<mistral>\[TOOL_CALLS\](?=\s*+\[\s*+(?:[{\]]|\Z)))|(?P<mistral_v11>\[TOOL_CALLS\])"
)
