"""A policy as an engine's own settings."""

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
            f"policy '{policy.name}': llama.cpp verifies exactly and has no threshold, so rule '{policy.rule}' cannot be "
            "exported; export a lossless arm"
        )
    if not policy.drafts:
        return Exported("--spec-type none")
    notes = []
    if isinstance(policy.length, Goodput):
        notes.append(
            f"llama.cpp cannot choose the draft length at each step; up to {policy.length.k} tokens are drafted every "
            "time, so prove this on your server: a fixed length can lose where the goodput length wins"
        )
    k = policy.length.most
    if draft == "lookup":
        flags = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", str(k)]
        if isinstance(policy.length, Cut):
            flags += ["--spec-ngram-simple-size-n", str(max(1, round(policy.length.least)))]
        else:
            flags += ["--spec-ngram-simple-size-n", "2"]
            notes.append("llama.cpp needs a shortest match: 2 tokens here, where draftgate takes any")
        return Exported(shlex.join(flags), tuple(notes))
    flags = ["--spec-type", "draft-simple", "--spec-draft-model", draft, "--spec-draft-n-max", str(k)]
    if isinstance(policy.length, Cut):
        flags += ["--spec-draft-p-min", f"{policy.length.least:g}"]
    return Exported(shlex.join(flags), tuple(notes))


EXPORTERS: Mapping[str, Callable[[Policy, str], Exported]] = {"llamacpp": _llamacpp}
"""Exporters by engine: (policy, draft) -> settings."""
