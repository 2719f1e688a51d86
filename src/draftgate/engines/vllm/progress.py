"""One request in progress: its tokens and steps, from what the stepper saw."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftgate.engines.base import Completion, Request
from draftgate.engines.vllm.stepper import News, Tick
from draftgate.trace.records import StepRecord

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A step as it was seen."""

    offset: int
    committed: int
    drafted_n: int
    tick: Tick


@dataclass(slots=True)
class Progress:
    """Collects one request.

    Attributes:
        tokens: output so far.
        prefill_s: seconds of the steps up to the first token; decode_s: of those after it.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    _seen: list[_Seen] = field(default_factory=list)
    _kept: tuple[int, ...] = ()

    def take(self, tick: Tick, news: News | None) -> None:
        """A step passed; `news` is None when it brought no token for this request."""
        if self.finish:
            return
        if not self.tokens:
            self.prefill_s += tick.seconds
        else:
            self.decode_s += tick.seconds
            if news is not None:
                self._seen.append(_Seen(len(self.tokens), len(news.tokens), news.drafted_n, tick))
        if news is not None:
            self.tokens += news.tokens
            self.finish = news.finish or ""
            self._kept = news.kept

    def steps(self) -> list[StepRecord]:
        """One record a step.

        Where the text ended inside a draft, what lay behind the end could never be kept and is not counted.
        """
        kept = iter(self._kept)
        return [_record(i, seen, next(kept) if seen.drafted_n else 0) for i, seen in enumerate(self._seen)]

    def completion(self, text: str, steps: Sequence[StepRecord]) -> Completion:
        """What came back; the steps are those that were seen, or that the plugin recorded."""
        return Completion(
            request=self.request,
            tokens=tuple(self.tokens),
            text=text,
            finish=self.finish,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            steps=tuple(steps),
        )


def _record(number: int, seen: _Seen, kept: int) -> StepRecord:
    ended_inside = seen.committed <= kept
    return StepRecord(
        request=-1,
        step=number,
        offset=seen.offset,
        batch=seen.tick.batch,
        draft_s=0.0,
        verify_s=seen.tick.seconds,
        drafted_n=seen.committed if ended_inside else seen.drafted_n,
        accepted=min(kept, seen.committed),
        committed=seen.committed,
    )
