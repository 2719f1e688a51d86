"""Measure coverage and power of draftgate.stats and print the tables of docs/statistics.md.

python benchmarks/stats_power.py [--runs 20000]        (about half a minute)
"""

import argparse
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.errors import require
from draftgate.stats import ratio_interval, running, wilson

Array = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], Array]

PEEKS = (24, 48, 96, 200)
EFFECTS = (0.1, 0.2, 0.3, 0.5, 0.8, 1.2)
REQUESTS = (10, 30, 100, 300)


def hiccups(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Log seconds of one arm: Gaussian noise, and 5% of the prompts are slower by 5 standard deviations on average."""
    return rng.normal(size=shape) + (rng.random(shape) < 0.05) * rng.exponential(5, shape)


def contaminated(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape) * np.where(rng.random(shape) < 0.05, 10, 1)


# Noise of the per-prompt log ratio (log seconds of the baseline minus those of the arm), each with mean 0. Where it is
# skewed, the arm has the rare large losses, which is the direction that can make it look better than it is.
NOISE: dict[str, Noise] = {
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
    "t, 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, shape),
    "t, 3 degrees of freedom": lambda rng, shape: rng.standard_t(3, shape),
    "5% with 10 times the deviation": contaminated,
    "hiccups in both arms": lambda rng, shape: hiccups(rng, shape) - hiccups(rng, shape),
    "hiccups in one arm (skew -3.8)": lambda rng, shape: rng.normal(size=shape) + 0.25 - hiccups(rng, shape),
    "lognormal, sigma 0.5 (skew -1.8)": lambda rng, shape: np.exp(0.125) - rng.lognormal(0, 0.5, shape),
    "lognormal, sigma 1 (skew -6.2)": lambda rng, shape: np.exp(0.5) - rng.lognormal(0, 1, shape),
}


def false_alarms(runs: int) -> Iterable[tuple[object, ...]]:
    """Share of A/A comparisons called BETTER or WORSE at some peek, by noise; and by peeking at a t interval."""
    yield "noise", "n <= 96", "n <= 200", "of these BETTER", "n <= 200, first look at 24", "t interval, n <= 96"
    for name, draw in NOISE.items():
        x = draw(np.random.default_rng(0), (runs, 200))
        low, high = running(x)
        late_low, late_high = running(x, first_look=24)
        yield (
            name,
            share((low[:, 95] > 0) | (high[:, 95] < 0)),
            share((low[:, -1] > 0) | (high[:, -1] < 0)),
            share(low[:, -1] > 0),
            share((late_low[:, -1] > 0) | (late_high[:, -1] < 0)),
            share(t_excludes_zero(x[:, :96]).any(axis=1)),
        )


def t_excludes_zero(x: Array) -> NDArray[np.bool_]:
    """Whether the ordinary two-sided 95% t interval excludes 0, after each prefix of 2 or more."""
    n = np.arange(2, x.shape[-1] + 1)
    mean = x.cumsum(axis=-1)[:, 1:] / n
    variance = (np.square(x).cumsum(axis=-1)[:, 1:] - n * mean**2) / (n - 1)
    critical = require("scipy.stats", "tune").t.ppf(0.975, n - 1)
    excludes: NDArray[np.bool_] = np.abs(mean) > critical * np.sqrt(variance / n)
    return excludes


def power(runs: int) -> Iterable[tuple[object, ...]]:
    """Share of runs that say BETTER at some peek up to n, by true effect in standard deviations (Gaussian noise)."""
    yield "effect / deviation", *(f"n <= {n}" for n in PEEKS), "one look of a t interval at n = 96"
    noise = np.random.default_rng(1).normal(size=(runs, max(PEEKS)))
    for effect in EFFECTS:
        low, _ = running(noise + effect)
        once = t_excludes_zero(noise[:, :96] + effect)[:, -1]
        yield effect, *(share(low[:, n - 1] > 0) for n in PEEKS), share(once)


def bootstrap_coverage(runs: int) -> Iterable[tuple[object, ...]]:
    """Share of 95% bootstrap intervals that hold the true acceptance rate, by number of requests."""
    yield "requests", "coverage", "interval too high", "interval too low"
    for requests in REQUESTS:
        rng = np.random.default_rng(requests)
        below = above = 0
        for seed in range(runs):
            rate = rng.beta(3, 2, requests)  # requests differ: mean 0.6, deviation 0.2
            drafted = rng.integers(20, 400, requests)
            found = ratio_interval(rng.binomial(drafted, rate), drafted, seed=seed)
            assert found.low is not None
            assert found.high is not None
            below += found.low > 0.6
            above += found.high < 0.6
        yield requests, f"{1 - (below + above) / runs:.3f}", f"{below / runs:.3f}", f"{above / runs:.3f}"


def wilson_coverage(runs: int) -> Iterable[tuple[object, ...]]:
    """Share of 95% Wilson intervals that hold the true share, and that lie above it (a promise made too early)."""
    yield "true share, n", "coverage", "lower bound too high"
    rng = np.random.default_rng(2)
    for p, n in ((0.6, 100), (0.95, 203), (0.98, 189), (0.98, 753)):
        low, high = wilson(rng.binomial(n, p, runs), n)
        yield f"{p}, {n}", share((low <= p) & (p <= high)), share(low > p)


def share(hits: ArrayLike) -> str:
    return f"{np.asarray(hits).mean():.3f}"


def print_table(rows: Iterable[tuple[object, ...]]) -> None:
    for index, row in enumerate(rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
        if index == 0:
            print("|---" * len(row) + "|")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000, help="simulated comparisons per row (default %(default)s)")
    runs = parser.parse_args().runs
    print_table(false_alarms(runs))
    print_table(power(runs))
    print_table(wilson_coverage(10 * runs))
    print_table(bootstrap_coverage(max(1, runs // 10)))


if __name__ == "__main__":
    main()
