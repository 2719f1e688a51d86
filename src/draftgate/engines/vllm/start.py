"""Starting `vllm.LLM` so that draftgate can drive it, and what it says of itself."""

import importlib
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgate.engines.vllm.plugin import register
from draftgate.errors import ConfigError, ModelError, require
from draftgate.trace.setup import Setup

__all__ = ["described", "end_tokens", "setup_of", "start"]

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # steps are taken here
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for results
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB at most, on a CPU: else vLLM takes 92% of the machine's memory for itself
}
_CPU_BLOCK_TOK = 128  # tokens of a cache block there


def start(
    target: str,
    speculative: Mapping[str, Any] | None,
    n_ctx: int,
    threads: int | None,
    max_batch: int,
    options: Mapping[str, Any],
) -> Any:
    """A `vllm.LLM` whose engine core lives in this process; `speculative` None starts it without speculation.

    Raises:
        ConfigError: vLLM refuses an argument, or one of the options is draftgate's to set.
        ModelError: the model cannot be read.
        MissingExtraError: vLLM is not installed.
    """
    ours = {
        "model": target,
        "max_model_len": n_ctx,
        "max_num_seqs": max_batch,
        "speculative_config": None if speculative is None else dict(speculative),
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "max_logprobs": -1,
        "per_request_spec_decode_metrics": "detailed" if speculative else "none",
    }
    if taken := sorted(ours.keys() & options.keys()):
        raise ConfigError(f"engine option '{taken[0]}' is set by draftgate; leave it out")
    os.environ |= {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
    _keep_threads(threads)
    vllm = require("vllm", "vllm")
    register()  # the entry point does it too, but not where VLLM_PLUGINS leaves it out
    _allow_a_second_engine()
    if require("vllm.platforms", "vllm").current_platform.is_cpu():
        options = _cache(n_ctx, max_batch) | dict(options)
    try:
        with _quiet():
            return vllm.LLM(**ours, **options)
    except OSError as error:
        raise ModelError(f"{target}: cannot be loaded: {error}") from error
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"vLLM refuses this configuration: {error}") from error


def _cache(n_ctx: int, max_batch: int) -> dict[str, int]:
    """Options for a cache that holds as many tokens as can run at once, and no more.

    On a CPU vLLM writes zeros to the whole cache when it starts, so all of it is memory in use: by default 92% of the
    machine's. One block more a sequence is for drafted tokens, one of all is vLLM's own.
    """
    blocks = max_batch * (math.ceil(n_ctx / _CPU_BLOCK_TOK) + 1) + 1
    return {"block_size": _CPU_BLOCK_TOK, "num_gpu_blocks_override": blocks}


def _keep_threads(threads: int | None) -> None:
    """Set CPU threads, and keep them: the n-gram drafter's numba else sets OpenMP's count to all processors."""
    wanted = os.environ.get("OMP_NUM_THREADS") if threads is None else str(threads)
    if wanted is not None and wanted.isdecimal():
        os.environ.setdefault("NUMBA_NUM_THREADS", wanted)
        require("torch", "vllm").set_num_threads(int(wanted))


def _allow_a_second_engine() -> None:
    """Keep vLLM's CPU build (0.32) from failing at the second engine of a process.

    When an engine starts, it looks at the attributes of every object of every loaded module, takes them for a
    dictionary, and trips over one of llvmlite's, which the n-gram drafter of the first engine has loaded.
    """
    try:
        dispatcher: Any = importlib.import_module("vllm.triton_utils.dispatcher")
    except ImportError:  # another build
        return

    def attributes(value: Any) -> Mapping[str, Any]:
        found = vars(value)
        return found if isinstance(found, Mapping) else {}

    dispatcher.vars = attributes  # found before the builtin


@contextmanager
def _quiet() -> Iterator[None]:
    """Send what C++ libraries print on stdout to stderr, and leave what libraries deprecate to them."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def end_tokens(llm: Any) -> frozenset[int]:
    """Tokens that end generation: those of the model's generation config and its tokenizer's."""
    config = llm.llm_engine.vllm_config.model_config.try_get_generation_config().get("eos_token_id") or []
    more = llm.get_tokenizer().eos_token_id
    listed = config if isinstance(config, list) else [config]
    return frozenset(listed if more is None else [*listed, more])


def setup_of(llm: Any, speculative: Mapping[str, Any]) -> Setup:
    """What figures measured with this engine depend on: as in a server's trace, with all that the drafter was told."""
    from draftgate.engines.vllm.recording import trace_setup

    setup = trace_setup(llm.llm_engine.vllm_config)
    return replace(setup, draft=described(speculative))


def described(speculative: Mapping[str, Any]) -> str:
    """A drafting method in words: what changes with a restart only."""
    settings = {k: v for k, v in speculative.items() if k not in ("method", "num_speculative_tokens_per_batch_size")}
    if "model" in settings:
        settings["model"] = Path(settings["model"]).name
    return f"{speculative['method']} ({', '.join(f'{k} {v}' for k, v in sorted(settings.items()))})"
