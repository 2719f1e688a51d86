"""Driving vLLM's engine step by step, in this process: every step is timed, and its drafts are seen.

`vllm.LLM` hides its steps. With VLLM_ENABLE_V1_MULTIPROCESSING=0 the engine core lives in this process, where
`LLMEngine.step` runs one step of it, and its scheduler can be asked what the step verified. The scheduler is private;
read in 0.32: `schedule()` returns what the next step runs, `Request.spec_token_ids` holds the drafts that it will
verify, and `max_num_scheduled_tokens` bounds the tokens of a step.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from draftgate.errors import EngineError

__all__ = ["News", "Stepper", "Tick"]


@dataclass(frozen=True, slots=True)
class News:
    """What a step did for one request.

    Attributes:
        tokens: tokens that entered the output.
        drafted_n: drafted tokens that the step verified.
        finish: "stop" or "length" when this ended the request.
        kept: tokens that the sampler kept in each step that verified a draft, once the request ended. Of the last step
            some may lie behind the end of the output.
        logprobs: of all tokens of the vocabulary at the new token; empty unless asked for (`flat_logprobs`).
    """

    tokens: tuple[int, ...]
    drafted_n: int
    finish: str | None
    kept: tuple[int, ...]
    logprobs: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """One step: its seconds, the sequences it ran, and its news by request name."""

    seconds: float
    batch: int
    news: Mapping[str, News]


class Stepper:
    """Adds requests and takes steps."""

    def __init__(self, llm: Any) -> None:
        """Wrap a `vllm.LLM` whose engine core is in this process.

        Raises:
            EngineError: it is not.
        """
        self._engine = llm.llm_engine
        core = getattr(self._engine.engine_core, "engine_core", None)
        if core is None:
            raise EngineError("vLLM runs its engine in another process; set VLLM_ENABLE_V1_MULTIPROCESSING=0")
        self._scheduler = core.scheduler
        self._scheduled: Any = None
        schedule = self._scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._scheduled = schedule(*args, **kwargs)
            return self._scheduled

        self._scheduler.schedule = watched
        self._added = 0

    def add(self, tokens: Sequence[int], params: Any) -> str:
        """Queue a request with delta outputs; returns its name."""
        self._added += 1
        name = str(self._added)
        self._engine.add_request(name, {"prompt_token_ids": list(tokens)}, params)
        return name

    def ticks(self) -> Generator[Tick, None, None]:
        """Steps until no request is left; all are dropped when the caller stops early or a step fails."""
        failed = False
        try:
            while self._engine.has_unfinished_requests():
                yield self._tick()
        except EngineError:
            failed = True
            raise
        finally:
            self._engine.abort_request(list(self._scheduler.requests), internal=True)
            if not failed and self._scheduler.has_requests():  # ended ones, until a step tells the workers
                self._engine.step()

    def _tick(self) -> Tick:
        begin = time.perf_counter()
        try:
            outputs = self._engine.step()
        except Exception as error:  # the engine's edge: whatever a model, a kernel or a plugin raises
            raise EngineError(f"vLLM failed while decoding: {type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - begin
        verified = {
            name.rpartition("-")[0]: len(drafts)
            for name, drafts in self._scheduled.scheduled_spec_decode_tokens.items()
        }
        news = {output.request_id: _news(output, verified.get(output.request_id, 0)) for output in outputs}
        return Tick(seconds, len(self._scheduled.num_scheduled_tokens), news)

    def draft(self, k: int) -> None:
        """Make the next step verify k drafted tokens for every running request, whatever the drafter found."""
        for request in self._scheduler.requests.values():
            found = request.spec_token_ids
            request.spec_token_ids = [*found, *range(1, k + 1)][:k]

    @contextmanager
    def pieces(self, tokens: int) -> Iterator[None]:
        """Let no step read more than so many tokens, so that prompts are read in pieces."""
        before = self._scheduler.max_num_scheduled_tokens
        self._scheduler.max_num_scheduled_tokens = min(tokens, before)
        try:
            yield
        finally:
            self._scheduler.max_num_scheduled_tokens = before


def _news(output: Any, drafted_n: int) -> News:
    done = output.outputs[0]
    metrics, logprobs = done.spec_decode_metrics, done.logprobs
    return News(
        tokens=tuple(done.token_ids),
        drafted_n=drafted_n,
        finish=done.finish_reason,
        kept=tuple(metrics.per_step_accepted) if metrics else (),
        logprobs=dict(zip(logprobs.token_ids, logprobs.logprobs, strict=True)) if logprobs else {},
    )
