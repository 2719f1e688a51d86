"""Ask for policies, tell what replay predicts of them, keep the front of speed against divergence."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from draftgate.policy.policy import Policy
from draftgate.replay.predict import Prediction
from draftgate.search.pareto import front
from draftgate.search.space import Space

__all__ = ["Session"]


class Session:
    """First the whole grid, then neighbours of the front; deterministic for a seed.

    Divergence is the log-probability given up per committed token by tokens that the lossless test would have rejected:
    0 for lossless policies.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._grid = space.grid()
        self._rng = np.random.default_rng(seed)
        self._seen: set[str] = set()
        self._told: list[tuple[Policy, Prediction]] = []

    def __len__(self) -> int:
        return len(self._told)

    def ask(self, n: int) -> list[Policy]:
        """Up to n policies that were not asked for before; fewer when no new one is found."""
        asked = [p for p in islice(self._grid, n) if p.name not in self._seen]
        self._seen.update(p.name for p in asked)
        parents = self.front() if self._told else []
        for _ in range(20 * n):
            if len(asked) >= n or not parents:
                break
            parent, _ = parents[self._rng.integers(len(parents))]
            child = self._space.neighbour(parent, self._rng)
            if child.name not in self._seen:
                self._seen.add(child.name)
                asked.append(child)
        return asked

    def tell(self, results: Iterable[tuple[Policy, Prediction]]) -> None:
        """Add predictions; those without a speedup (no cost model) are refused.

        Raises:
            ValueError: a prediction has no speedup.
        """
        for policy, prediction in results:
            if prediction.speedup is None:
                raise ValueError(f"prediction of '{policy.name}' has no speedup; predict it with a cost model")
            self._told.append((policy, prediction))

    def front(self) -> list[tuple[Policy, Prediction]]:
        """The Pareto front, fastest first."""
        speed = [p.speedup or 0.0 for _, p in self._told]
        loss = [p.given_up_nats for _, p in self._told]
        return [self._told[i] for i in front(speed, loss)]

    def best(self, most_nats: float) -> tuple[Policy, Prediction] | None:
        """The fastest policy that gives up at most so many nats per committed token."""
        allowed = [(policy, p) for policy, p in self._told if p.given_up_nats <= most_nats]
        return max(allowed, key=lambda pair: pair[1].speedup or 0.0, default=None)

    @property
    def told(self) -> Sequence[tuple[Policy, Prediction]]:
        """Everything predicted so far."""
        return self._told
