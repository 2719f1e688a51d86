"""Recording: one lossless run over the calibration prompts, with the target's scores of every drafted token."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from draftgate.engines.base import Completion, Engine, Request
from draftgate.experiment.watch import Watch
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.trace.records import RequestRecord, StepRecord
from draftgate.trace.store import TraceStore

__all__ = ["max_tokens_of", "record", "recording_policy"]


def recording_policy(k: int, greedy: bool) -> Policy:
    """Drafts of k under the lossless rule: the output is the target's own, and every shorter draft can be replayed."""
    return Policy(f"recording-k{k}", "exact" if greedy else "lossless", length=Fixed(k))


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


def record(engine: Engine, requests: Sequence[Request], k: int, store: TraceStore, watch: Watch) -> list[RequestRecord]:
    """Record the requests that the trace does not hold yet; one segment each, so that a kill loses at most one.

    Returns:
        All requests of the trace.
    """
    held = store.requests()
    ids = {r.prompt_id for r in held}
    watch.advance(len(ids))
    policy = recording_policy(k, all(r.sampling.greedy for r in requests))
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
