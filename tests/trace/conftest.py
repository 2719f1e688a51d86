"""Strategies of records, as engines make them."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from draftgate.trace.records import DRAFTED_TYPES, Drafted, RequestRecord, StepRecord
from draftgate.trace.setup import Setup

_COUNT = st.integers(0, 2**31 - 1)
_SECONDS = st.floats(0, 1e6)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_FLOAT32 = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([-np.inf, np.inf]))
_VALUES = {np.int32: st.integers(-(2**31), 2**31 - 1), np.uint8: st.integers(0, 255), np.float32: _FLOAT32}


@st.composite
def drafts(draw: Any, k: int) -> Drafted:
    columns = {}
    for name, dtype in DRAFTED_TYPES.items():
        columns[name] = np.array(draw(st.lists(_VALUES[dtype], min_size=k, max_size=k)), dtype)
    return Drafted(**columns)


@st.composite
def steps(draw: Any, request: int, step: int, recorded: bool) -> StepRecord:
    k = draw(st.integers(0, 4))
    drafted = draw(drafts(k)) if recorded else None
    return StepRecord(
        request,
        step,
        draw(_COUNT),
        draw(_COUNT),
        draw(_SECONDS),
        draw(_SECONDS),
        k,
        draw(_COUNT),
        draw(_COUNT),
        drafted,
    )


@st.composite
def requests(draw: Any, key: int, temperature: float = 0.0) -> RequestRecord:
    tokens = st.lists(st.integers(0, 2**31 - 1), max_size=5)
    return RequestRecord(
        request=key,
        prompt_id=draw(_TEXT),
        workload=draw(_TEXT),
        language=draw(st.one_of(st.none(), _TEXT)),
        policy=draw(_TEXT),
        prompt_tokens=np.array(draw(tokens), np.int32),
        output_tokens=np.array(draw(tokens), np.int32),
        finish=draw(st.sampled_from(["stop", "length"])),
        prefill_s=draw(_SECONDS),
        decode_s=draw(_SECONDS),
        sampling={"temperature": temperature, "seed": draw(st.integers(0, 2**63))},
    )


@st.composite
def batches(draw: Any, recorded: bool = True) -> list[list[tuple[RequestRecord, list[StepRecord]]]]:
    """What up to three calls of `append` are given; keys are unique but neither dense nor sorted."""
    keys = draw(st.lists(st.integers(-(2**62), 2**62), unique=True, min_size=1, max_size=5))
    pairs = []
    for key in keys:
        n = draw(st.integers(0, 3))
        pairs.append((draw(requests(key)), [draw(steps(key, i, recorded)) for i in range(n)]))
    cuts = sorted(draw(st.lists(st.integers(0, len(pairs)), max_size=2)))
    return [pairs[a:b] for a, b in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Drafted | StepRecord | RequestRecord):
        return type(a) is type(b) and all(_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Whether two records, or lists of them, are equal in every field, arrays and their types included."""
    return lambda a, b: len(a) == len(b) and all(map(_same, a, b)) if isinstance(a, list) else _same(a, b)


@pytest.fixture(scope="session")
def any_batches() -> Callable[..., Any]:
    return batches


@pytest.fixture
def setup() -> Setup:
    return Setup("llamacpp", "b1", "tiny", "0" * 12, "lookup", "some CPU", 2)
