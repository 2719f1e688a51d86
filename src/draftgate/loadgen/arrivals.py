"""When requests come: in a closed loop each answer brings the next request, in an open one they come regardless.

A closed loop slows down with the engine and so never shows a queue. An open loop does: requests that came while the
engine was busy are waiting, and are served together.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from draftgate.engines.base import Request
from draftgate.errors import ConfigError

__all__ = ["Arrivals", "Closed", "Open", "endless"]


class Arrivals(Protocol):
    """Says how many requests are served next."""

    def take(self, now_s: float, most: int) -> int:
        """Requests to serve together now, at most `most`; 0 when none has come."""
        ...

    def wait_s(self, now_s: float) -> float:
        """Seconds until a request is there; 0 when one is."""
        ...


@dataclass(frozen=True, slots=True)
class Closed:
    """So many users, each of whom sends the next request when the last one is answered.

    >>> Closed(3).take(0.0, most=2)
    2

    Raises:
        ConfigError: there is no user.
    """

    users: int = 1

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ConfigError(f"a closed loop needs at least one user but got {self.users}")

    def take(self, now_s: float, most: int) -> int:
        """Everybody, as far as they fit one decode."""
        return min(self.users, most)

    def wait_s(self, now_s: float) -> float:
        """Nobody waits before sending."""
        return 0.0


class Open:
    """A Poisson process: gaps are exponential and know nothing of the engine (Kleinrock, "Queueing Systems", 1975).

    Attributes:
        waiting: requests that have come and are not served yet.
    """

    def __init__(self, rate_per_s: float, start_s: float = 0.0, seed: int = 0) -> None:
        """Begin at `start_s` of the caller's clock.

        Raises:
            ConfigError: the rate is not positive.
        """
        if not 0 < rate_per_s < float("inf"):
            raise ConfigError(f"an open loop needs a positive rate but got {rate_per_s} requests a second")
        self.waiting = 0
        self._rate_per_s, self._rng = rate_per_s, random.Random(seed)
        self._next_s = start_s + self._rng.expovariate(rate_per_s)

    def take(self, now_s: float, most: int) -> int:
        """Those that have come, as far as they fit one decode."""
        while self._next_s <= now_s:
            self.waiting += 1
            self._next_s += self._rng.expovariate(self._rate_per_s)
        n = min(self.waiting, most)
        self.waiting -= n
        return n

    def wait_s(self, now_s: float) -> float:
        """Until the next arrival, unless somebody waits."""
        return 0.0 if self.waiting else max(self._next_s - now_s, 0.0)


def endless(requests: Sequence[Request], seed: int = 0) -> Iterator[Request]:
    """The requests again and again, each round in another order and with ids of its own, so that draws differ.

    Raises:
        ConfigError: there are none.
    """
    if not requests:
        raise ConfigError("a load needs at least one request")
    rng = random.Random(seed)
    for round_ in count():
        for request in rng.sample(requests, len(requests)):
            yield replace(request, id=f"{request.id}#{round_}")
