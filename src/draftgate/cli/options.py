"""Options that several verbs share."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

from draftgate.engines.select import ENGINES, LOOKUP, Choice, open_engine

__all__ = ["duration", "engine_options", "open_engine", "quality_options", "sampling_options"]

F = TypeVar("F", bound=Callable[..., Any])


def duration(value: str) -> float:
    """Seconds of a time that a user wrote.

    >>> duration("90s"), duration("1.5h"), duration("20")
    (90.0, 5400.0, 20.0)

    Raises:
        click.BadParameter: it is not a time above 0.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|h|)", value.strip(), re.ASCII)
    if not match or float(match[1]) == 0:
        raise click.BadParameter(f"must be a time such as 90s, 10m or 1h but got {value!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "": 1}[match[2]]


def engine_options(function: F) -> F:
    """What to run: --engine, --target, --draft and so on; the command gets them as one `choice`."""

    @wraps(function)
    def collected(*args: Any, **kwargs: Any) -> Any:
        choice = Choice(**{name: kwargs.pop(name) for name in Choice.__dataclass_fields__})
        return function(*args, choice=choice, **kwargs)

    for option in reversed(
        [
            click.option("--engine", default=ENGINES[0], show_default=True, metavar="NAME", help=" or ".join(ENGINES)),
            click.option(
                "--target",
                metavar="NAME|PATH",
                help="Target model: a name from 'draftgate models list' or a GGUF file; for vLLM a folder in Hugging "
                "Face's format.  [default: smollm2-135m]",
            ),
            click.option(
                "--draft",
                default=LOOKUP,
                show_default=True,
                metavar="lookup|NAME|PATH",
                help="Where drafts come from: lookup in the text so far, or a draft model. For vLLM also METHOD, "
                "METHOD:PATH, or a speculative_config as JSON.",
            ),
            click.option(
                "--context",
                default=2048,
                show_default=True,
                type=click.IntRange(64),
                help="Tokens a sequence can hold, prompt and output.",
            ),
            click.option(
                "--threads",
                type=click.IntRange(1),
                help="CPU threads.  [default: the faster of 1 and all; vLLM: its own]",
            ),
            click.option("--url", metavar="URL", help="A running vLLM server, instead of loading a model here."),
            click.option("--engine-args", metavar="JSON", help='More arguments of vllm.LLM, as {"dtype": "float32"}.'),
        ]
    ):
        collected = option(collected)
    return cast(F, collected)


def sampling_options(function: F) -> F:
    """--temperature, --top-k, --top-p, --min-p, --seed, --max-tokens, --constrained."""
    for option in reversed(
        [
            click.option(
                "--temperature", default=0.0, show_default=True, type=click.FloatRange(0, 10), help="0 is greedy."
            ),
            click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0 keeps all tokens."),
            click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True)),
            click.option("--min-p", default=0.0, show_default=True, type=click.FloatRange(0, 1)),
            click.option(
                "--max-tokens",
                default=64,
                show_default=True,
                type=click.IntRange(2),
                help="Output limit of prompts that set none.",
            ),
            click.option("--seed", default=0, show_default=True, type=click.IntRange(0)),
            click.option(
                "--constrained",
                is_flag=True,
                help="Mask tokens that the JSON Schema or tools of a prompt refuse.",
            ),
        ]
    ):
        function = option(function)
    return function


def quality_options(function: F) -> F:
    """--floor, --margin, --run-tests."""
    for option in reversed(
        [
            click.option(
                "--floor",
                type=click.FloatRange(0, 1, min_open=True, max_open=True),
                help="Least share of valid outputs.  [default: .95 code, .98 structured, none for chat]",
            ),
            click.option(
                "--margin",
                default=0.05,
                show_default=True,
                type=click.FloatRange(0, 1, max_open=True),
                help="Share of valid outputs that a lossy arm may lose against no speculation.",
            ),
            click.option("--run-tests", is_flag=True, help="Run the tests of prompts that have them, in a sandbox."),
        ]
    ):
        function = option(function)
    return function
