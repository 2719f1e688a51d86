"""Which policy serves which request: what a request asks for, and where its policy sits in the device's tables.

A request asks through its extra arguments, `SamplingParams(extra_args=...)` offline and `vllm_xargs` over HTTP:

    draftgate_policy     a policy of the set in force
    draftgate_workload   a workload of the set, which names a policy
    draftgate_language   language of the output, for language offsets and token classes
    draftgate_prompt     id of the prompt, for the trace
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from draftgate.engines.vllm.tables import MAX_POINTS, PolicyTables, language_id
from draftgate.errors import ConfigError, nearest
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.policy.syntax import canonical

__all__ = ["Ask", "Batch", "Roster", "asked", "policy_of", "unfit"]

_PREFIX = "draftgate_"
_KEYS = ("policy", "workload", "language", "prompt")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for; None where it does not say."""

    policy: str | None = None
    workload: str | None = None
    language: str | None = None
    prompt: str | None = None


def asked(extra: Mapping[str, Any] | None) -> Ask:
    """Read a request's extra arguments; those of others are not looked at.

    Raises:
        ConfigError: an unknown argument that starts with draftgate_, a value that is no text, or no such language.
    """
    mine = {key: value for key, value in (extra or {}).items() if key.startswith(_PREFIX)}
    for key, value in mine.items():
        if key.removeprefix(_PREFIX) not in _KEYS:
            raise ConfigError(f"unknown argument '{key}'; {nearest(key, [_PREFIX + name for name in _KEYS])}")
        if not isinstance(value, str):
            raise ConfigError(f"{key} must be text but got {value!r:.40}")
    ask = Ask(**{key.removeprefix(_PREFIX): value for key, value in mine.items()})
    canonical(ask.language)
    return ask


def policy_of(policies: PolicySet, extra: Mapping[str, Any] | None) -> tuple[Policy, Ask, bool]:
    """The policy of a request by its extra arguments, what it asked for, and whether that is in force.

    The default serves a request that asks for what is not in force.
    """
    try:
        ask = asked(extra)
        return policies.of(ask.workload, ask.policy), ask, True
    except ConfigError:
        return policies.of(), Ask(), False


def unfit(policies: PolicySet, slots: int) -> str | None:
    """Why a server cannot hold a policy set; None when it can."""
    if len(policies.policies) > slots:
        return f"a server holds up to {slots} policies but this set has {len(policies.policies)}"
    for policy in policies.policies:
        if len(policy.position) > MAX_POINTS:
            return f"policy '{policy.name}': position: a server holds up to {MAX_POINTS} points of a schedule"
        if policy.truncate:
            return f"policy '{policy.name}': truncate: vLLM draws its own tokens, so a server cannot truncate them"
        if policy.draft_temperature or policy.draft_top_p != 1.0:
            return (
                f"policy '{policy.name}': draft: how drafts are drawn is set when vLLM starts (draft_sample_method); "
                "leave temperature and top_p out"
            )
    return None


def _served(policy: Policy) -> Policy:
    """The policy as vLLM serves it: 'exact' is vLLM's own test.

    The two keep the same tokens, unless a draft is drawn from a law: there vLLM's test keeps more, and is lossless too.
    """
    return replace(policy, rule="lossless") if policy.rule == "exact" else policy


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of a step, as the rules need them; int64 on the device, [R].

    Attributes:
        slot: policy slot.
        language: language id.
        prompt: prompt tokens.
        ours: whether any of them follows a rule that vLLM's own sampler does not apply.
        only: the slot of all of them; None when they have several.
    """

    slot: torch.Tensor
    language: torch.Tensor
    prompt: torch.Tensor
    ours: bool
    only: int | None


@dataclass(frozen=True, slots=True)
class _Request:
    extra: Mapping[str, Any] | None
    prompt: int


class Roster:
    """The policies and requests of one model runner.

    Batches change when requests come and go, which is seldom against steps: the device's copy of a batch is made then,
    and used until the next change.

    Attributes:
        policies: the set in force; None leaves vLLM to itself.
        unknown: requests that named nothing in force, and so got the default.
    """

    def __init__(self, tables: PolicyTables) -> None:
        self.policies: PolicySet | None = None
        self.unknown = 0
        self._tables = tables
        self._requests: dict[str, _Request] = {}
        self._entries: dict[str, tuple[int, int, int]] = {}  # slot, language, prompt tokens
        self._last: tuple[list[str], Batch] | None = None

    def put(self, policies: PolicySet | None) -> None:
        """Put a set in force, between two steps.

        Raises:
            ConfigError: the tables cannot hold it; vLLM is left to itself then.
        """
        self.policies, self._last = None, None
        self._entries.clear()
        for slot, policy in enumerate(policies.policies if policies else ()):
            if self._tables[slot] != (served := _served(policy)):
                self._tables.set(slot, served)
        self._tables.clear(len(policies.policies) if policies else 0)
        self.policies = policies

    def follow(self, scheduled: Any) -> None:
        """Note who comes and goes with a step; `scheduled` is vLLM's SchedulerOutput."""
        for name in scheduled.finished_req_ids:
            self._requests.pop(name, None)
            self._entries.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            params = new.sampling_params
            self._requests[new.req_id] = _Request(params and params.extra_args, len(new.prompt_token_ids or ()))
        if scheduled.finished_req_ids or scheduled.scheduled_new_reqs:
            self._last = None

    def batch(self, names: Sequence[str]) -> Batch:
        """The requests of a step, in the order of their ids [R]."""
        if self._last is None or self._last[0] != names:
            entries = [self._entry(name) for name in names]
            slots = {slot for slot, _, _ in entries}
            ours = any(self._tables[slot].rule != "lossless" for slot in slots)
            only = slots.pop() if len(slots) == 1 else None
            slot, language, prompt = self._upload(entries)
            self._last = list(names), Batch(slot, language, prompt, ours, only)
        return self._last[1]

    def _upload(self, entries: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        host = torch.from_numpy(np.array(entries, np.int64).T.copy())
        if self._tables.device.type != "cpu":
            host = host.pin_memory()  # only from pinned memory is a copy asynchronous
        return host.to(self._tables.device, non_blocking=True)

    def _entry(self, name: str) -> tuple[int, int, int]:
        entry = self._entries.get(name)
        if entry is None:
            assert self.policies is not None
            request = self._requests.get(name, _NOBODY)
            policy, ask, known = policy_of(self.policies, request.extra)
            self.unknown += not known
            slot = self.policies.policies.index(policy)
            entry = self._entries[name] = slot, language_id(ask.language), request.prompt
        return entry


_NOBODY = _Request(None, 0)  # vLLM warms up with requests of its own making
