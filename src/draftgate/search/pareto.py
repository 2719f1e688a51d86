"""The policies that no other one beats on both objectives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["front"]


def front(speed: Sequence[float], loss: Sequence[float]) -> NDArray[np.intp]:
    """Indices of points that no other point beats: at least as fast and at most as lossy, and better in one.

    Of equal points the first is kept.

    Returns:
        Indices by falling speed.

    >>> front([1.0, 1.5, 1.4, 1.5], [0.0, 0.2, 0.3, 0.2]).tolist()
    [1, 0]
    """
    order = np.lexsort((np.arange(len(speed)), np.asarray(loss), -np.asarray(speed)))
    best = np.inf
    kept = []
    for i in order:
        if loss[i] < best:
            kept.append(i)
            best = loss[i]
    return np.array(kept, np.intp)
