"""pass@k: the chance that at least one of k completions passes its tests, estimated from n >= k of them.

Taking "did any of k pass" from the k completions at hand wastes the others and is noisy; 1 - (1 - c/n)^k is biased. The
unbiased estimator counts subsets: 1 - C(n-c, k) / C(n, k), with c of n completions passing (Chen et al., "Evaluating
Large Language Models Trained on Code", 2021, eq. 1).

The interval is about problems like these: problems are the independent units, completions of one problem are not. It
is Wilson's, for as many independent trials as the spread over problems is worth: n m (1 - m) / s^2, with m the mean of
the n problems' estimates and s^2 their variance (the design effect of surveys: Kish, "Survey Sampling", 1965; with
Wilson's interval: Franco, Little, Louis and Slud, "Comparative Study of Confidence Intervals for Proportions in Complex
Sample Surveys", 2019). Unlike a bootstrap it does not shrink to a point when everything passes.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.errors import ConfigError, WorkloadError
from draftgate.quality.attempts import Attempt, run_tests
from draftgate.quality.humaneval import Problem
from draftgate.stats import Interval, wilson

__all__ = ["Attempt", "Problem", "estimate", "pass_at_k", "run_tests"]


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased estimate for each problem, from `c` of `n` completions that passed; arrays that broadcast.

    C(n-c, k) / C(n, k) is the product of (n - c - j) / (n - j) over j < k: exact where factorials overflow.

    Raises:
        ConfigError: k below 1.
        WorkloadError: counts that are not whole numbers with 0 <= c <= n, or fewer than k completions.

    >>> pass_at_k([2, 5, 5], [1, 2, 5], k=2).round(3).tolist()
    [1.0, 0.7, 1.0]
    """
    if k < 1:
        raise ConfigError(f"k must be at least 1, but got {k}")
    n, c = np.broadcast_arrays(np.asarray(n, dtype=np.float64), np.asarray(c, dtype=np.float64))
    if not np.all((c >= 0) & (c <= n) & (n % 1 == 0) & (c % 1 == 0)):
        raise WorkloadError("n and c must be whole numbers with 0 <= c <= n in every place")
    if n.size and n.min() < k:
        raise WorkloadError(f"pass@{k} needs at least {k} completions of every problem, but one has {n.min():.0f}")
    none = np.ones(n.shape)
    for j in range(k):
        none *= np.maximum(n - c - j, 0) / (n - j)
    return 1 - none


def estimate(attempts: Iterable[Attempt], ks: Sequence[int], confidence: float = 0.95) -> Mapping[int, Interval]:
    """pass@k over all problems, for each k; an `Interval` whose n is the number of problems.

    Bounds are None for a single problem, everything is None without any. They hold for one look at problems drawn like
    these; simulated coverage is in docs/sandbox.md.

    Raises:
        ConfigError: k below 1, confidence outside (0, 1).
        WorkloadError: a problem with fewer than k completions.
    """
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for attempt in attempts:
        counts[attempt.task_id][0] += 1
        counts[attempt.task_id][1] += attempt.passed
    n, c = np.array(list(counts.values()), dtype=np.float64).reshape(-1, 2).T
    return {k: _mean(pass_at_k(n, c, k), float(n.sum()), confidence) for k in ks}


def _mean(x: NDArray[np.float64], completions: float, confidence: float) -> Interval:
    """Mean of the problems' estimates `x`, each in [0, 1], with bounds."""
    if not x.size:
        return Interval(None, None, None, 0, confidence, null=None)
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, None, None, 1, confidence, null=None)
    variance = float(x.var(ddof=1))
    if mean in (0, 1):
        effective = float(x.size)
    else:  # equal problems say no more than all completions would if they were independent
        effective = min(x.size * mean * (1 - mean) / variance, completions) if variance else completions
    low, high = wilson(mean * effective, effective, confidence)
    return Interval(mean, float(low), float(high), x.size, confidence, null=None)
