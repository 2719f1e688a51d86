"""vLLM's `speculative_config`: built from a short word or checked as given, before a model is loaded.

Fields and their rules are those of `vllm/config/speculative.py` in vLLM 0.32. Everything in the configuration is fixed
when the server starts. What can change while it runs is the acceptance rule, for every method, through draftgate's
plugin; and the draft length, up to `num_speculative_tokens`, as `SCOPES` says.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftgate.errors import ConfigError, MissingExtraError, ModelError, nearest, require

__all__ = ["METHODS", "SCOPES", "Method", "checked", "for_draft", "require_same_vocabulary"]

Scope = Literal["request", "server"]

_EVERY = (
    "method",
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
_MODEL = (
    "model",
    "draft_tensor_parallel_size",
    "quantization",
    "max_model_len",
    "revision",
    "code_revision",
    "enforce_eager",
    "kv_cache_dtype",
    "attention_backend",
    "moe_backend",
    "draft_load_config",
    "draft_sample_method",
    "disable_padded_drafter_batch",
    "use_local_argmax_reduction",
)
_EAGLE = ("disable_eagle_block_drop", "parallel_drafting")
_SUFFIX_TREE = "suffix_decoding_max_tree_depth"


@dataclass(frozen=True, slots=True)
class Method:
    """One way of drafting.

    Attributes:
        keys: fields it reads, besides those that every method reads.
        required: fields it cannot do without, besides `num_speculative_tokens`.
        defaults: what draftgate sets where nothing is given.
        scope: for whom the draft length can change at run time. "request": the method returns its drafts as lists,
            which the plugin cuts for each request. "server": only through vLLM's schedule by batch size, for everyone,
            and only where the server was started with `num_speculative_tokens_per_batch_size`.
        shares_tokenizer: whether the draft was trained on the target, or is no model, and has no tokenizer of its own.
    """

    name: str
    keys: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    scope: Scope
    shares_tokenizer: bool = True


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        # vLLM's own default is a match of exactly 5 tokens; a shorter one drafts more often, and costs no model call.
        Method(
            "ngram",
            ("prompt_lookup_max", "prompt_lookup_min"),
            (),
            {"prompt_lookup_max": 4, "prompt_lookup_min": 2},
            "request",
        ),
        Method(
            "suffix",
            (
                _SUFFIX_TREE,
                "suffix_decoding_max_cached_requests",
                "suffix_decoding_max_spec_factor",
                "suffix_decoding_min_token_prob",
            ),
            (),
            {},
            "request",
        ),
        Method(
            "draft_model",
            (*_MODEL, "use_heterogeneous_vocab", "parallel_drafting"),
            ("model",),
            {},
            "server",
            shares_tokenizer=False,
        ),
        Method("eagle", (*_MODEL, *_EAGLE), ("model",), {}, "server"),
        Method("eagle3", (*_MODEL, *_EAGLE), ("model",), {}, "server"),
        Method("medusa", _MODEL, ("model",), {}, "server"),
        Method("mtp", (*_MODEL, *_EAGLE, "index_share_for_mtp_iteration"), (), {}, "server"),
    )
}
SCOPES: Mapping[str, Scope] = {name: method.scope for name, method in METHODS.items()}
"""For whom each method's draft length can change at run time; see `Method.scope`."""

_OWNED = {name for method in METHODS.values() for name in method.keys}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "rejection_sample_method": ("standard", "block", "synthetic"),
    "draft_sample_method": ("greedy", "probabilistic"),
}


