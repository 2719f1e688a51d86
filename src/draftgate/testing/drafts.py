"""Drafts that are wrong on purpose, on a real engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.drafters import Drafter
from draftgate.engines.llamacpp.engine import LlamaCpp
from draftgate.engines.verify import Proposal

__all__ = ["wrong_drafts"]


@dataclass
class _Wrong:
    """A drafter whose tokens are exchanged for others: confident, and never right."""

    inner: Drafter
    exchanged: NDArray[np.int32]

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        self.inner.start(sequence, prompt)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        self.inner.extend(sequence, tokens)

    def propose(self, *args: Any) -> Proposal:
        proposal = self.inner.propose(*args)
        return replace(proposal, tokens=self.exchanged[proposal.tokens])


@contextmanager
def wrong_drafts(engine: LlamaCpp) -> Iterator[None]:
    """Drafts are wrong meanwhile; the engine has no such switch, so this reaches inside."""
    speculator = engine._speculator
    right = speculator._drafter
    exchanged = np.roll(np.arange(len(engine._target.pieces), dtype=np.int32), 1)
    speculator._drafter = _Wrong(right, exchanged)
    try:
        yield
    finally:
        speculator._drafter = right
