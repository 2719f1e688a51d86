"""Finished requests, one JSON object a line, to columns. msgspec checks types and ranges while it parses.

A finished request:

    {"id": "cmpl-7", "workload": "code", "policy": "mine", "end_s": 1.7e9, "steps": 40, "covered": 36, "drafted": 180,
     "accepted": 95, "committed": 135, "kept": [30, 25, 18, 12, 10], "seconds": 0.8, "valid": true}

and further `reached`, `offered`, `batch`, `latency_s`, `error`. Without `offered` all drafts count as equally long,
without `reached` as ended by a rejection only. A line with `"shadow": true` is no request, but what drafts would have
come to for one that ran without them (`window.Window`); it has no `seconds`.
"""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftgate.control.samples import Samples
from draftgate.errors import TraceError, nearest

__all__ = ["Request", "request", "samples"]

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
_Number = Annotated[float, msgspec.Meta(ge=0, lt=1e18)]
_Nan = float("nan")


class Request(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One line; fields as in `samples.Samples` and `window.Window`."""

    id: str | int | float
    end_s: _Number
    steps: _Count
    covered: _Count
    drafted: _Count
    accepted: _Count
    committed: _Count
    kept: list[_Count]
    workload: str = ""
    policy: str = ""
    reached: list[_Count] | None = None
    offered: list[_Count] | None = None
    seconds: _Number | None = None
    batch: _Number | None = None
    valid: bool | None = None
    latency_s: _Number | None = None
    error: bool | str | None = None
    shadow: bool = False

    def __post_init__(self) -> None:
        for other in (self.reached, self.offered):
            if other is not None and len(other) != len(self.kept):
                raise ValueError("kept, reached and offered must be equally long")


_FIELDS = tuple(field.name for field in msgspec.structs.fields(Request))
_DECODER = msgspec.json.Decoder(Request)
_PLAIN = attrgetter("steps", "covered", "drafted", "accepted", "committed")


def request(line: bytes) -> Request:
    """Read one line.

    Raises:
        TraceError: it is no finished request; says why.
    """
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise TraceError(_reason(line, str(error))) from None


def _reason(line: bytes, said: str) -> str:
    """What is wrong, with the nearest name where a field is unknown."""
    unknown = said.startswith("Object contains unknown field")
    name = said.split("`")[1] if unknown else ""
    return f"a request has no '{name}'; {nearest(name, _FIELDS)}" if unknown else said


def samples(rows: Sequence[Request]) -> Samples:
    """Columns of requests of one workload under one policy."""
    plain = np.array([_PLAIN(row) for row in rows], np.int64)
    valid = [row.valid for row in rows]
    more = np.array([[v is not None for v in valid], [v is True for v in valid], [bool(r.error) for r in rows]])
    return Samples(
        np.array([hash(str(row.id)) for row in rows], np.int64),
        np.array([row.end_s for row in rows], float),
        np.concatenate((plain, more.T), axis=1),
        _positions(rows, plain[:, 1]),
        np.array([row.seconds or 0.0 for row in rows], float),
        np.array([row.batch for row in rows], float),
        np.array([row.latency_s for row in rows], float),
    )


def _positions(rows: Sequence[Request], covered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Drafts that kept, reached and offered each position [n, 3, K]."""
    kept, there = _padded([row.kept for row in rows])
    before = np.concatenate((covered[:, None], kept), axis=1)[:, :-1]
    reached = _given([row.reached for row in rows], before * there)
    return np.stack((kept, reached, _given([row.offered for row in rows], covered[:, None] * there)), axis=1)


def _given(lists: Sequence[list[int] | None], otherwise: NDArray[np.int64]) -> NDArray[np.int64]:
    has = np.array([row is not None for row in lists])
    if not has.any():
        return otherwise
    given, _ = _padded([row or [] for row in lists], otherwise.shape[1])
    return np.where(has[:, None], given, otherwise)


def _padded(lists: Sequence[list[int]], most: int = 0) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Lists as rows, with zeros behind the shorter ones, and which cells are in a list."""
    lengths = np.array([len(row) for row in lists])
    there = np.arange(max(most, int(lengths.max()))) < lengths[:, None]
    out = np.zeros(there.shape, np.int64)
    out[there] = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
    return out, there
