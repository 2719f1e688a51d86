"""Where draftgate touches vLLM: every private function it wraps, as data, checked before it is wrapped.

A plugin has no contract with these functions, so none is trusted. Each is looked up, its leading parameters are
compared with those that the wrapper reads, and what does not fit is left alone: vLLM then runs as without draftgate.
A wrapper that fails does the same for that call. Both are counted, and logged once.

Read in vLLM 0.32. V1 and V2 are its two model runners; V2 is its default on GPUs.
"""

import importlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any

__all__ = ["HOOKS", "READ_IN", "Faults", "Hook", "instead", "observed", "problem", "wrap"]

READ_IN = "0.32"  # the release whose source the wrappers were written for

Function = Callable[..., Any]
Wrapper = Callable[[Function], Function]


@dataclass(frozen=True, slots=True)
class Hook:
    """One function of vLLM.

    Attributes:
        module: the module whose name is replaced; for an imported name, the importing one.
        path: attribute path in the module.
        parameters: the leading parameters, in order, as the wrapper uses them.
        serves: what does not work without it.
    """

    module: str
    path: str
    parameters: tuple[str, ...]
    serves: str

    def owner(self) -> tuple[Any, str]:
        """The module or class that holds the function, and its name there.

        Raises:
            ImportError, AttributeError: this vLLM has no such place.
        """
        *parents, name = self.path.split(".")
        place = importlib.import_module(self.module)
        for parent in parents:
            place = getattr(place, parent)
        return place, name


_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"

HOOKS: Mapping[str, Hook] = MappingProxyType(
    {
        "v1.rule": Hook(
            "vllm.v1.sample.rejection_sampler",
            "rejection_sample",
            (
                "draft_token_ids",
                "num_draft_tokens",
                "max_spec_len",
                "cu_num_draft_tokens",
                "draft_probs",
                "target_logits",
                "bonus_token_ids",
                "sampling_metadata",
                "synthetic_mode",
                "synthetic_conditional_rates",
                "use_fp64_gumbel",
            ),
            "acceptance rules",
        ),
        "v1.init": Hook(_V1_RUNNER, "GPUModelRunner.__init__", ("self", "vllm_config", "device"), "all else of V1"),
        "v1.execute": Hook(
            _V1_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output"), "requests, step timing"
        ),
        "v1.sample": Hook(
            _V1_RUNNER, "GPUModelRunner._sample", ("self", "logits", "spec_decode_metadata"), "rows of a step"
        ),
        "v1.draft": Hook(
            _V1_RUNNER, "GPUModelRunner.propose_draft_token_ids", ("self", "scheduler_output"), "draft timing"
        ),
        "v2.init": Hook(_V2_RUNNER, "GPUModelRunner.__init__", ("self", "vllm_config", "device"), "all else of V2"),
        "v2.execute": Hook(
            _V2_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output"), "requests, step timing"
        ),
        "v2.rule": Hook(
            "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
            "rejection_sample",
            (
                "target_logits",
                "draft_logits",
                "draft_sampled",
                "cu_num_logits",
                "pos",
                "idx_mapping",
                "expanded_idx_mapping",
                "expanded_local_pos",
                "temperature",
                "seed",
                "num_speculative_steps",
                "synthetic_conditional_rates",
                "use_fp64",
                "use_block_verification",
                "contexts",
            ),
            "acceptance rules",
        ),
        "v2.sample": Hook(
            _V2_RUNNER, "GPUModelRunner.sample", ("self", "hidden_states", "input_batch"), "rows of a step"
        ),
        "v2.tokens": Hook(_V2_RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output"), "draft timing"),
        "schedule": Hook(
            "vllm.v1.core.sched.scheduler",
            "Scheduler._update_after_schedule",
            ("self", "scheduler_output"),
            "shorter drafts",
        ),
        "schedule.async": Hook(
            "vllm.v1.core.sched.async_scheduler",
            "AsyncScheduler._update_after_schedule",
            ("self", "scheduler_output"),
            "shorter drafts under asynchronous scheduling",
        ),
        "schedule.drafts": Hook(
            "vllm.v1.core.sched.scheduler",
            "Scheduler.update_draft_token_ids",
            ("self", "draft_token_ids"),
            "shorter drafts, request by request",
        ),
        "request": Hook(
            "vllm.v1.engine.input_processor",
            "InputProcessor._validate_params",
            ("self", "params"),
            "refusing unknown policy names",
        ),
    }
)
"""Every hook by name."""


class Faults:
    """Counts what went wrong, by hook, and logs the first of each; nothing here raises."""

    def __init__(self, log: logging.Logger) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._log = log

    def note(self, where: str, what: BaseException | str) -> None:
        """Count; log the first."""
        self.counts[where] += 1
        if where not in self.first:
            self.first[where] = what if isinstance(what, str) else f"{type(what).__name__}: {what}"
            self._log.error(
                "draftgate: %s: %s; vLLM's own behaviour is kept, further ones are only counted",
                where,
                self.first[where],
                exc_info=None if isinstance(what, str) else what,
            )


def problem(hook: Hook) -> str | None:
    """Why a hook cannot be used with the installed vLLM; None when it can."""
    try:
        owner, name = hook.owner()
        found = tuple(inspect.signature(inspect.getattr_static(owner, name)).parameters)
    except Exception as error:  # importing engine code can fail in any way
        return f"{hook.module}.{hook.path} is not there ({type(error).__name__}: {error})"
    if found[: len(hook.parameters)] != hook.parameters:
        return f"{hook.module}.{hook.path} takes ({_list(found)}), not ({_list(hook.parameters)})"
    return None


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def wrap(hook: Hook, wrapper: Wrapper) -> Callable[[], None]:
    """Replace a hook's function by `wrapper(function)`; returns how to undo it."""
    owner, name = hook.owner()
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, wrapper(original))
    return lambda: setattr(owner, name, original)


def instead(where: str, faults: Faults, replacement: Function) -> Wrapper:
    """Wrapper that calls `replacement(original, *args)`, and the original alone when that fails."""

    def wrapper(original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return replacement(original, *args, **kwargs)
            except Exception as error:  # a plugin must not raise into the engine
                faults.note(where, error)
                return original(*args, **kwargs)

        return call

    return wrapper


def observed(
    where: str, faults: Faults, before: Function | None = None, after: Callable[[Any, Any], None] | None = None
) -> Wrapper:
    """Wrapper that calls `before(*args)`, the original once, then `after(result, what before returned)`.

    Neither can change arguments or result by failing. Whatever the original raises passes through.
    """

    def wrapper(original: Function) -> Function:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            token = None
            try:
                token = before(*args, **kwargs) if before else None
            except Exception as error:  # a plugin must not raise into the engine
                faults.note(where, error)
            result = original(*args, **kwargs)
            try:
                if after:
                    after(result, token)
            except Exception as error:  # as above
                faults.note(where, error)
            return result

        return call

    return wrapper
