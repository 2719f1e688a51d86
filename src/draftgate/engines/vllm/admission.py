"""Refusing requests whose extra arguments make no sense, before they reach the engine; over HTTP that is a 400."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from draftgate.control.channel import Channel
from draftgate.engines.vllm.control import FILE_ENV
from draftgate.engines.vllm.hooks import Faults, Wrapper
from draftgate.engines.vllm.rows import Ask, asked
from draftgate.engines.vllm.source import PolicySource
from draftgate.errors import ConfigError

__all__ = ["UNKNOWN_ENV", "refusing"]

UNKNOWN_ENV = "DRAFTGATE_UNKNOWN"


def refusing(faults: Faults, source: PolicySource) -> Wrapper:
    """Wrapper of `InputProcessor._validate_params` that raises `VLLMValidationError` for requests to refuse.

    An argument that draftgate does not know is always refused. The name of a policy that is not in force is refused if
    DRAFTGATE_UNKNOWN is "refuse", else the default policy serves. An API server that is a process of its own knows
    what is in force from the policy file and from orders that it passed on itself.
    """
    path = os.environ.get(FILE_ENV)
    channel = Channel(Path(path)) if path and os.environ.get(UNKNOWN_ENV) == "refuse" else None

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            refused = None
            try:
                ask = asked(getattr(params, "extra_args", None))
                if os.environ.get(UNKNOWN_ENV) == "refuse":
                    _known(ask, source, channel)
            except ConfigError as error:
                refused = str(error)
            except Exception as error:  # a plugin must not raise into the engine
                faults.note("request", error)
            if refused:
                raise _error(refused)
            return original(self, params, *args, **kwargs)

        return call

    return wrapper


def _error(message: str) -> Exception:
    """vLLM's own error for a wrong request: any other that is raised here becomes a 500 over HTTP."""
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError as error:  # another release; whatever it does with it, the request is refused
        return ValueError(f"{message} ({error})")
    refusal: Exception = VLLMValidationError(message, parameter="vllm_xargs")
    return refusal


def _known(ask: Ask, source: PolicySource, channel: Channel | None) -> None:
    """Look the policy up in what is in force, and in what the file says, which may be in force already.

    Raises:
        ConfigError: neither has it.
    """
    if channel is not None:
        channel.poll()
    held = None if channel is None else channel.current
    refusals = []
    for policies in (source.current, held):
        if policies is None:
            continue
        try:
            policies.of(ask.workload, ask.policy)
            return
        except ConfigError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
