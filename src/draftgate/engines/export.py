"""A policy as an engine's own settings."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftgate.errors import ConfigError
from draftgate.policy.length import Cut, Goodput
from draftgate.policy.policy import Policy

__all__ = ["EXPORTERS", "Exported"]


@dataclass(frozen=True, slots=True)
class Exported:
    """Settings as text, and what the engine does differently from the policy."""

    text: str
    notes: tuple[str, ...] = ()


def _llamacpp(policy: Policy, draft: str) -> Exported:
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


EXPORTERS: Mapping[str, Callable[[Policy, str], Exported]] = {"llamacpp": _llamacpp}
"""Exporters by engine: (policy, draft) -> settings."""
