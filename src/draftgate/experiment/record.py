"""Recording: the calibration prompts, run with the target's scores of every drafted token kept."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.engines.base import Completion, Engine, Request
from draftgate.experiment.watch import Watch
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.trace.records import RequestRecord, StepRecord
from draftgate.trace.store import TraceStore

__all__ = ["max_tokens_of", "record", "recording_policies", "traces_beside"]

_TRACE = "trace"
_LOOSE_TAUS = (0.3, 0.1)


def recording_policies(k: int, greedy: bool) -> dict[str, Policy]:
    """Policies to record under, by name of their trace folder, the lossless one first.

    Its output is the target's own, and every shorter draft can be replayed from it. The loose ones have read text that
    follows its drafts, as the text of loose policies does (replay.blend).
    """
    loose = {
        _loose(_TRACE, tau): Policy(_loose("recording", tau), "threshold-or-lossless", tau, length=Fixed(k))
        for tau in _LOOSE_TAUS
    }
    return {_TRACE: Policy("recording", "exact" if greedy else "lossless", length=Fixed(k))} | loose


def traces_beside(trace: Path) -> list[Path]:
    """A lossless trace, and the loose ones that were recorded with it."""
    beside = (trace.with_name(_loose(trace.name, tau)) for tau in _LOOSE_TAUS)
    return [trace, *(path for path in beside if path.exists())]


def _loose(name: str, tau: float) -> str:
    """Name of the loose sibling of a trace or policy."""
    return f"{name}-loose-{tau:g}"


def _records(number: int, done: Completion, policy: Policy) -> tuple[RequestRecord, list[StepRecord]]:
    request = done.request
    row = RequestRecord(
        request=number,
        prompt_id=request.id,
        workload=request.workload,
        language=request.language,
        policy=policy.name,
        prompt_tokens=np.array(request.tokens, np.int32),
        output_tokens=np.array(done.tokens, np.int32),
        finish=done.finish,
        prefill_s=done.prefill_s,
        decode_s=done.decode_s,
        sampling=asdict(request.sampling) | {"max_tokens": request.max_tokens},
    )
    return row, [replace(step, request=number) for step in done.steps]


def record(
    engine: Engine, requests: Sequence[Request], policy: Policy, store: TraceStore, watch: Watch
) -> list[RequestRecord]:
    """Record the requests that the trace does not hold yet; one segment each, so that a kill loses at most one.

    Returns:
        All requests of the trace.
    """
    held = store.requests()
    ids = {r.prompt_id for r in held}
    watch.advance(len(ids))
    for request in requests:
        if request.id not in ids:
            done = engine.generate([request], policy, record=True)[0]
            store.append([_records(len(ids), done, policy)])
            ids.add(request.id)
            watch.advance(1)
    return store.requests()


def max_tokens_of(row: RequestRecord) -> int:
    """Output limit that a recorded request ran with."""
    limit: Any = row.sampling["max_tokens"]
    return int(limit)
