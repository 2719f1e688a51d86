"""The contract of vLLM's second model runner (V2), the default on GPUs: layouts, and its own kind of random numbers.

Read in `vllm/v1/worker/gpu`, 0.32. Differences from V1 that matter here: requests have fixed places in device tensors
(`idx_mapping` leads from a row there); the logits of a request are one row for each drafted token and one more, and the
drafted token that row i scores is `draft_sampled[i + 1]`; the token after a draft that was kept whole is drawn inside;
large batches are verified in chunks of requests; results are tokens [R, K + 1] and how many of each row count.

Numbers come from a hash of the request's seed and the token's position, as they do there (by another hash), so ranks
need not agree on a stream and requests are reproducible.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftgate.engines.vllm.hooks import HOOKS
from draftgate.engines.vllm.recording import columns
from draftgate.engines.vllm.ring import mark
from draftgate.engines.vllm.rows import Batch
from draftgate.engines.vllm.sampler import Runner, Step
from draftgate.engines.vllm.tables import RULE_IDS, PolicyTables
from draftgate.engines.vllm.verify import Draft, Draws, Outcome, Rows, verify_batch
from draftgate.errors import EngineError

__all__ = ["RunnerV2", "hashed", "verify_v2"]

_CALL = HOOKS["v2.rule"].parameters
_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as int64
_UNIFORM, _NOISE = 0x7F4A7C15, 0x1CE4E5B9  # any two


def hashed(seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """Uniform numbers in (0, 1), float64, one for each seed and position (int64, broadcast); streams are independent.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) as a hash, applied twice; integers wrap.
    """
    bits = _mix(_mix(seed + stream) + position * _GOLDEN) >> 12 & (1 << 52) - 1
    return (bits.double() + 0.5) / 2.0**52


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * -4658895280553007687
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * -7723592293110705685
    return x ^ (x >> 31 & (1 << 33) - 1)


def verify_v2(
    tables: PolicyTables, rows: Batch, call: Mapping[str, Any], sampled: bool, record: bool = False
) -> tuple[Outcome, Draft]:
    """`verify.verify_batch` on the arguments of V2's `rejection_sample`; also gives the drafts as V1 would have them.

    Args:
        tables: the policies.
        rows: policy slot, language and prompt tokens of each request of the call [R].
        call: the arguments by name; at least one token must be drafted.
        sampled: whether any request of the step decodes above temperature 0.
        record: also return what a trace keeps.

    Raises:
        EngineError: what vLLM is asked to do there has no counterpart here.
    """
    _refuse(call)
    logits, temperature = call["target_logits"], call["temperature"][call["idx_mapping"].long()]
    ends = call["cu_num_logits"].long()
    starts, count = ends[:-1], torch.diff(ends) - 1
    n, device = len(logits) - len(count), logits.device
    row = torch.arange(len(count), device=device).repeat_interleave(count, output_size=n)
    at = torch.arange(n, device=device) + row  # every request before it has one row more than drafted tokens
    draft = Draft(
        call["draft_sampled"][at + 1], count.cumsum(0), call["num_speculative_steps"], _laws(call, row, at, temperature)
    )
    positions = call["pos"]
    draws, bonus = None, logits[ends[1:] - 1].argmax(1)
    if sampled:
        seed = call["seed"][call["idx_mapping"].long()]
        places = torch.arange(logits.shape[1], device=device) * _GOLDEN
        noise = hashed(seed[:, None] + places, positions[starts][:, None], _NOISE)
        inverse = noise.log_().neg_().reciprocal_().float()
        draws = Draws(hashed(seed[row], positions[at], _UNIFORM), inverse)
        drawn = (logits[ends[1:] - 1].softmax(1) * inverse).argmax(1)
        bonus = torch.where(temperature == 0, bonus, drawn)
    offset = positions[starts] + 1 - rows.prompt
    greedy = temperature == 0 if sampled else None
    placed = Rows(rows.slot, rows.language, offset, rows.only)
    return verify_batch(tables, placed, draft, logits[at], bonus, draws, greedy, record), draft


def _refuse(call: Mapping[str, Any]) -> None:
    if call.get("synthetic_conditional_rates") is not None:
        raise EngineError("rejection_sample_method 'synthetic' keeps tokens by chance; policies do not apply to it")
    if call.get("use_block_verification"):
        raise EngineError("rejection_sample_method 'block' judges drafts whole; policies judge tokens")
    if call.get("contexts") is not None:
        raise EngineError("watermarked sampling cannot follow policies")
    draft = call["draft_logits"]
    if draft is not None and draft.shape[-1] != call["target_logits"].shape[1]:
        raise EngineError("the draft's vocabulary is smaller than the target's; policies need equal ones")


def _laws(call: Mapping[str, Any], row: Tensor, at: Tensor, temperature: Tensor) -> Tensor | None:
    """Laws that drafted tokens were drawn from [N, V]; vLLM stores their logits before temperature."""
    if call["draft_logits"] is None:
        return None
    state, place = call["expanded_idx_mapping"][at].long(), call["expanded_local_pos"][at].long()
    heat = torch.where(temperature == 0, 1.0, temperature)[row]
    laws: Tensor = (call["draft_logits"][state, place].float() / heat[:, None]).softmax(1)
    return laws


class RunnerV2(Runner):
    """Beside a V2 runner."""

    def rows(self, _: Any, inputs: Any, *__: Any, **___: Any) -> None:
        """Before `sample`: who is in the batch."""
        self._enter(inputs.req_ids, inputs)

    def verify(self, original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """In place of `rejection_sample`.

        vLLM's own tokens stay for requests that follow its own rule. Not in recorded steps: a trace must hold the
        numbers that acceptance was compared with, and vLLM does not give away its own.
        """
        own: tuple[Tensor, Tensor] = original(*args, **kwargs)
        step = self._step
        call = dict(zip(_CALL, args, strict=False)) | kwargs
        nothing_drafted = len(call["target_logits"]) == len(call["idx_mapping"])
        if step is None or nothing_drafted or not (step.batch.ours or step.recorded):
            return own
        rows = self._part(step, call["idx_mapping"])
        outcome, draft = verify_v2(self._tables, rows, call, self._sampled_at_all(step.inputs), step.recorded)
        self.verified += 1
        if outcome.record is not None:
            fields = columns(outcome.record, draft.tokens, draft.probs is not None)
            step.fields = [torch.cat(pair) for pair in zip(step.fields, fields, strict=True)] if step.fields else fields
        if step.recorded:
            return outcome.tokens.to(own[0].dtype), (outcome.accepted + 1).to(own[1].dtype)
        ours = self._tables.rule[rows.slot] != RULE_IDS["lossless"]
        tokens = torch.where(ours[:, None], outcome.tokens.to(own[0].dtype), own[0])
        return tokens, torch.where(ours, (outcome.accepted + 1).to(own[1].dtype), own[1])

    def _part(self, step: Step, states: Tensor) -> Batch:
        """The requests of one call, which may be some of the step's, found by their places in vLLM's tables."""
        if self._runner.adaptive_verification is not None:
            raise EngineError("adaptive verification decides on the device how much of a draft counts")
        order = torch.arange(len(step.names), device=states.device)
        row = order.new_zeros(self._runner.max_num_reqs).scatter_(0, step.inputs.idx_mapping.long(), order)
        mine = row[states.long()]
        b = step.batch
        return Batch(b.slot[mine], b.language[mine], b.prompt[mine], b.ours, b.only)

    def _sampled_at_all(self, inputs: Any) -> bool:
        """Whether any request of the step decodes above temperature 0; the host has a copy of temperatures."""
        temperature = self._runner.sampler.sampling_states.temperature.np
        return bool(temperature[inputs.idx_mapping_np].any())

    def sampled(self, result: Any) -> None:
        """After `sample`: hand the trace what it keeps."""
        step, self._step = self._step, None
        if step is None or not step.recorded:
            return
        if self._runner.batch_sharder is not None:
            raise EngineError("ranks sample parts of the batch each, so no rank sees what a trace needs")
        output, number, _ = result
        tokens, drafted = output.sampled_token_ids, step.inputs.num_draft_tokens_per_req
        place = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = torch.where(place < number[:, None], tokens, -1)
        n = len(step.names)
        self._keep(step, [0] * n if drafted is None else drafted.tolist(), [False] * n, tokens)

    def drafted(self, _: Any) -> None:
        """After `sample_tokens`, which drafts once it has sampled."""
        began, self._began = self._began, None
        self._drafting = None if began is None else (began, mark(self._tables.device))
