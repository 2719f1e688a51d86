"""What happened, as an engine reports it: requests, and the draft-then-verify steps of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DRAFTED_TYPES", "Drafted", "RequestRecord", "StepRecord"]

DRAFTED_TYPES: Mapping[str, type[np.generic]] = MappingProxyType(
    {
        "tokens": np.int32,
        "evidence": np.float32,
        "category": np.uint8,
        "logp": np.float32,
        "logq": np.float32,
        "top1_margin": np.float32,
        "rank": np.int32,
        "entropy": np.float32,
        "uniform": np.float32,
    }
)
"""Fields of `Drafted` and their array types, in the order they are stored."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Every drafted token of one step, kept or not; arrays of one length k (0 when the step drafted nothing).

    Probabilities are natural logs after the sampling transforms, at temperature 1 when decoding is greedy. A token that
    top-k, top-p or min-p removed has log-probability -inf, and a margin of inf.

    Attributes:
        tokens: drafted token ids.
        evidence: what the drafter knew: strength of the lookup match, or the draft's own probability.
        category: token categories (policy.category.Category).
        logp: target log-probability of the token.
        logq: draft log-probability of the token; 0 for a deterministic draft.
        top1_margin: log p of the target's first choice minus `logp`, in nats; 0 for the first choice.
        rank: tokens that the target finds more probable, 0 for the argmax.
        entropy: entropy of the target distribution in nats.
        uniform: the uniform number that the acceptance test compared with.
    """

    tokens: NDArray[np.int32]
    evidence: NDArray[np.float32]
    category: NDArray[np.uint8]
    logp: NDArray[np.float32]
    logq: NDArray[np.float32]
    top1_margin: NDArray[np.float32]
    rank: NDArray[np.int32]
    entropy: NDArray[np.float32]
    uniform: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one sequence.

    Attributes:
        request: key of the request.
        step: index of the step within the request.
        offset: output offset of the first drafted position.
        batch: sequences that the same decode verified.
        draft_s: seconds of drafting, shared equally by the batch's sequences when they draft together.
        verify_s: seconds of the decode, whole, also when several sequences shared it.
        drafted_n: drafted tokens.
        accepted: drafted tokens that were kept.
        committed: tokens that entered the output, with the bonus token; fewer when the output ended inside the step.
        drafted: what the target said of each drafted token; None when the run did not record.
    """

    request: int
    step: int
    offset: int
    batch: int
    draft_s: float
    verify_s: float
    drafted_n: int
    accepted: int
    committed: int
    drafted: Drafted | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request and what came back.

    Attributes:
        request: key, unique within the trace.
        prompt_id: id of the prompt in its workload.
        workload: name of the workload, "" when it has none.
        language: language of the output, None when unknown.
        policy: name of the policy it ran under.
        prompt_tokens: token ids of the prompt.
        output_tokens: committed token ids.
        finish: "stop" at an end-of-generation token, "length" at the token limit.
        prefill_s: seconds of the prompt's decode.
        decode_s: seconds from the first step to the last, everything included.
        sampling: temperature, top_k, top_p, min_p, seed.
    """

    request: int
    prompt_id: str
    workload: str
    language: str | None
    policy: str
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    finish: str
    prefill_s: float
    decode_s: float
    sampling: Mapping[str, Any] = field(default_factory=dict)
