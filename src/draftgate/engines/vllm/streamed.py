"""One request over HTTP: its tokens and steps, from a stream of completion chunks.

A chunk holds the tokens of one step, or of several when the client or the server's API process lagged behind. What each
drafting step did comes with the last event (`--per-request-spec-decode-metrics detailed`), as two lists without the
steps that drafted nothing. `arranged` puts the two together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftgate.engines.base import Completion, Request
from draftgate.errors import EngineError
from draftgate.trace.records import StepRecord

__all__ = ["Streamed", "arranged"]


@dataclass(frozen=True, slots=True)
class _Chunk:
    tokens: tuple[int, ...]
    at_s: float


def arranged(chunks: Sequence[int], kept: Sequence[int], drafted: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Steps of a stream: (number of the chunk, drafted, accepted, committed tokens).

    Where a step that drafted nothing and one that kept nothing could change places, the latter comes first. A draft
    that the text ended in is cut there.

    Args:
        chunks: tokens of each chunk, without the token that the prefill chose.
        kept: accepted tokens of each step that drafted.
        drafted: drafted tokens of each step that drafted.

    >>> list(arranged([1, 4, 2], [3, 2], [5, 5]))
    [(0, 0, 0, 1), (1, 5, 3, 4), (2, 2, 2, 2)]

    Raises:
        EngineError: they do not fit together.
    """
    waiting = list(zip(drafted, kept, strict=True))
    for i, chunk in enumerate(chunks):
        left = chunk
        while left:
            last = i == len(chunks) - 1 and len(waiting) == 1
            if waiting and (waiting[0][1] < left or last):
                n, a = waiting.pop(0)
                committed = min(a + 1, left)
                yield i, committed if committed <= a else n, min(a, committed), committed
            else:
                committed = 1
                yield i, 0, 0, 1
            left -= committed
    if waiting:
        raise EngineError(
            f"the server reports {len(drafted)} drafting steps, {len(waiting)} more than its text can hold"
        )


@dataclass(slots=True)
class Streamed:
    """Collects one request.

    Attributes:
        batch: requests that were sent at the same time.
        sent_s: when it was sent.
    """

    request: Request
    batch: int
    sent_s: float
    finish: str = ""
    text: str = ""
    _chunks: list[_Chunk] = field(default_factory=list)
    _metrics: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any], now_s: float) -> None:
        """One event of the stream."""
        for choice in event.get("choices", ()):
            self.text += choice.get("text") or ""
            self.finish = choice.get("finish_reason") or self.finish
            if tokens := choice.get("token_ids"):
                self._chunks.append(_Chunk(tuple(tokens), now_s))
        self._metrics = event.get("metrics") or self._metrics

    def completion(self) -> Completion:
        """What came back; seconds are the server's own where it gives them (`--enable-per-request-metrics`).

        Raises:
            EngineError: the server gave no tokens, or not the metrics that draftgate reads.
        """
        if not self._chunks:
            raise EngineError(f"prompt '{self.request.id}': the server gave no tokens")
        first_s, last_s = self._chunks[0].at_s, self._chunks[-1].at_s
        return Completion(
            request=self.request,
            tokens=tuple(token for chunk in self._chunks for token in chunk.tokens),
            text=self.text,
            finish=self.finish,
            prefill_s=self._seconds("time_to_first_token_ms", first_s - self.sent_s),
            decode_s=self._seconds("generation_time_ms", last_s - first_s),
            steps=tuple(self._steps()),
        )

    def _seconds(self, name: str, otherwise: float) -> float:
        value = self._metrics.get(name)
        return otherwise if value is None else value / 1e3

    def _drafts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Kept and drafted tokens of the steps that drafted."""
        spec = self._metrics.get("speculative_decoding")
        if spec is None or (spec["num_spec_steps"] and "per_step_accepted" not in spec):
            raise EngineError(
                "the server does not say what its steps drafted; start it with "
                "--per-request-spec-decode-metrics detailed"
            )
        return spec.get("per_step_accepted") or (), spec.get("per_step_drafted") or ()

    def _steps(self) -> Iterator[StepRecord]:
        sizes = [len(chunk.tokens) for chunk in self._chunks]
        sizes[0] -= 1
        found = list(arranged(sizes, *self._drafts()))
        offset = 1
        for step, (i, drafted, accepted, committed) in enumerate(found):
            since_s = self._chunks[i - 1].at_s if i else self.sent_s
            steps = sum(other[0] == i for other in found)
            yield StepRecord(
                request=-1,
                step=step,
                offset=offset,
                batch=self.batch,
                draft_s=0.0,
                verify_s=(self._chunks[i].at_s - since_s) / steps,
                drafted_n=drafted,
                accepted=accepted,
                committed=committed,
            )
            offset += committed
