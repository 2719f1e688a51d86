"""Logits to probabilities, and draws from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling

__all__ = ["draw", "one_hot", "probabilities"]

Floats = NDArray[np.floating[Any]]
Law = NDArray[np.float64]


def probabilities(logits: Floats, sampling: Sampling) -> Law:
    """The law that a row of logits [V] is sampled from, float64 [V]; one-hot on the argmax when greedy.

    Order as in Hugging Face transformers: temperature, top-k, top-p, min-p, each on the renormalised rest.
    """
    if sampling.greedy:
        return one_hot(int(logits.argmax()), len(logits))
    # Shifted before the division: a tiny temperature then gives 0 and -inf, never inf - inf.
    p: Law = np.exp((logits - logits.max()).astype(np.float64) / sampling.temperature)
    p /= p.sum()
    if 0 < sampling.top_k < len(p):
        p = _only(p, np.argpartition(p, -sampling.top_k)[-sampling.top_k :])
    if sampling.top_p < 1.0:
        p = _only(p, _nucleus(p, sampling.top_p))
    if sampling.min_p > 0.0:
        p = _only(p, np.flatnonzero(p >= sampling.min_p * p.max()))
    return p


def _nucleus(p: Law, top_p: float) -> NDArray[np.intp]:
    """Indices of the fewest tokens whose mass reaches top_p; of equals, the lowest ids.

    Tokens below (1 - top_p) / V hold less than 1 - top_p together, so they are never needed and need no sorting.
    """
    likely = np.flatnonzero(p >= (1.0 - top_p) / len(p))
    order = likely[np.argsort(-p[likely], kind="stable")]
    needed = int(p[order].cumsum().searchsorted(top_p)) + 1
    kept: NDArray[np.intp] = order[:needed]
    return kept


def _only(p: Law, keep: NDArray[np.intp]) -> Law:
    out = np.zeros_like(p)
    out[keep] = p[keep] / p[keep].sum()
    return out


def one_hot(x: int, n: int) -> Law:
    """All mass on token x of n."""
    out = np.zeros(n)
    out[x] = 1.0
    return out


def draw(p: Law, uniform: float) -> int:
    """The token at quantile `uniform` in [0, 1) of a distribution [V]; never one without mass."""
    total = p.cumsum()
    # The last token with mass, should rounding carry uniform * total up to the total itself.
    return min(int(total.searchsorted(uniform * total[-1], side="right")), int(p.nonzero()[0][-1]))