def for_draft(draft: str, k: int, max_num_seqs: int) -> dict[str, Any]:
    """The configuration for a `--draft` word: a method that needs no model, METHOD:PATH, or the path of a draft model.

    A schedule that keeps k at every batch size is part of it where the method needs one, since without any schedule the
    draft length could not change at run time.

    >>> for_draft("ngram", 5, 8)["prompt_lookup_max"], for_draft("eagle3:head", 3, 8)["method"]
    (4, 'eagle3')

    Raises:
        ConfigError: the word names no method, or one that needs a model without giving it.
    """
    word, colon, path = draft.partition(":")
    if word in METHODS:
        config: dict[str, Any] = {"method": word} | ({"model": path} if colon else {})
    elif Path(draft).exists() or "/" in draft:
        config = {"method": "draft_model", "model": draft}
    else:
        raise ConfigError(f"draft '{draft}' is no method and no folder; {nearest(draft, METHODS)}")
    config["num_speculative_tokens"] = k
    if SCOPES[config["method"]] == "server":
        config["num_speculative_tokens_per_batch_size"] = [[1, max_num_seqs, k]]
    return checked(config)


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with defaults filled in, every field known and of use to its method.

    Raises:
        ConfigError: a field is unknown, missing, out of range, or does nothing under this method.
        MissingExtraError: the method needs a package that is not installed.
    """
    where = "speculative_config"
    name = str(config.get("method"))
    if name not in METHODS:
        raise ConfigError(f"{where}: unknown method '{name}'; {nearest(name, METHODS)}")
    method = METHODS[name]
    _check_keys(where, method, config)
    complete = {**method.defaults, **config}
    if name == "ngram":
        complete |= _lookup_range(where, config, method)
    for key in (*method.required, "num_speculative_tokens"):
        if complete.get(key) is None:
            raise ConfigError(f"{where}: method '{name}' needs '{key}'")
    _check_values(where, complete)
    if name == "suffix" and importlib.util.find_spec("arctic_inference") is None:
        raise MissingExtraError(
            "method 'suffix' drafts with the package arctic-inference, which is not installed: "
            "pip install arctic-inference==0.1.1, or use --draft ngram"
        )
    return complete


def _check_keys(where: str, method: Method, config: Mapping[str, Any]) -> None:
    valid = (*_EVERY, *method.keys)
    for key in config:
        if key in valid:
            continue
        if key in _OWNED:
            raise ConfigError(f"{where}: '{key}' does nothing under method '{method.name}'; remove it")
        raise ConfigError(f"{where}: unknown field '{key}'; {nearest(str(key), valid)}")


def _lookup_range(where: str, config: Mapping[str, Any], method: Method) -> dict[str, int]:
    """Shortest and longest match; one alone stands for both, as in vLLM."""
    given = [config[key] for key in method.keys if config.get(key) is not None]
    if not given:
        return {}
    longest, shortest = given if len(given) == 2 else (given[0], given[0])
    for key, value in zip(method.keys, (longest, shortest), strict=True):
        _whole(f"{where}.{key}", value, 1)
    if shortest > longest:
        raise ConfigError(f"{where}: prompt_lookup_min {shortest} is greater than prompt_lookup_max {longest}")
    return {"prompt_lookup_max": longest, "prompt_lookup_min": shortest}


def _check_values(where: str, config: Mapping[str, Any]) -> None:
    k = _whole(f"{where}.num_speculative_tokens", config["num_speculative_tokens"], 1)
    for key, choices in _CHOICES.items():
        if key in config and config[key] not in choices:
            raise ConfigError(f"{where}.{key}: unknown value {config[key]!r}; {nearest(str(config[key]), choices)}")
    schedule = config.get("num_speculative_tokens_per_batch_size")
    if schedule is not None:
        _check_schedule(f"{where}.num_speculative_tokens_per_batch_size", schedule, k)


def _check_schedule(where: str, schedule: Any, k: int) -> None:
    """Rows of (first batch size, last, draft length): from 1 on, rising, apart, and no longer than k."""
    if not isinstance(schedule, Sequence) or isinstance(schedule, str) or not schedule:
        raise ConfigError(f"{where}: must be a list of [first, last, k] rows but got {schedule!r}")
    end = 0
    for row in schedule:
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise ConfigError(f"{where}: must be a list of [first, last, k] rows but got {row!r}")
        first, last, length = (_whole(where, value, 0) for value in row)
        if first <= end or last < first or (end == 0 and first != 1):
            raise ConfigError(f"{where}: batch sizes must start at 1 and rise without overlap but got {list(schedule)}")
        if length > k:
            raise ConfigError(f"{where}: draft length {length} is greater than num_speculative_tokens {k}")
        end = last


def _whole(where: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{where}: must be a whole number of at least {least} but got {value!r}")
    return value


def require_same_vocabulary(target: str, config: Mapping[str, Any]) -> None:
    """Compare the tokenizers of target and draft model, token by token, before anything is loaded.

    Drafts that were trained on their target (EAGLE, Medusa, MTP) use its tokenizer, and so do model-free methods.

    Raises:
        ModelError: they differ, or a tokenizer cannot be read.
        MissingExtraError: transformers is not installed.
    """
    if METHODS[config["method"]].shares_tokenizer or config.get("use_heterogeneous_vocab"):
        return
    mine, other = (_vocabulary(path) for path in (target, config["model"]))
    if mine == other:
        return
    token, a, b = next((t, mine.get(t), other.get(t)) for t in sorted({*mine, *other}) if mine.get(t) != other.get(t))
    raise ModelError(
        f"target {target} and draft {config['model']} have different vocabularies ({len(mine)} tokens against "
        f"{len(other)}; token {token} is {a!r} against {b!r}); a draft model must share its target's tokenizer: "
        "choose another, --draft ngram, or set use_heterogeneous_vocab"
    )


def _vocabulary(path: str) -> dict[int, str]:
    transformers = require("transformers", "vllm")
    try:
        tokens = transformers.AutoTokenizer.from_pretrained(path).get_vocab()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: its tokenizer cannot be read: {error}") from error
    return {number: token for token, number in tokens.items()}
