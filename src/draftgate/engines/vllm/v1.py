"""The contract of vLLM's V1 sampler: what its `rejection_sample` gets, and the random numbers it would draw.

Read in `vllm/v1/sample/rejection_sampler.py`, 0.32. The numbers are drawn in its order from its generators, so requests
with a seed are as reproducible as without draftgate.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from draftgate.engines.vllm.tables import PolicyTables
from draftgate.engines.vllm.verify import Draft, Draws, Outcome, Rows, verify_batch

__all__ = ["draw", "verify_v1"]


def verify_v1(
    tables: PolicyTables,
    rows: Rows,
    draft_token_ids: Tensor,
    num_draft_tokens: Sequence[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    sampling_metadata: Any,
    use_fp64_gumbel: bool = False,
    record: bool = False,
) -> Outcome:
    """`verify_batch` on the arguments of vLLM's `rejection_sample`, whose names they have.

    Args:
        tables: the policies.
        rows: which policy each request follows.
        draft_token_ids: [N].
        num_draft_tokens: by request, R of them.
        max_spec_len: the longest draft of the batch.
        cu_num_draft_tokens: [R].
        draft_probs: [N, V], or None.
        target_logits: [N, V], float32.
        bonus_token_ids: [R, 1].
        sampling_metadata: vLLM's; temperature, all_greedy, all_random and generators are read.
        use_fp64_gumbel: whether replacements are drawn with double precision.
        record: also return what a trace keeps.
    """
    draft = Draft(draft_token_ids, cu_num_draft_tokens, max_spec_len, draft_probs)
    draws = greedy = None
    if not sampling_metadata.all_greedy:
        generators, (_, vocabulary) = sampling_metadata.generators, target_logits.shape
        draws = draw(num_draft_tokens, vocabulary, generators, target_logits.device, use_fp64_gumbel)
        greedy = None if sampling_metadata.all_random else sampling_metadata.temperature == 0
    return verify_batch(tables, rows, draft, target_logits, bonus_token_ids[:, 0], draws, greedy, record)


def draw(
    num_draft_tokens: Sequence[int],
    vocabulary: int,
    generators: Mapping[int, torch.Generator],
    device: torch.device,
    double: bool = False,
) -> Draws:
    """Numbers as vLLM draws them: acceptance first, then one replacement a request.

    Args:
        num_draft_tokens: by request.
        vocabulary: size of the vocabulary.
        generators: by request, of those with a seed.
        device: where to draw.
        double: whether replacements are drawn with double precision.
    """
    ends = list(accumulate(num_draft_tokens))
    seeded = [(row, generator) for row, generator in generators.items() if num_draft_tokens[row]]
    uniform = torch.rand(ends[-1], dtype=torch.float64, device=device)
    for row, generator in seeded:
        uniform[ends[row] - num_draft_tokens[row] : ends[row]].uniform_(generator=generator)
    kind = torch.float64 if double else torch.float32
    noise = torch.empty((len(ends), vocabulary), dtype=kind, device=device).exponential_()
    for row, generator in seeded:
        noise[row].exponential_(generator=generator)
    inverse = noise.reciprocal_()
    if device.type == "cpu":  # vLLM's kernels there read single precision
        return Draws(uniform.float(), inverse.float())
    return Draws(uniform, inverse)
