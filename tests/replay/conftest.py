"""The real recording in tests/data, and small random ones."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgate.policy.category import Category, category_table
from draftgate.trace.columns import Columns
from draftgate.trace.records import Drafted, RequestRecord, StepRecord

_FILE = Path(__file__).parents[1] / "data" / "qwen2.5-coder-1.5b-draft-0.5b-k7.jsonl.gz"


@dataclass(frozen=True)
class RealTrace:
    """The recording, laid out, with the workload of each request and the decoded pieces of each step."""

    columns: Columns
    workloads: list[str]
    pieces: list[list[str]]


def _step(line: dict[str, Any], language: str) -> StepRecord:
    right = np.array(line["is_argmax"])
    k = len(right)
    return StepRecord(
        request=line["request"],
        step=line["step"],
        offset=line["offset"],
        batch=1,
        draft_s=line["draft_s"],
        verify_s=line["verify_s"],
        drafted_n=k,
        accepted=line["accepted"],
        committed=line["committed"],
        drafted=Drafted(
            tokens=np.array(line["tokens"], np.int32),
            evidence=np.exp(np.array(line["logp_draft"], np.float32)),
            category=category_table([piece.encode() for piece in line["pieces"]], language),
            logp=np.array(line["logp_target"], np.float32),
            logq=np.zeros(k, np.float32),  # drafted by argmax, so by a one-hot law
            top1_margin=np.where(right, 0, line["top1_margin"]).astype(np.float32),
            rank=np.where(right, 0, 1).astype(np.int32),
            entropy=np.array(line["entropy"], np.float32),
            uniform=np.full(k, 0.5, np.float32),
        ),
    )


@pytest.fixture(scope="session")
def real() -> RealTrace:
    with gzip.open(_FILE, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    of = {kind: [line for line in lines if line["type"] == kind] for kind in ("request", "step", "output")}
    languages = [line["language"] for line in of["request"]]
    requests = [
        RequestRecord(
            request=line["request"],
            prompt_id=str(line["request"]),
            workload=line["workload"],
            language=line["language"],
            policy="exact",
            prompt_tokens=np.zeros(line["prompt_tokens"], np.int32),
            output_tokens=np.array(output["tokens"], np.int32),
            finish="length",
            prefill_s=0.0,
            decode_s=0.0,
        )
        for line, output in zip(of["request"], of["output"], strict=True)
    ]
    steps = [_step(line, languages[line["request"]]) for line in of["step"]]
    workloads = [line["workload"] for line in of["request"]]
    return RealTrace(Columns.from_records(requests, steps), workloads, [line["pieces"] for line in of["step"]])


@pytest.fixture(scope="session")
def random_columns() -> Callable[..., Columns]:
    """Makes a ragged trace of some languages: (rng, steps, most) -> Columns."""

    def make(rng: np.random.Generator, steps: int, most: int, greedy: bool = True) -> Columns:
        shape = (most, steps)
        languages = ("python", None, "go", "python")
        drafted_n = rng.integers(0, most + 1, steps).astype(np.int32)
        p = rng.random(shape).astype(np.float32)
        rank = (rng.random(shape) < 0.4).astype(np.int32)
        p[(rank > 0) & (rng.random(shape) < 0.1)] = 0
        with np.errstate(divide="ignore"):
            logp = np.log(p)
        return Columns(
            request=np.sort(rng.integers(0, len(languages), steps)).astype(np.int32),
            offset=rng.integers(0, 200, steps).astype(np.int32),
            batch=np.ones(steps, np.int32),
            drafted_n=drafted_n,
            accepted=drafted_n * 0,
            committed=drafted_n * 0,
            draft_s=np.zeros(steps),
            verify_s=np.zeros(steps),
            tokens=np.zeros(shape, np.int32),
            evidence=rng.random(shape).astype(np.float32),
            category=rng.integers(0, len(Category), shape).astype(np.uint8),
            logp=logp,
            logq=np.log(rng.uniform(0.1, 1, shape)).astype(np.float32),
            top1_margin=np.where(rank == 0, 0, np.where(p > 0, 1, np.inf)).astype(np.float32),
            rank=rank,
            entropy=rng.exponential(size=shape).astype(np.float32),
            uniform=np.full(shape, 0.5, np.float32) if greedy else rng.random(shape).astype(np.float32),
            languages=languages,
            greedy=greedy,
        )

    return make
