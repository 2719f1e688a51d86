"""Recording drafts on a live server: from device tensors to a trace on disk, without making the engine wait.

A step packs what its recorded rows need into one vector and copies it, asynchronously, into a ring of host memory. A
writer thread waits for the copy, hands each request its part (transcript.py) and appends finished requests to a trace.
The ring bounds the memory. When the writer lags or the disk is full, requests are dropped and counted: whole ones,
because a request with a missing step cannot be replayed.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftgate.engines.vllm.hooks import Faults
from draftgate.engines.vllm.ring import Mark, Ring, mark, seconds
from draftgate.engines.vllm.transcript import Begun, Taken, Transcript
from draftgate.errors import DraftgateError
from draftgate.trace.records import DRAFTED_TYPES, RequestRecord, StepRecord

__all__ = ["Part", "Recorder", "Row", "Sink"]

Sink = Callable[[str, Sequence[tuple[RequestRecord, Sequence[StepRecord]]]], None]
"""Takes finished requests of one kind with their steps."""

_WIDTH = len(DRAFTED_TYPES)
_SEGMENT = 64  # requests in a segment, unless it gets old first
_AGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request in a step.

    Attributes:
        request: its id in the engine.
        row: its row of sampled tokens.
        start: its first drafted token among those of the step's recorded rows.
        drafted_n: its drafted tokens.
        discard: the step only read a part of the prompt; what it sampled means nothing.
    """

    request: str
    row: int
    start: int
    drafted_n: int
    discard: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What one step gives to the recorder.

    Attributes:
        rows: the recorded requests in it.
        columns: fields of `Drafted` in the order of `DRAFTED_TYPES`, device vectors [N] of 4-byte types; none if N = 0.
        sampled: device tensor [R, K + 1]; -1 after the last token of a row.
        batch: sequences in the step.
        draft: marks around the drafting of what this step verified; None when nothing was drafted.
        verify: marks around the rest of the step.
    """

    rows: Sequence[Row]
    columns: Sequence[torch.Tensor]
    sampled: torch.Tensor
    batch: int
    draft: tuple[Mark, Mark] | None
    verify: tuple[Mark, Mark]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A step in the ring: words from `start`, freed with `end` once `done` has passed.

    It holds no tensor of the device: `shape` is that of the sampled tokens, `width` the number of drafted ones.
    """

    rows: Sequence[Row]
    batch: int
    draft: tuple[Mark, Mark] | None
    verify: tuple[Mark, Mark]
    shape: tuple[int, int]
    width: int
    start: int
    end: int
    at_s: float
    done: Mark


@dataclass(frozen=True, slots=True)
class _Over:
    """Requests that ended, or that lost a step."""

    requests: Sequence[str]
    lost: str = ""


