"""A policy as an engine's own settings."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftgate.cost.schedule import batch_schedule
from draftgate.cost.steps import StepCost
from draftgate.engines.vllm.config import for_draft
from draftgate.errors import ConfigError
from draftgate.policy.length import Cut, Fixed, Goodput
from draftgate.policy.policy import Policy

__all__ = ["EXPORTERS", "Exported", "Measured"]


@dataclass(frozen=True, slots=True)
class Exported:
    """Settings as text, and what the engine does differently from the policy."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured of a workload, for settings that depend on it.

    Attributes:
        survival: share of drafting steps that kept position i.
        coverage: share of steps that drafted.
    """

    cost: StepCost
    survival: Sequence[float]
    coverage: float


def _llamacpp(policy: Policy, draft: str, measured: Measured | None) -> Exported:
    """Flags of llama-server b11549: verification is exact, so only lossless policies can be kept.

    Raises:
        ConfigError: the policy is lossy.
    """
    if not policy.lossless:
        raise ConfigError(
            f"policy '{policy.name}': llama.cpp verifies exactly and has no threshold, so rule '{policy.rule}' cannot "
            "be exported; export a lossless arm"
        )
    if not policy.drafts:
        return Exported("--spec-type none")
    flags, notes = _by_lookup(policy) if draft == "lookup" else _by_model(policy, draft)
    if isinstance(policy.length, Goodput):
        notes.append(
            f"llama.cpp cannot choose the draft length at each step; up to {policy.length.k} tokens are drafted every "
            "time, so prove this on your server: a fixed length can lose where the goodput length wins"
        )
    return Exported(shlex.join(flags), tuple(notes))


def _by_lookup(policy: Policy) -> tuple[list[str], list[str]]:
    least, note = 2, "llama.cpp needs a shortest match: 2 tokens here, where draftgate takes any"
    if isinstance(policy.length, Cut):
        # Strength is at most the match in tokens, so this is the shortest match that the cut can let through.
        least = max(1, math.ceil(policy.length.least))
        note = "llama.cpp counts matching tokens; draftgate divides them by the number of ways the text went on"
    flags = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(least)]
    return [*flags, "--spec-ngram-simple-size-m", str(policy.length.most)], [note]


def _by_model(policy: Policy, draft: str) -> tuple[list[str], list[str]]:
    flags = ["--spec-type", "draft-simple", "--spec-draft-model", draft]
    flags += ["--spec-draft-n-max", str(policy.length.most)]
    if isinstance(policy.length, Cut):
        flags += ["--spec-draft-p-min", f"{policy.length.least:g}"]
    if policy.draft_temperature == 0:
        return flags, []
    note = (
        "llama.cpp draws drafts and verifies them by rejection; the draft's temperature and top-p cannot be set there"
    )
    return [*flags, "--spec-draft-sampling", "probabilistic"], [note]


def _vllm(policy: Policy, draft: str, measured: Measured | None) -> Exported:
    """JSON for `vllm serve --speculative-config` of vLLM 0.32; empty when nothing is to be drafted."""
    if not policy.drafts:
        return Exported("", ("no speculation: start vLLM without --speculative-config",))
    notes = []
    config = for_draft("ngram" if draft == "lookup" else draft, policy.length.most, 1)
    config.pop("num_speculative_tokens_per_batch_size", None)
    if isinstance(policy.length, Cut) and config["method"] == "ngram":
        config["prompt_lookup_min"] = max(1, math.ceil(policy.length.least))
        config["prompt_lookup_max"] = max(config["prompt_lookup_max"], config["prompt_lookup_min"])
    if measured is None:
        notes.append(
            "no run was given, so there is no schedule by batch size: export from a run directory, or --run DIR"
        )
    else:
        rows = batch_schedule(measured.cost, measured.survival, measured.coverage, policy.length.most)
        if all(k == 0 for _, _, k in rows):
            return Exported("", (*notes, "no draft length pays at any measured batch size: start vLLM without drafts"))
        config["num_speculative_tokens_per_batch_size"] = [list(row) for row in rows]
        notes.append(
            f"the schedule is modelled from step costs measured up to batch {rows[-1][1]} and replayed survival; vLLM "
            "keeps its last length beyond. Measure on the machine that will serve"
        )
    if not isinstance(policy.length, Fixed):
        notes.append("vLLM's drafters report no evidence, so the draft length cannot follow it at each step")
    if not policy.lossless:
        notes.append(
            f"rule '{policy.rule}' needs draftgate's plugin in the server: install draftgate[vllm] there, and set "
            "DRAFTGATE_POLICY to the policy file"
        )
    return Exported(json.dumps(config), tuple(notes))


EXPORTERS: Mapping[str, Callable[[Policy, str, Measured | None], Exported]] = {"llamacpp": _llamacpp, "vllm": _vllm}
"""Exporters by engine: (policy, draft, what was measured) -> settings."""
