"""Options that several verbs share."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from draftgate.engines.base import Engine

__all__ = ["duration", "engine_options", "open_engine", "sampling_options"]

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
    """--target, --draft, --context, --threads."""
    for option in reversed(
        [
            click.option(
                "--target",
                default="smollm2-135m",
                show_default=True,
                metavar="NAME|PATH",
                help="Target model: a name from 'draftgate models list' or a GGUF file.",
            ),
            click.option(
                "--draft",
                default="lookup",
                show_default=True,
                metavar="lookup|NAME|PATH",
                help="Where drafts come from: lookup in the text so far, or a draft model.",
            ),
            click.option(
                "--context",
                default=2048,
                show_default=True,
                type=click.IntRange(64),
                help="Tokens a sequence can hold, prompt and output.",
            ),
            click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: the faster of 1 and all]"),
        ]
    ):
        function = option(function)
    return function


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


def open_engine(target: str, draft: str, context: int, threads: int | None) -> "Engine":
    """The embedded engine on models given by name or path; nothing is downloaded here.

    Raises:
        ModelError: a model is not on this machine, damaged, or they do not fit each other.
    """
    from draftgate.engines.llamacpp.engine import LOOKUP, LlamaCpp
    from draftgate.engines.llamacpp.models import resolve

    drafter: Path | str = LOOKUP if draft == LOOKUP else resolve(draft)
    return LlamaCpp(resolve(target), drafter, context, threads)
