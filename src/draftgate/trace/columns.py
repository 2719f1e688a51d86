"""A trace in memory, laid out for replay: one row a drafted position, one column a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import TraceError
from draftgate.trace.records import RequestRecord, StepRecord
from draftgate.trace.store import TraceStore

__all__ = ["Columns"]

_NAMES = ("tokens", "evidence", "category", "logp", "logq", "top1_margin", "rank", "entropy", "uniform")
_TYPES = (np.int32, np.float32, np.uint8, np.float32, np.float32, np.float32, np.int32, np.float32, np.float32)


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays [K, S] over drafted positions and steps, [S] over steps, in step order within each request.

    Positions are the slow axis, so that a replay touches position 0 of all steps, then position 1, and stays in cache.
    Cells at or past a step's `drafted_n` hold zeros and are never read.

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
            TraceError: a step's drafted tokens were not recorded, or greedy and sampled requests are mixed.
        """
        index = {r.request: i for i, r in enumerate(requests)}
        lists: dict[str, list[NDArray[Any]]] = {name: [] for name in _NAMES}
        for step in steps:
            if step.drafted is None:
                raise TraceError(f"request {step.request}: step {step.step} was recorded without its drafted tokens")
            for name in _NAMES:
                lists[name].append(getattr(step.drafted, name))
        flat = {
            name: np.concatenate(lists[name]) if lists[name] else np.zeros(0, dtype)
            for name, dtype in zip(_NAMES, _TYPES, strict=True)
        }
        whole = ("offset", "batch", "drafted_n", "accepted", "committed")
        return cls._build(
            np.array([index[s.request] for s in steps], np.int32),
            {name: np.array([getattr(s, name) for s in steps], np.int32) for name in whole},
            {name: np.array([getattr(s, name) for s in steps], np.float64) for name in ("draft_s", "verify_s")},
            flat,
            tuple(r.language for r in requests),
            _greedy([r.sampling for r in requests]),
        )

    @classmethod
    def load(cls, store: TraceStore) -> "Columns":
        """Read a whole trace without making a Python object per step.

        Raises:
            TraceError: the trace cannot be read or was recorded without drafted tokens.
        """
        requests, steps = store.tables()
        if steps.column("tokens").null_count:
            raise TraceError(f"{store.path}: was recorded without drafted tokens; record with 'draftgate tune'")
        ids = requests.column("request").to_numpy()
        order = np.argsort(ids)
        keys = steps.column("request").to_numpy()
        records = store.requests()
        flat = {}
        for name, dtype in zip(_NAMES, _TYPES, strict=True):
            values = steps.column(name).combine_chunks().flatten()
            flat[name] = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        number = {
            name: steps.column(name).to_numpy() for name in ("offset", "batch", "drafted_n", "accepted", "committed")
        }
        seconds = {name: steps.column(name).to_numpy() for name in ("draft_s", "verify_s")}
        return cls._build(
            order[np.searchsorted(ids[order], keys)].astype(np.int32),
            {name: v.astype(np.int32) for name, v in number.items()},
            seconds,
            flat,
            tuple(r.language for r in records),
            _greedy([r.sampling for r in records]),
        )

    @classmethod
    def _build(
        cls,
        request: NDArray[np.int32],
        whole: dict[str, NDArray[np.int32]],
        seconds: dict[str, NDArray[np.float64]],
        flat: dict[str, NDArray[Any]],
        languages: tuple[str | None, ...],
        greedy: bool,
    ) -> "Columns":
        drafted_n = whole["drafted_n"]
        if drafted_n.sum() != len(flat["tokens"]):
            raise TraceError(f"steps count {drafted_n.sum()} drafted tokens but {len(flat['tokens'])} are recorded")
        k = int(drafted_n.max(initial=0))
        starts = np.concatenate([[0], np.cumsum(drafted_n)[:-1]]) if len(drafted_n) else np.zeros(0, np.int64)
        columns = {name: np.zeros((k, len(drafted_n)), dtype) for name, dtype in zip(_NAMES, _TYPES, strict=True)}
        for j in range(k):
            here = drafted_n > j
            for name, out in columns.items():
                out[j, here] = flat[name][starts[here] + j]
        return cls(request=request, languages=languages, greedy=greedy, **whole, **seconds, **columns)

    def of(self, requests: NDArray[np.bool_]) -> "Columns":
        """The steps of some requests, a mask [n_requests]; request numbers are kept."""
        keep = requests[self.request]
        fields = {name: getattr(self, name)[:, keep] for name in _NAMES}
        fields |= {
            name: getattr(self, name)[keep]
            for name in ("request", "offset", "batch", "drafted_n", "accepted", "committed", "draft_s", "verify_s")
        }
        return Columns(**fields, languages=self.languages, greedy=self.greedy)


def _greedy(samplings: Sequence[Any]) -> bool:
    kinds = {float(s.get("temperature", 0.0)) == 0.0 for s in samplings}
    if len(kinds) > 1:
        raise TraceError("the trace mixes greedy and sampled requests; replay them apart")
    return kinds != {False}
