"""A trace in memory, laid out for replay: one row a drafted position, one column a step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import TraceError, require
from draftgate.trace.records import DRAFTED_TYPES, RequestRecord, StepRecord
from draftgate.trace.store import TraceStore

__all__ = ["Columns"]

_COUNTS = ("offset", "batch", "drafted_n", "accepted", "committed")
_SECONDS = ("draft_s", "verify_s")


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays [K, S] over drafted positions and steps, [S] over steps, in the order they were recorded.

    Positions are the slow axis, so that a replay touches position 0 of all steps, then position 1, and stays in cache.
    Cells at or past a step's `drafted_n` hold zeros that mean nothing; `valid` tells them apart. The other columns are
    fields of `StepRecord` and `Drafted`.

    Attributes:
        request: index of the step's request in `languages`, [S].
        languages: the language of each request, None when unknown.
        greedy: whether the recording was greedy.
    """

    request: NDArray[np.int32]
    offset: NDArray[np.int32]
    batch: NDArray[np.int32]
    drafted_n: NDArray[np.int32]
    accepted: NDArray[np.int32]
    committed: NDArray[np.int32]
    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    tokens: NDArray[np.int32]
    evidence: NDArray[np.float32]
    category: NDArray[np.uint8]
    logp: NDArray[np.float32]
    logq: NDArray[np.float32]
    top1_margin: NDArray[np.float32]
    rank: NDArray[np.int32]
    entropy: NDArray[np.float32]
    uniform: NDArray[np.float32]
    languages: tuple[str | None, ...]
    greedy: bool

    @property
    def shape(self) -> tuple[int, int]:
        """(K, S)."""
        return self.logp.shape[0], self.logp.shape[1]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Cells that hold a drafted token, [K, S]."""
        return np.arange(self.shape[0])[:, None] < self.drafted_n

    @property
    def n_requests(self) -> int:
        """Requests in the trace."""
        return len(self.languages)

    @classmethod
    def from_records(cls, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> "Columns":
        """Lay out records.

        Raises:
            TraceError: a step's drafted tokens were not recorded, or not all of them; a request is missing or recorded
                twice; greedy and sampled requests are mixed.
        """
        flat: dict[str, list[NDArray[Any]]] = {name: [] for name in DRAFTED_TYPES}
        for step in steps:
            if step.drafted is None:
                raise TraceError(
                    f"request {step.request}: step {step.step} was recorded without its drafted tokens; "
                    "record them to replay"
                )
            for name, arrays in flat.items():
                arrays.append(getattr(step.drafted, name))
                if len(arrays[-1]) != step.drafted_n:
                    raise TraceError(
                        f"request {step.request}: step {step.step} drafted {step.drafted_n} tokens "
                        f"but holds {len(arrays[-1])} values of {name}; record again"
                    )
        return cls._build(
            _rows(np.array([r.request for r in requests], np.int64), np.array([s.request for s in steps], np.int64)),
            {name: np.array([getattr(s, name) for s in steps], np.int32) for name in _COUNTS},
            {name: np.array([getattr(s, name) for s in steps], np.float64) for name in _SECONDS},
            {name: np.concatenate([np.zeros(0, DRAFTED_TYPES[name]), *arrays]) for name, arrays in flat.items()},
            tuple(r.language for r in requests),
            _greedy([r.sampling for r in requests]),
        )

    @classmethod
    def load(cls, store: TraceStore) -> "Columns":
        """Read a whole trace without making a Python object per step.

        Raises:
            TraceError: the trace cannot be read, was recorded without drafted tokens, or is not whole (see
                `from_records`).
        """
        compute = require("pyarrow.compute", "tune")
        requests, steps = store.tables()
        if steps.column("tokens").null_count:
            raise TraceError(f"{store.path}: was recorded without drafted tokens; record with 'draftgate tune'")
        counts = {name: steps.column(name).to_numpy() for name in _COUNTS}
        flat: dict[str, NDArray[Any]] = {}
        for name in DRAFTED_TYPES:
            lists = steps.column(name).combine_chunks()
            if not np.array_equal(compute.list_value_length(lists).to_numpy(zero_copy_only=False), counts["drafted_n"]):
                raise TraceError(
                    f"{store.path}: a step does not hold {name} for each of its drafted tokens; record again"
                )
            flat[name] = lists.flatten().to_numpy(zero_copy_only=False)
        return cls._build(
            _rows(requests.column("request").to_numpy(), steps.column("request").to_numpy()),
            counts,
            {name: steps.column(name).to_numpy() for name in _SECONDS},
            flat,
            tuple(requests.column("language").to_pylist()),
            _greedy([json.loads(text) for text in requests.column("sampling").to_pylist()]),
        )

    @classmethod
    def _build(
        cls,
        request: NDArray[np.int32],
        counts: Mapping[str, NDArray[np.int32]],
        seconds: Mapping[str, NDArray[np.float64]],
        flat: Mapping[str, NDArray[Any]],
        languages: tuple[str | None, ...],
        greedy: bool,
    ) -> "Columns":
        """Spread drafted tokens, given one after the other, over positions and steps."""
        drafted_n = counts["drafted_n"]
        k = int(drafted_n.max(initial=0))
        starts = np.cumsum(drafted_n, dtype=np.int64) - drafted_n
        drafted: dict[str, Any] = {n: np.zeros((k, len(drafted_n)), dtype) for n, dtype in DRAFTED_TYPES.items()}
        for j in range(k):
            here = drafted_n > j
            at = starts[here] + j
            for name, column in drafted.items():
                column[j, here] = flat[name][at]
        whole: dict[str, Any] = {**counts, **seconds}
        return cls(request=request, languages=languages, greedy=greedy, **whole, **drafted)

    def of(self, requests: NDArray[np.bool_]) -> "Columns":
        """The steps of some requests, a mask [n_requests]; request numbers and K stay as they are."""
        keep = requests[self.request]
        whole: dict[str, Any] = {name: getattr(self, name)[keep] for name in ("request", *_COUNTS, *_SECONDS)}
        drafted: dict[str, Any] = {name: getattr(self, name)[:, keep] for name in DRAFTED_TYPES}
        return replace(self, **whole, **drafted)


def _rows(requests: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int32]:
    """Row of each step's request, [S], from the keys of requests [R] and steps [S]."""
    order = requests.argsort()
    ordered = requests[order]
    if (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
        raise TraceError(f"request {twice[0]} was recorded twice; record into a new folder")
    if (unknown := steps[~np.isin(steps, requests)]).size:
        raise TraceError(f"request {unknown[0]} has steps but was not recorded; record again")
    return order[ordered.searchsorted(steps)].astype(np.int32)


def _greedy(samplings: Sequence[Mapping[str, Any]]) -> bool:
    kinds = {float(s.get("temperature", 0.0)) == 0.0 for s in samplings}
    if len(kinds) > 1:
        raise TraceError("the trace mixes greedy and sampled requests; replay them apart")
    return kinds != {False}
