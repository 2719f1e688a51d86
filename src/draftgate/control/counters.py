"""Windows from counters: what an engine counted between two scrapes.

vLLM counts drafts, drafted tokens and kept positions, but not drafts by length. Lengths are taken to be as equal as
the totals allow: as many drafts as possible had position 0, then 1, and so on. Where the number of running sequences
is not known, engine seconds are those of one sequence at a time, so only figures per sequence can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from draftgate.control.compose import ALL
from draftgate.control.window import Window

__all__ = ["CounterWindows", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Totals at one moment; None, or no entry, for what the engine does not count.

    Attributes:
        time_s: seconds since 1970.
        started_s: when the engine's process started; changes with a restart.
        drafts, drafted, accepted: drafting steps, drafted tokens, those kept.
        generated: output tokens; first_tok: requests that got their first token, which the prefill chose.
        kept: drafting steps that kept position i.
        requests, errors: finished and failed requests.
        steps, sequence_s: decode steps of sequences, and the seconds they took, summed over sequences; both or none.
        running: sequences being decoded at that moment.
        judged, valid: outputs that were checked, those that passed.
        latency: requests by upper bound of their seconds per output token, cumulative.
    """

    time_s: float
    drafts: int
    drafted: int
    accepted: int
    generated: int
    kept: tuple[int, ...] = ()
    first_tok: int = 0
    requests: int = 0
    errors: int = 0
    steps: int | None = None
    sequence_s: float = 0.0
    running: float | None = None
    judged: int = 0
    valid: int = 0
    latency: Mapping[float, int] = field(default_factory=dict)
    started_s: float | None = None


_COUNTERS = (
    "drafts",
    "drafted",
    "accepted",
    "generated",
    "first_tok",
    "requests",
    "errors",
    "sequence_s",
    "judged",
    "valid",
)


class CounterWindows:
    """Cuts scrapes into windows after so many requests or seconds.

    A counter that went down, or another start time, is a restart: the window is dropped and counted in `restarts`. A
    scrape that shows nothing new adds nothing, however often it comes.
    """

    def __init__(self, policy: str = "", size: int = 300, most_s: float = 60.0) -> None:
        """Start empty; see `samples.WindowMaker` for size and most_s."""
        self.restarts = 0
        self._policy, self._size, self._most_s = policy, size, most_s
        self._base: Snapshot | None = None
        self._running: list[float] = []

    def add(self, now: Snapshot) -> Window | None:
        """Take a scrape; returns the window that it completes."""
        base = self._base
        if base is None or _restarted(base, now):
            self.restarts += base is not None
            self._start(now)
            return None
        if now.generated == base.generated:
            # Idle: the window starts when the traffic does, unless what was counted would be lost.
            if now.requests == base.requests and now.drafts == base.drafts:
                self._start(now)
            return None
        if now.running:
            self._running.append(now.running)
        spent_s = now.time_s - base.time_s
        # A clock that was set back must not keep the window open for ever.
        if now.requests - base.requests < self._size and 0 <= spent_s < self._most_s:
            return None
        window = _between(base, now, self._policy, self._batch())
        self._start(now)
        return window

    def _start(self, now: Snapshot) -> None:
        self._base, self._running = now, []

    def _batch(self) -> float | None:
        return sum(self._running) / len(self._running) if self._running else None


def _restarted(base: Snapshot, now: Snapshot) -> bool:
    fell = any(getattr(now, name) < getattr(base, name) for name in _COUNTERS)
    fell |= now.steps is not None and base.steps is not None and now.steps < base.steps
    fell |= any(n < b for n, b in zip(now.kept, base.kept, strict=False)) or len(now.kept) < len(base.kept)
    return fell or now.started_s != base.started_s


def _between(base: Snapshot, now: Snapshot, policy: str, batch: float | None) -> Window:
    d = {name: getattr(now, name) - getattr(base, name) for name in _COUNTERS}
    before = base.kept + (0,) * (len(now.kept) - len(base.kept))
    drafts = int(d["drafts"])
    kept = [min(n - b, drafts) for n, b in zip(now.kept, before, strict=True)]
    committed = max(int(d["generated"] - d["first_tok"]), 0)
    # A step commits one token more than it accepts; an output that ends inside a step has fewer than were accepted.
    counted = None if now.steps is None or base.steps is None else now.steps - base.steps
    steps = max(committed - int(d["accepted"]) if counted is None else counted, drafts)
    offered = _offered(drafts, int(d["drafted"]), kept)
    reached = [min(o, before) for o, before in zip(offered, [drafts, *kept], strict=False)]
    return Window(
        workload=ALL,
        policy=policy,
        start_s=min(base.time_s, now.time_s),
        end_s=now.time_s,
        requests=int(d["requests"]),
        steps=steps,
        covered=drafts,
        drafted=int(d["drafted"]),
        accepted=int(d["accepted"]),
        committed=committed,
        kept=tuple(kept),
        reached=tuple(reached),
        offered=tuple(offered),
        # What was not counted at both scrapes has not grown from 0 between them.
        seconds=0.0 if counted is None else d["sequence_s"] / (batch or 1.0),
        batch=batch,
        judged=int(d["judged"]),
        valid=int(d["valid"]),
        latency_s=_percentile(base.latency, now.latency, 0.95),
        errors=int(d["errors"]),
    )


def _offered(drafts: int, drafted: int, kept: list[int]) -> list[int]:
    offered = []
    for n in kept:
        offered.append(max(min(drafts, drafted), n))
        drafted = max(drafted - drafts, 0)
    return offered


def _percentile(base: Mapping[float, int], now: Mapping[float, int], share: float) -> float | None:
    """Percentile of a histogram's growth, linear inside a bucket as Prometheus' histogram_quantile; None if empty."""
    rows = sorted((bound, n - base.get(bound, 0)) for bound, n in now.items())
    if not rows or rows[-1][1] <= 0:
        return None
    wanted = share * rows[-1][1]
    for (low, below), (high, n) in pairwise([(0.0, 0), *rows]):
        if n >= wanted and n > below:
            # Nothing is known beyond the last finite bound.
            return low if high == float("inf") else low + (high - low) * (wanted - below) / (n - below)
    return None
