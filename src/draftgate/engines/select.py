"""Opening the engine that a command line names."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftgate.errors import ConfigError, nearest

if TYPE_CHECKING:
    from draftgate.engines.base import Engine

__all__ = ["ENGINES", "KEY_ENV", "LOOKUP", "Choice", "open_engine"]

ENGINES = ("llamacpp", "vllm")
LOOKUP = "lookup"  # drafts from the text so far, whatever the engine calls it
KEY_ENV = "DRAFTGATE_API_KEY"  # key of a server; not an option, so that it shows in no process list
_SMALL_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was said of the engine.

    Attributes:
        engine: one of `ENGINES`.
        target: model; None is the small embedded one, or whatever a server serves.
        draft: "lookup", or a draft model; for vLLM what `config.for_draft` reads, or a speculative_config as JSON.
        context: tokens of a sequence; a server has its own.
        threads: CPU threads; None leaves it to the engine.
        url: a running server; None runs the engine here.
        engine_args: other arguments of `vllm.LLM`, as JSON.
    """

    engine: str = "llamacpp"
    target: str | None = None
    draft: str = LOOKUP
    context: int = 2048
    threads: int | None = None
    url: str | None = None
    engine_args: str | None = None


def open_engine(choice: Choice) -> "Engine":
    """Open it; nothing is downloaded here.

    Raises:
        ConfigError: no such engine, or a setting that it does not have.
        ModelError: a model is not on this machine, damaged, or they do not fit each other.
        MissingExtraError: the engine's own package is not installed.
        EngineError: a server cannot be reached.
    """
    if choice.engine not in ENGINES:
        raise ConfigError(f"no engine '{choice.engine}'; {nearest(choice.engine, ENGINES)}")
    if choice.engine == "llamacpp":
        return _llamacpp(choice)
    return _vllm_server(choice) if choice.url else _vllm_here(choice)


def _llamacpp(choice: Choice) -> "Engine":
    from draftgate.engines.llamacpp.engine import LlamaCpp
    from draftgate.engines.llamacpp.models import resolve

    for name in ("url", "engine_args"):
        if getattr(choice, name) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for --engine vllm; the embedded engine runs in this process"
            )
    drafter: Path | str = LOOKUP if choice.draft == LOOKUP else resolve(choice.draft)
    return LlamaCpp(resolve(choice.target or _SMALL_MODEL), drafter, choice.context, choice.threads)


def _vllm_here(choice: Choice) -> "Engine":
    from draftgate.errors import require

    if choice.target is None:
        raise ConfigError("--engine vllm needs --target: a model folder in Hugging Face's format, or --url: a server")
    require("vllm", "vllm")  # before torch, which the next line imports, is missed under its own name
    from draftgate.engines.vllm.offline import VllmOffline

    draft: Any = "ngram" if choice.draft == LOOKUP else choice.draft
    if choice.draft.lstrip().startswith("{"):
        draft = _mapping("--draft", choice.draft)
    options = _mapping("--engine-args", choice.engine_args or "{}")
    return VllmOffline(choice.target, draft, n_ctx=choice.context, threads=choice.threads, options=options)


def _vllm_server(choice: Choice) -> "Engine":
    from draftgate.engines.vllm.client import Client
    from draftgate.engines.vllm.http import VllmServer

    assert choice.url is not None
    if choice.draft != LOOKUP or choice.engine_args is not None:
        raise ConfigError(
            "a server has its draft and arguments from its own start; leave --draft and --engine-args out"
        )
    return VllmServer(Client(choice.url, os.environ.get(KEY_ENV)), choice.target)


def _mapping(option: str, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option}: is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{option}: must be a JSON object but got {text:.40}")
    return data