class Recorder:
    """Takes steps from the engine's thread, writes requests from its own.

    Attributes:
        counts: "written" requests, and dropped ones by reason: "lagged", "disk", "aborted early".
    """

    def __init__(self, sink: Sink, device: torch.device, words: int, faults: Faults) -> None:
        """Start the writer.

        Args:
            sink: where finished requests go; called by the writer's thread.
            device: where steps come from.
            words: size of the ring.
            faults: where failures are noted.
        """
        self.counts: Counter[str] = Counter()
        self._sink, self._device, self._faults = sink, device, faults
        self._ring = Ring(words, pinned=device.type != "cpu")
        self._inbox: deque[Any] = deque()
        self._arrived = threading.Semaphore(0)
        self._open: dict[str, Transcript] = {}
        self._ended: list[Transcript] = []
        self._wrote_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="draftgate-trace", daemon=True)
        self._thread.start()

    def begin(self, request: str, begun: Begun) -> None:
        """A request to record has started."""
        self._send((request, begun))

    def end(self, requests: Sequence[str]) -> None:
        """Requests are over; those that are not recorded are ignored."""
        self._send(_Over(requests))

    def step(self, part: Part) -> None:
        """A step was sampled. Only kernels are launched here; nothing waits for the device."""
        vectors = [v if v.dtype == torch.int32 else v.view(torch.int32) for v in part.columns]
        words = torch.cat([*vectors, part.sampled.to(torch.int32).flatten()])
        claim = self._ring.claim(len(words))
        if claim is None:
            self._send(_Over([row.request for row in part.rows], lost="lagged"))
            return
        start, end = claim
        self._ring.memory[start : start + len(words)].copy_(words, non_blocking=True)
        rows, width = part.sampled.shape
        self._send(
            _Copied(
                rows=part.rows,
                batch=part.batch,
                draft=part.draft,
                verify=part.verify,
                shape=(rows, width),
                width=len(part.columns[0]) if part.columns else 0,
                start=start,
                end=end,
                at_s=time.perf_counter(),
                done=mark(self._device),
            )
        )

    def flush(self, timeout_s: float) -> bool:
        """Write what has ended so far; False when that took longer than the timeout."""
        written = threading.Event()
        self._send(written)
        return written.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what has ended, and stop."""
        self.flush(timeout_s)
        self._send(None)
        self._thread.join(timeout_s)

    def _send(self, message: Any) -> None:
        self._inbox.append(message)
        self._arrived.release()

    def _run(self) -> None:
        going = True
        while going:
            try:
                if self._arrived.acquire(timeout=_AGE_S):
                    going = self._receive(self._inbox.popleft())
                if len(self._ended) >= _SEGMENT or time.monotonic() - self._wrote_s > _AGE_S:
                    self._write()
            except Exception as error:  # the thread must outlive whatever one message holds
                self._faults.note("trace", error)

    def _receive(self, message: Any) -> bool:
        """Handle one message; False for the last."""
        if isinstance(message, _Copied):
            self._take(message)
        elif isinstance(message, _Over):
            self._close(message)
        elif isinstance(message, threading.Event):
            self._write()
            message.set()
        elif message is not None:
            self._open[message[0]] = Transcript(message[1])
        return message is not None

    def _take(self, step: _Copied) -> None:
        seconds(step.done, step.done)  # waits for the copy
        drafted, (rows, places) = step.width * _WIDTH, step.shape
        words = self._ring.array[step.start : step.start + drafted + rows * places].copy()
        self._ring.free(step.end)
        columns = words[:drafted].reshape(_WIDTH, step.width)
        sampled = words[drafted:].reshape(step.shape)
        draft_s = 0.0 if step.draft is None else seconds(*step.draft) / step.batch
        verify_s = seconds(*step.verify)
        for row in step.rows:
            if (transcript := self._open.get(row.request)) is None:
                continue
            tokens = sampled[row.row]
            tokens = tokens[tokens >= 0]
            if row.discard or not len(tokens):
                transcript.prefill(verify_s)
                continue
            mine = _columns(columns, slice(row.start, row.start + row.drafted_n))
            transcript.take(Taken(tokens, mine, step.batch, draft_s, verify_s, step.at_s))
            if transcript.finish:
                self._ended.append(self._open.pop(row.request))

    def _close(self, over: _Over) -> None:
        for request in over.requests:
            if (transcript := self._open.pop(request, None)) is None:
                continue
            if over.lost or not transcript.output:
                self.counts[over.lost or "aborted early"] += 1
            else:
                self._ended.append(transcript)

    def _write(self) -> None:
        ended, self._ended, self._wrote_s = self._ended, [], time.monotonic()
        for kind in sorted({transcript.begun.kind for transcript in ended}):
            mine = [(t.record(), t.steps) for t in ended if t.begun.kind == kind]
            try:
                self._sink(kind, mine)
                self.counts["written"] += len(mine)
            except (DraftgateError, OSError) as error:
                self.counts["disk"] += len(mine)
                self._faults.note("trace", error)


def _columns(words: NDArray[np.int32], here: slice) -> Mapping[str, NDArray[Any]]:
    """Some tokens' fields, with the floats read as such."""
    fields = zip(DRAFTED_TYPES.items(), words, strict=True)
    return {n: w[here].view(np.float32) if t is np.float32 else w[here] for (n, t), w in fields}
