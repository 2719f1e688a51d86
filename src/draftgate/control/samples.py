"""Windows from finished requests: columns in, a window after every so many requests or seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.control.window import Window
from draftgate.errors import ConfigError, TraceError

__all__ = ["COUNTS", "Samples", "WindowMaker"]

COUNTS = ("steps", "covered", "drafted", "accepted", "committed", "judged", "valid", "errors")

_REMEMBERED = 4  # windows whose request ids are known as seen


@dataclass(frozen=True, slots=True)
class Samples:
    """Finished requests of one workload under one policy, as columns.

    Attributes:
        id: number of each request [n], the same when it is reported twice.
        end_s: when it finished, seconds since 1970 [n].
        counts: [n, len(COUNTS)], columns as in `COUNTS`; see `Window`.
        positions: [n, 3, K]: drafts that kept, reached and offered position i.
        seconds: engine seconds of its steps; a step of B sequences counts 1 / B for each [n].
        batch: mean sequences per step, NaN when not known [n].
        latency_s: seconds per output token, NaN when not known [n].

    Raises:
        TraceError: the columns are not equally long.
    """

    id: NDArray[np.int64]
    end_s: NDArray[np.float64]
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]
    seconds: NDArray[np.float64]
    batch: NDArray[np.float64]
    latency_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        n = len(self.id)
        shapes = [(n,), (n, len(COUNTS)), (n, 3, self.positions.shape[-1]), (n,), (n,), (n,)]
        got = [c.shape for c in (self.end_s, self.counts, self.positions, self.seconds, self.batch, self.latency_s)]
        if shapes != got:
            raise TraceError(f"samples of {n} requests must have columns shaped {shapes} but got {got}")

    def __len__(self) -> int:
        return len(self.id)

    def at(self, rows: Any) -> "Samples":
        """Some of the requests: a slice, mask or array of row numbers."""
        columns = (self.id, self.end_s, self.counts, self.positions, self.seconds, self.batch, self.latency_s)
        return Samples(*(column[rows] for column in columns))


class WindowMaker:
    """Cuts a stream of requests into windows; memory does not grow with the stream.

    Requests may come late and in any order. A request seen before is not counted again; one that finished more than
    `late_s` before the latest is dropped, as its window is long gone.

    Attributes:
        duplicates, late: requests left out so far.
    """

    def __init__(
        self,
        workload: str,
        policy: str,
        size: int = 300,
        most_s: float = 60.0,
        late_s: float = 300.0,
        shadow: bool = False,
    ) -> None:
        """Start empty.

        Args:
            size: requests of a window; the source article's range is 100 to 500.
            most_s: a window ends after so many seconds even when fewer requests finished.
            shadow: whether these are no requests but drafts that did not run (`window.Window`).

        Raises:
            ConfigError: size is below 1, or a time is not positive.
        """
        if size < 1 or not most_s > 0 or not late_s > 0:
            raise ConfigError(f"windows need size >= 1 and positive times but got {size}, {most_s} s and {late_s} s")
        self.workload, self.policy, self.shadow = workload, policy, shadow
        self.duplicates = self.late = 0
        self._size, self._most_s, self._late_s = size, most_s, late_s
        self._pending: list[Samples] = []
        self._n = 0
        self._latest_s = -np.inf
        self._seen = np.empty(0, np.int64)

    def add(self, samples: Samples) -> list[Window]:
        """Take requests; returns the windows that they complete."""
        rest = self._fresh(samples)
        done = []
        while len(rest):
            n = self._room(rest)
            if n:
                self._pending.append(rest.at(slice(n)))
                self._n += n
                rest = rest.at(slice(n, None))
            if len(rest) or self._n >= self._size:
                done.append(self._cut())
        return done

    def flush(self, now_s: float) -> list[Window]:
        """The open window, if its time is over: traffic may have stopped."""
        over = self._n > 0 and now_s - self._start_s() >= self._most_s
        return [self._cut()] if over else []

    def _fresh(self, samples: Samples) -> Samples:
        """Requests that are neither known nor too late, by time."""
        _, first = np.unique(samples.id, return_index=True)
        new = first[~np.isin(samples.id[first], self._seen, kind="sort")]
        self.duplicates += len(samples) - len(new)
        if not len(new):
            return samples.at(new)
        self._latest_s = max(self._latest_s, float(samples.end_s[new].max()))
        on_time = new[samples.end_s[new] >= self._latest_s - self._late_s]
        self.late += len(new) - len(on_time)
        kept = samples.at(on_time[np.argsort(samples.end_s[on_time], kind="stable")])
        self._seen = np.concatenate((self._seen, kept.id))[-_REMEMBERED * max(self._size, len(kept)) :]
        return kept

    def _room(self, rest: Samples) -> int:
        """How many of these requests, which are in order, belong to the open window."""
        start_s = self._start_s() if self._pending else rest.end_s[0]
        in_time = int(np.searchsorted(rest.end_s, start_s + self._most_s))
        return min(self._size - self._n, in_time)

    def _start_s(self) -> float:
        return float(min(part.end_s[0] for part in self._pending))

    def _cut(self) -> Window:
        parts, self._pending, self._n = self._pending, [], 0
        return replace(_window(self.workload, self.policy, parts), shadow=self.shadow)


def _window(workload: str, policy: str, parts: Sequence[Samples]) -> Window:
    counts = dict(zip(COUNTS, sum(p.counts.sum(axis=0) for p in parts).tolist(), strict=True))
    most = max(p.positions.shape[-1] for p in parts)
    positions = np.zeros((3, most), np.int64)
    for part in parts:
        positions[:, : part.positions.shape[-1]] += part.positions.sum(axis=0)
    kept, reached, offered = positions.tolist()
    latency = np.concatenate([p.latency_s for p in parts])
    latency = latency[~np.isnan(latency)]
    return Window(
        workload=workload,
        policy=policy,
        start_s=min(float(p.end_s[0]) for p in parts),
        end_s=max(float(p.end_s[-1]) for p in parts),
        requests=sum(map(len, parts)),
        kept=tuple(kept),
        reached=tuple(reached),
        offered=tuple(offered),
        seconds=float(sum(p.seconds.sum() for p in parts)),
        batch=_batch(parts),
        latency_s=float(np.percentile(latency, 95)) if len(latency) else None,
        **counts,
    )


def _batch(parts: Sequence[Samples]) -> float | None:
    batch = np.concatenate([p.batch for p in parts])
    steps = np.concatenate([p.counts[:, COUNTS.index("steps")] for p in parts])
    known = ~np.isnan(batch) & (steps > 0)
    return float(np.average(batch[known], weights=steps[known])) if known.any() else None
