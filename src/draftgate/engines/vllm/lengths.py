"""Shorter drafts, and none, at run time: what a policy's draft length does inside vLLM's scheduler.

The scheduler decides how many drafted tokens of each request the next step verifies, for every drafting method and for
both model runners, so a request's draft is cut there: what is not verified costs the target nothing. What the drafter
spends is one number for the whole batch, `num_spec_tokens_to_schedule`; it is lowered to the longest draft that any
request of the step wants, where the drafter takes a number lower than the configured one (`reach`).

vLLM's drafters give no evidence, so the lengths "cut" and "goodput" draft their k.
"""

from dataclasses import dataclass
from typing import Any

from draftgate.engines.vllm.rows import policy_of
from draftgate.engines.vllm.source import PolicySource

__all__ = ["Lengths", "Reach", "reach"]

# Proposers of the V1 runner whose `propose` takes fewer tokens than configured; the others assert the very number.
_FLEXIBLE = frozenset({"ngram", "draft_model", "eagle", "eagle3", "mtp"})
_SCHEDULE = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class Reach:
    """How far shorter drafts spare the drafter.

    Attributes:
        drafting: lengths below the configured one that it can be given; None for any.
        reason: why not any; "" when it is any.
    """

    drafting: frozenset[int] | None
    reason: str = ""

    def length(self, wanted: int, configured: int) -> int:
        """The least length that the drafter can be given and that is not below `wanted`."""
        if wanted >= configured or self.drafting is None:
            return min(wanted, configured)
        return min((k for k in self.drafting if wanted <= k < configured), default=configured)


def reach(scheduler: Any) -> Reach:
    """What a scheduler's drafter can be given, from vLLM's configuration."""
    config, spec = scheduler.vllm_config, scheduler.vllm_config.speculative_config
    if config.parallel_config.data_parallel_size > 1:
        return Reach(frozenset(), "data-parallel ranks that draft unequally long wait for each other forever")
    if scheduler.use_v2_model_runner:
        lookup = scheduler.dynamic_sd_lookup
        return Reach(frozenset(lookup or ()), f"this model runner drafts only the lengths of {_SCHEDULE}")
    if spec.method not in _FLEXIBLE or spec.parallel_drafting:
        return Reach(frozenset(), f"the drafter of '{spec.method}' drafts num_speculative_tokens, no other number")
    return Reach(None)


class Lengths:
    """Cuts the drafts of one process's schedulers to what is in force."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._policies = source.current
        self._limit = source.limit_tok
        self._caps: dict[str, int] = {}

    def drafting(self, scheduler: Any, output: Any) -> None:
        """Before `_update_after_schedule`: lower what the drafter is asked for in this step."""
        for finished in output.finished_req_ids:
            self._caps.pop(finished, None)
        scheduled = output.num_scheduled_tokens
        if scheduled and self._shorter(scheduler):
            wanted = max(self._cap(scheduler.requests[name]) for name in scheduled)
            configured = output.num_spec_tokens_to_schedule
            output.num_spec_tokens_to_schedule = reach(scheduler).length(wanted, configured)

    def placeholders(self, scheduler: Any, output: Any) -> None:
        """After it, under asynchronous scheduling: drafts stay on the device and the scheduler holds placeholders."""
        if not self._shorter(scheduler):
            return
        for name in output.num_scheduled_tokens:
            request = scheduler.requests[name]
            if len(request.spec_token_ids) > (cap := self._cap(request)):
                request.spec_token_ids = request.spec_token_ids[:cap]

    def drafts(self, scheduler: Any, drafts: Any) -> None:
        """Before `update_draft_token_ids`: cut what the last step drafted."""
        if not self._shorter(scheduler):
            return
        for i, name in enumerate(drafts.req_ids):
            request = scheduler.requests.get(name)
            if request is not None and len(drafts.draft_token_ids[i]) > (cap := self._cap(request)):
                drafts.draft_token_ids[i] = drafts.draft_token_ids[i][:cap]

    def _shorter(self, scheduler: Any) -> bool:
        """Whether some request may have less than the configured draft."""
        source = self._source
        if source.current is not self._policies or source.limit_tok != self._limit:
            self._policies, self._limit = source.current, source.limit_tok
            self._caps.clear()
        policies = () if self._policies is None else self._policies.policies
        least = min((policy.length.most for policy in policies), default=scheduler.num_spec_tokens)
        return least < scheduler.num_spec_tokens or self._limit is not None

    def _cap(self, request: Any) -> int:
        """The longest draft of a request."""
        cap = self._caps.get(request.request_id)
        if cap is None:
            bounds = [] if self._limit is None else [self._limit]
            if self._policies is not None:
                policy, _, _ = policy_of(self._policies, request.sampling_params.extra_args)
                bounds.append(policy.length.most)
            cap = self._caps[request.request_id] = min(bounds)
        return cap
