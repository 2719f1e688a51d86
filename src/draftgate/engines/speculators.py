"""Speculators checkpoints (the vLLM project's format for trained drafts): their acceptance settings as a policy."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftgate.errors import ConfigError, ModelError, nearest
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy

__all__ = ["policy_of"]


def policy_of(checkpoint: Path) -> tuple[Policy, tuple[str, ...]]:
    """The policy that a checkpoint was published with, as a start for tuning, and notes on what it cannot say.

    From `speculators_config.proposal_methods` of its config.json (speculators 0.9, proposals/greedy.py): a drafted
    token is kept among the verifier's `verifier_accept_k` most likely ones if its log-probability is within
    `accept_tolerance` of the greatest. That is p >= exp(-tolerance) p_top, the rule 'cascade'; k = 1 or a tolerance of
    0 is exact match. vLLM 0.32 reads neither field.

    Raises:
        ModelError: this is no speculators checkpoint.
        ConfigError: a setting is out of range.
    """
    path = checkpoint / "config.json" if checkpoint.is_dir() else checkpoint
    method = _method(path, _config(path))
    k = _number(path, method, "speculative_tokens", 5)
    within, tolerance = _number(path, method, "verifier_accept_k", 1), _number(path, method, "accept_tolerance", 0.0)
    if k < 1 or within < 1 or tolerance < 0:
        raise ConfigError(
            f"{path}: needs speculative_tokens and verifier_accept_k of at least 1 and a tolerance of at least 0"
        )
    name, length = checkpoint.stem if checkpoint.suffix else checkpoint.name, Fixed(int(k))
    if within == 1 or tolerance == 0:
        return Policy(name, "exact", length=length), ()
    note = f"verifier_accept_k = {within:g} is not kept: 'cascade' bounds the likelihood of a token, not its rank"
    return Policy(name, "cascade", params={"alpha": round(1 - math.exp(-tolerance), 6)}, length=length), (note,)


def _config(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as a checkpoint's config.json: {error}") from error
    config = data.get("speculators_config") if isinstance(data, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("proposal_methods"), list):
        raise ModelError(f"{path}: has no speculators_config.proposal_methods; this is no speculators checkpoint")
    return config


def _method(path: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    methods = {str(m.get("proposal_type")): m for m in config["proposal_methods"] if isinstance(m, dict)}
    wanted = str(config.get("default_proposal_method", "greedy"))
    if wanted not in methods:
        raise ModelError(
            f"{path}: its default proposal method '{wanted}' is not among them; {nearest(wanted, methods)}"
        )
    return methods[wanted]


def _number(path: Path, method: Mapping[str, Any], key: str, default: float) -> float:
    value = method.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{path}: {key} must be a number but got {value!r}")
    return value
