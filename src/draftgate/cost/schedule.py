"""Draft lengths by batch size: verifying costs more in a full batch, so fewer drafted tokens pay there."""

from collections.abc import Sequence

import numpy as np

from draftgate.cost.steps import StepCost

__all__ = ["batch_schedule"]

_PAYS = 1.02  # below this, no speculation is simpler and as fast


def batch_schedule(cost: StepCost, survival: Sequence[float], coverage: float, most: int) -> list[tuple[int, int, int]]:
    """(first batch size, last batch size, draft length) rows, each measured batch size serving up to the next one.

    A step commits 1 + coverage * sum(survival[:k]) tokens on average; k maximises them over its seconds. The longest k
    is bounded by what was recorded: nothing is known of positions behind it.

    Args:
        cost: measured step costs.
        survival: share of drafting steps that kept position i.
        coverage: share of steps that drafted.
        most: longest draft wanted.
    """
    sizes = sorted(cost.curves)
    lengths = [_best(cost, survival[:most], coverage, batch) for batch in sizes]
    ends = [after - 1 for after in sizes[1:]] + sizes[-1:]
    rows = [(max(first, 1), last, k) for first, last, k in zip([1, *sizes[1:]], ends, lengths, strict=True)]
    return _merged(rows)


def _best(cost: StepCost, survival: Sequence[float], coverage: float, batch: int) -> int:
    rates = [_tokens_per_s(cost, survival[:k], coverage, batch) for k in range(len(survival) + 1)]
    best = max(range(len(rates)), key=rates.__getitem__)
    return best if rates[best] > _PAYS * rates[0] else 0


def _tokens_per_s(cost: StepCost, survival: Sequence[float], coverage: float, batch: int) -> float:
    """Tokens per second of one sequence when steps draft len(survival) tokens, in `coverage` of them."""
    none_s, drafting_s = cost.step_s(np.array([0, len(survival)]), batch)
    return float((1 + coverage * sum(survival)) / (coverage * drafting_s + (1 - coverage) * none_s))


def _merged(rows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    for first, last, k in rows:
        if out and out[-1][2] == k:
            first = out.pop()[0]
        out.append((first, last, k))
    return out
