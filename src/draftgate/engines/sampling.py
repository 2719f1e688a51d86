"""Logits to probabilities, and draws from them."""

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling

__all__ = ["draw", "probabilities", "softmax"]

Floats = NDArray[np.floating]


def softmax(logits: Floats) -> Floats:
    """Probabilities along the last axis."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def probabilities(logits: Floats, sampling: Sampling) -> Floats:
    """The law that a row of logits [V] is sampled from, float64 [V]; one-hot on the argmax when greedy."""
    if sampling.greedy:
        out = np.zeros(logits.shape)
        out[logits.argmax()] = 1.0
        return out
    p = softmax(logits.astype(np.float64) / sampling.temperature)
    if 0 < sampling.top_k < len(p):
        keep = np.argpartition(p, -sampling.top_k)[-sampling.top_k :]
        p = _only(p, keep)
    if sampling.top_p < 1.0:
        p = _only(p, _nucleus(p, sampling.top_p))
    if sampling.min_p > 0.0:
        p = _only(p, np.flatnonzero(p >= sampling.min_p * p.max()))
    return p


def _nucleus(p: Floats, top_p: float) -> NDArray[np.intp]:
    """Indices of the fewest tokens whose mass reaches top_p.

    Tokens below (1 - top_p) / V hold less than 1 - top_p together, so they are never needed and need no sorting.
    """
    likely = np.flatnonzero(p >= (1.0 - top_p) / len(p))
    order = likely[np.argsort(-p[likely], kind="stable")]
    return order[: int(np.searchsorted(p[order].cumsum(), top_p)) + 1]


def _only(p: Floats, keep: NDArray[np.intp]) -> Floats:
    out = np.zeros_like(p)
    out[keep] = p[keep] / p[keep].sum()
    return out


def draw(p: Floats, uniform: float) -> int:
    """The token at quantile `uniform` of a distribution [V]."""
    total = p.cumsum()
    # The last token with mass, should rounding leave the total below the uniform number.
    return min(int(total.searchsorted(uniform * total[-1], side="right")), int(np.flatnonzero(p)[-1]))
