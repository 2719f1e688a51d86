"""What acceptance is worth: expected length, break-even and the theoretical maxima of a step."""

import numpy as np

from draftgate.cost.steps import StepCost

__all__ = ["all_accepted_speedup", "break_even", "expected_committed", "iid_speedup"]


def expected_committed(alpha: float, k: int) -> float:
    """Committed tokens of a step, bonus token included, when each of k drafted tokens is kept with chance alpha.

    Chances are independent: Leviathan et al. 2023, equation 1, (1 - alpha^(k+1)) / (1 - alpha).

    >>> expected_committed(0.5, 2), expected_committed(1.0, 3), expected_committed(0.0, 9)
    (1.75, 4.0, 1.0)
    """
    return float(np.power(float(alpha), np.arange(k + 1)).sum())


def _relative_step(cost: StepCost, k: int, batch: int) -> float:
    """Seconds of a step that drafts k tokens, over those of a step that drafts none."""
    none, step = cost.step_s(np.array([0, k]), batch)
    return float(step / none)


def all_accepted_speedup(cost: StepCost, k: int, batch: int = 1) -> float:
    """Speedup if every drafted token were kept: no rule or threshold can pass it at this k."""
    return (k + 1) / _relative_step(cost, k, batch)


def iid_speedup(cost: StepCost, alpha: float, k: int, batch: int = 1) -> float:
    """Speedup at acceptance alpha under the i.i.d. assumption; real acceptance comes in runs, so it only orients."""
    return expected_committed(alpha, k) / _relative_step(cost, k, batch)


def break_even(cost: StepCost, k: int, batch: int = 1) -> float | None:
    """Smallest i.i.d. acceptance rate per token at which drafting k tokens is not slower than drafting none.

    Returns:
        A probability, or None when even full acceptance loses.
    """
    need = _relative_step(cost, k, batch)
    if need > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # committed tokens rise with alpha, so bisection finds the one crossing
        middle = (low + high) / 2
        low, high = (low, middle) if expected_committed(middle, k) >= need else (middle, high)
    return high
