"""One request's record in the making: sampled tokens and scores of drafts in, trace records out.

A worker never learns where the scheduler ended a request, only that it did. So the end is found here as
`vllm.v1.core.sched.utils.check_stop` finds it: at an end token, or at the limit. A request that ended at neither was
cut from outside, by a stop string or by its client; its finish is "abort", and its last step may hold a few tokens that
nobody received.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord

__all__ = ["Begun", "Ending", "Taken", "Transcript"]

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a request.

    Attributes:
        tokens: end tokens.
        most: output tokens at which it ends whatever they are.
    """

    tokens: frozenset[int]
    most: int

    def cut(self, output: int, new: Sequence[int]) -> tuple[int, str]:
        """How many of the tokens after `output` others enter the text, and the finish, "" when it goes on."""
        for n, token in enumerate(new, start=1):
            if token in self.tokens:
                return n, "stop"
            if output + n >= self.most:
                return n, "length"
        return len(new), ""


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of a request when it starts: what kind of trace it belongs to, then as in `RequestRecord`."""

    kind: str
    request: int
    prompt_id: str
    workload: str
    language: str | None
    policy: str
    prompt_tokens: Ints
    sampling: Mapping[str, Any]
    ending: Ending


@dataclass(frozen=True, slots=True)
class Taken:
    """What one step did for one request.

    Attributes:
        sampled: tokens that the sampler returned, kept ones and the one after them, [n].
        columns: fields of `Drafted` for each drafted token, [k] each; negative tokens are padding.
        batch: sequences in the step.
        draft_s: seconds of drafting, this sequence's share.
        verify_s: seconds of the step without drafting.
        at_s: when it was over, on the clock of all steps.
    """

    sampled: Ints
    columns: Mapping[str, NDArray[Any]]
    batch: int
    draft_s: float
    verify_s: float
    at_s: float


@dataclass(slots=True)
class Transcript:
    """Collects one request."""

    begun: Begun
    finish: str = ""
    output: list[int] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    prefill_s: float = 0.0
    _first_s: float = 0.0
    _last_s: float = 0.0

    def prefill(self, verify_s: float) -> None:
        """A step that only read a part of the prompt."""
        self.prefill_s += verify_s

    def take(self, step: Taken) -> None:
        """A step that sampled; those after the end are of a scheduler that ran ahead, and are dropped."""
        if self.finish:
            return
        offset, sampled = len(self.output), step.sampled.tolist()
        committed, self.finish = self.begun.ending.cut(offset, sampled)
        self.output += sampled[:committed]
        self._last_s = step.at_s
        if not offset:
            self.prefill_s += step.verify_s
            self._first_s = step.at_s
            return
        accepted = min(len(sampled) - 1, committed)
        drafted = _drafted(step.columns, committed if committed < len(sampled) else None)
        self.steps.append(
            StepRecord(
                request=self.begun.request,
                step=len(self.steps),
                offset=offset,
                batch=step.batch,
                draft_s=step.draft_s,
                verify_s=step.verify_s,
                drafted_n=len(drafted),
                accepted=accepted,
                committed=committed,
                drafted=drafted,
            )
        )

    def record(self) -> RequestRecord:
        """The request, ended."""
        b = self.begun
        return RequestRecord(
            request=b.request,
            prompt_id=b.prompt_id,
            workload=b.workload,
            language=b.language,
            policy=b.policy,
            prompt_tokens=b.prompt_tokens,
            output_tokens=np.array(self.output, np.int32),
            finish=self.finish or "abort",
            prefill_s=self.prefill_s,
            decode_s=self._last_s - self._first_s,
            sampling=b.sampling,
        )


def _drafted(columns: Mapping[str, NDArray[Any]], end: int | None) -> Drafted:
    """The draft without padding; when the text ended inside it, without what could never be kept."""
    tokens = columns["tokens"][:end]
    n = int((tokens < 0).argmax()) if (tokens < 0).any() else len(tokens)
    return Drafted(**{name: columns[name][:n].astype(dtype) for name, dtype in DRAFTED_TYPES.items()})
