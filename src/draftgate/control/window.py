"""A window: what one workload did under one policy over some requests; the unit that controllers and guards judge.

Ratios are properties over counts, so windows add up. A ratio of nothing is None, never 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any

from draftgate.errors import TraceError
from draftgate.stats.drift import require_fields

__all__ = ["Window"]

_LENGTHS = ("kept", "reached", "offered")
_COUNTS = ("requests", "steps", "covered", "drafted", "accepted", "committed", "judged", "valid", "errors")


@dataclass(frozen=True, slots=True)
class Window:
    """Counts of one workload's requests between two moments.

    Attributes:
        workload: name of the class of requests.
        policy: name of the policy in force.
        start_s, end_s: seconds since 1970.
        requests: finished requests.
        steps: decode steps, summed over sequences; covered: those that drafted.
        drafted: drafted tokens; accepted: those kept; committed: output tokens, bonus tokens included.
        kept: drafts that kept position i.
        reached: drafts that had position i and kept all before it.
        offered: drafts at least i + 1 tokens long.
        seconds: engine seconds spent in these steps, a batched step counted once; 0 when not measured.
        batch: mean sequences per step; None when not known.
        judged: outputs that were checked; valid: those that passed.
        latency_s: p95 of seconds per output token; None when not known.
        errors: failed requests.
        shadow: nothing of this ran. These are drafts for requests that were served without speculation, scored on their
            finished texts: what a lossless rule would have kept of them.

    >>> w = Window("code", "mine", 0.0, 60.0, requests=2, steps=10, covered=8, drafted=16, accepted=10, committed=20,
    ...            kept=(7, 3), reached=(8, 7), offered=(8, 8), seconds=0.5, batch=1.0, judged=0, valid=0,
    ...            latency_s=None, errors=0)
    >>> w.acceptance_rate, w.acceptance_length, w.coverage, w.survival, w.tokens_per_s, w.validity
    (0.625, 2.0, 0.8, (0.875, 0.375), 40.0, None)
    """

    workload: str
    policy: str
    start_s: float
    end_s: float
    requests: int
    steps: int
    covered: int
    drafted: int
    accepted: int
    committed: int
    kept: tuple[int, ...]
    reached: tuple[int, ...]
    offered: tuple[int, ...]
    seconds: float
    batch: float | None
    judged: int
    valid: int
    latency_s: float | None
    errors: int
    shadow: bool = False

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens, without bonus tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Committed tokens per step, bonus token included."""
        return self.committed / self.steps if self.steps else None

    @property
    def coverage(self) -> float | None:
        """Share of steps that drafted."""
        return self.covered / self.steps if self.steps else None

    @property
    def survival(self) -> tuple[float | None, ...]:
        """Share of drafting steps that kept position i; a draft that was shorter did not keep it."""
        return tuple(n / self.covered if self.covered else None for n in self.kept)

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Share of the drafts that reached position i and kept it; None for a position that none reached."""
        return tuple(n / of if of else None for n, of in zip(self.kept, self.reached, strict=True))

    @property
    def tokens_per_s(self) -> float | None:
        """Committed tokens per engine second."""
        return self.committed / self.seconds if self.seconds > 0 else None

    @property
    def goodput(self) -> float | None:
        """Valid committed tokens per engine second; all count as valid when no output was judged."""
        rate, validity = self.tokens_per_s, self.validity
        return rate if rate is None or validity is None else rate * validity

    @property
    def validity(self) -> float | None:
        """Share of the judged outputs that are valid."""
        return self.valid / self.judged if self.judged else None

    @classmethod
    def merge(cls, windows: Sequence["Window"]) -> "Window":
        """One window over several of the same workload and policy.

        The merged batch is the mean over steps. A percentile of parts is not known from theirs: the merged latency is
        the greatest, which it cannot exceed.

        Raises:
            TraceError: there are none, or they are of different workloads or policies, or not all shadows.
        """
        if len({(w.workload, w.policy, w.shadow) for w in windows}) != 1:
            raise TraceError("windows to merge must be of one workload, one policy and one kind; group them first")
        sums: dict[str, Any] = {name: sum(getattr(w, name) for w in windows) for name in _COUNTS}
        lists: dict[str, Any] = {name: _added([getattr(w, name) for w in windows]) for name in _LENGTHS}
        return cls(
            workload=windows[0].workload,
            policy=windows[0].policy,
            start_s=min(w.start_s for w in windows),
            end_s=max(w.end_s for w in windows),
            seconds=sum(w.seconds for w in windows),
            batch=_mean_batch(windows),
            latency_s=max((w.latency_s for w in windows if w.latency_s is not None), default=None),
            shadow=windows[0].shadow,
            **sums,
            **lists,
        )

    def flaw(self) -> str | None:
        """Why these figures cannot be true, or None: a source that counts wrongly must not steer anything."""
        return next((says for says, holds in _CHECKS.items() if not holds(self)), None)

    def to_mapping(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: list(value) if name in _LENGTHS else value for name, value in asdict(self).items()}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Window":
        """What `to_mapping` wrote; `shadow` may be missing, as most are none.

        Raises:
            ConfigError: fields are missing or unknown.
            TraceError: a value has the wrong type, or the counts contradict each other.
        """
        data = {"shadow": False, **data}
        require_fields(cls.__name__, data, [f.name for f in fields(cls)])
        try:
            values: dict[str, Any] = {name: tuple(_whole(n) for n in data[name]) for name in _LENGTHS}
            values |= {name: _whole(data[name]) for name in _COUNTS}
            values |= {name: float(data[name]) for name in ("start_s", "end_s", "seconds")}
            values |= {name: None if data[name] is None else float(data[name]) for name in ("batch", "latency_s")}
            values["shadow"] = _truth(data["shadow"])
            window = cls(workload=str(data["workload"]), policy=str(data["policy"]), **values)
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"window: {error}; write it as Window.to_mapping does") from None
        if flaw := window.flaw():
            raise TraceError(f"window of '{window.workload}': {flaw}")
        return window


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"counts must be whole numbers but got {value!r:.40}")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"shadow must be true or false but got {value!r:.40}")
    return value


def _added(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))


def _mean_batch(windows: Sequence[Window]) -> float | None:
    known = [(w.batch, w.steps) for w in windows if w.batch is not None and w.steps]
    steps = sum(n for _, n in known)
    return sum(batch * n for batch, n in known) / steps if steps else None


def _finite(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value >= 0)


_CHECKS: Mapping[str, Callable[[Window], bool]] = {
    "seconds, batch or latency is negative, NaN or infinite": lambda w: (
        _finite(w.seconds) and _finite(w.batch) and _finite(w.latency_s)
    ),
    "start or end is not a time, or the end is before the start": lambda w: 0 <= w.start_s <= w.end_s < math.inf,
    "a count is negative": lambda w: min(*(getattr(w, n) for n in _COUNTS), *w.kept, *w.reached, *w.offered, 0) >= 0,
    "more tokens were accepted than drafted": lambda w: w.accepted <= w.drafted,
    "more steps drafted than there were": lambda w: w.covered <= w.steps,
    "tokens were drafted in no step": lambda w: w.covered > 0 or w.drafted == 0,
    "more outputs are valid than were judged": lambda w: w.valid <= w.judged,
    "kept, reached and offered differ in length": lambda w: len(w.kept) == len(w.reached) == len(w.offered),
    "a position was kept more often than reached or offered": lambda w: all(
        k <= r <= o <= w.covered for k, r, o in zip(w.kept, w.reached, w.offered, strict=False)
    ),
}
