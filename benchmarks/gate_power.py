"""Measure the quality gate's errors and power, and print the tables of docs/statistics.md, "Quality".

python benchmarks/gate_power.py [--runs 2000]        (about two minutes)
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgate.quality.evidence import Evidence
from draftgate.quality.gate import Gate
from draftgate.stats import needed
from draftgate.stats.betting import Tally

Bits = NDArray[np.bool_]
Row = tuple[object, ...]

PROMPTS = (24, 50, 100, 200, 400, 1000)
BALANCED = (0.0, 0.02, 0.05, 0.10)
LOSS = (0.0, 0.02, 0.05, 0.10, 0.20)
RATES = (1.0, 0.99, 0.98, 0.97)
_CHUNK = 100  # runs at once: bounds the memory of runs x looks x accounts


@dataclass(frozen=True)
class Truth:
    """What a simulated pair is drawn from.

    Attributes:
        valid: the baseline's valid rate; the arm's is lower by `loss`.
        balanced: share of pairs that differ on top of the loss, half of them won and half lost.
        cut: share of outputs that are cut before they could be judged, in both arms independently.
    """

    valid: float
    balanced: float = 0.0
    loss: float = 0.0
    cut: float = 0.0

    def draw(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Bits, Bits]:
        """Valid outputs (baseline, arm)[shape]."""
        u = rng.random(shape)
        baseline = u < self.valid
        lost, won = u < self.balanced / 2 + self.loss, u > 1 - self.balanced / 2
        return baseline, (baseline & ~lost) | won


def after_every_prompt(rng: np.random.Generator, truth: Truth, shape: tuple[int, int]) -> Evidence:
    """The tallies of runs[shape[0]] after each of shape[1] prompts."""
    baseline, arm = truth.draw(rng, shape)
    judged_baseline, judged_arm = rng.random(shape) >= truth.cut, rng.random(shape) >= truth.cut
    good_baseline, good_arm = baseline & judged_baseline, arm & judged_arm
    counts = judged_baseline | judged_arm
    won, lost = good_arm & ~good_baseline, good_baseline & ~good_arm
    return Evidence(
        _running([-1.0, 0.0, 1.0], [lost, counts & ~won & ~lost, won], low=-1.0),
        _running([0.0, 1.0], [judged_arm & ~arm, good_arm]),
        _running([0.0, 1.0], [judged_baseline & ~baseline, good_baseline]),
    )


def _running(values: list[float], seen: list[Bits], low: float = 0.0) -> Tally:
    return Tally(np.array(values), np.stack(seen, axis=-1).cumsum(axis=1, dtype=np.float64), low)


def looked_at(gate: Gate, truth: Truth, runs: int, prompts: int, lossless: bool = False) -> tuple[Bits, Bits]:
    """(ok, failed)[runs, prompts]: the verdict after every prompt."""
    rng = np.random.default_rng(0)
    parts = [
        gate.verdicts(after_every_prompt(rng, truth, (min(_CHUNK, runs - done), prompts)), lossless)
        for done in range(0, runs, _CHUNK)
    ]
    ok, failed = (np.concatenate(flags) for flags in zip(*parts, strict=True))
    return ok, failed


def errors(runs: int) -> Iterator[Row]:
    """Share of runs with a wrong verdict at any of 400 looks."""
    yield "no floor, margin 5 points", "equal, lossy: failed", "equal, lossless: failed", "5 points worse: ok"
    gate = Gate(floor=None)
    for name, valid, balanced, cut in (
        ("95% valid, no pair differs by chance", 0.95, 0.0, 0.0),
        ("95% valid, 2% differ", 0.95, 0.02, 0.0),
        ("95% valid, 5% differ", 0.95, 0.05, 0.0),
        ("95% valid, 10% differ", 0.95, 0.10, 0.0),
        ("60% valid, sampled independently (48% differ)", 0.60, 0.48, 0.0),
        ("95% valid, 5% differ, a fifth of the outputs cut", 0.95, 0.05, 0.2),
    ):
        equal, worse = Truth(valid, balanced, cut=cut), Truth(valid, balanced, 0.05 * (1 + cut), cut)
        _, failed = looked_at(gate, equal, runs, 400)
        _, failed_lossless = looked_at(gate, equal, runs, 400, lossless=True)
        ok, _ = looked_at(gate, worse, runs, 400)
        yield name, *(share(flags.any(axis=1)) for flags in (failed, failed_lossless, ok))


def floor_errors(runs: int) -> Iterator[Row]:
    """Share of runs with a wrong verdict at any of 1,000 looks, where the arm is exactly at the floor."""
    yield "floor", "equal arms at the floor: failed", "only the arm at the floor, 1 point lost: ok"
    for floor in (0.95, 0.98):
        gate = Gate(floor)
        _, failed = looked_at(gate, Truth(floor, 0.02), runs, 1000)
        ok, _ = looked_at(gate, Truth(floor + 0.01, 0.01, 0.01), runs, 1000)
        yield f"{floor:.0%}", share(failed.any(axis=1)), share(ok.any(axis=1))


def repeats(runs: int) -> Iterator[Row]:
    """The same for prompts that are run four times: prompts differ, repeats of one are averaged."""
    yield "prompts, four rounds each", "equal arms: failed", "worse by 5 points: ok"
    for prompts in (24, 96):
        hits = []
        for loss in (0.0, 0.05):
            rng = np.random.default_rng(prompts)
            ok, failed = (np.zeros(runs, dtype=np.bool_) for _ in range(2))
            for difference in _rounds(rng, runs, prompts, loss):
                empty = Tally(np.array([1.0]), np.zeros((runs, 1)))
                now_ok, now_failed = Gate(floor=None).verdicts(Evidence(difference, empty, empty), lossless=False)
                ok, failed = ok | now_ok, failed | now_failed
            hits.append(ok if loss else failed)
        yield prompts, share(hits[0]), share(hits[1])


def _rounds(rng: np.random.Generator, runs: int, prompts: int, loss: float) -> Iterator[Tally]:
    """Averaged differences after every block; valid rates of prompts spread from 0.4 to 1 in the baseline."""
    rate = 0.4 + 0.6 * rng.beta(4, 1, (runs, prompts))
    twelfths, values = np.zeros((runs, prompts)), np.arange(-12, 13) / 12
    total = np.zeros((runs, prompts))
    for r in range(1, 5):
        for i in range(prompts):
            total[:, i] += (rng.random(runs) < rate[:, i] - loss).astype(int) - (rng.random(runs) < rate[:, i])
            twelfths[:, i] = 12 * total[:, i] / r
            seen = twelfths[:, : prompts if r > 1 else i + 1]
            place = (seen.round() + 12).astype(int) + 25 * np.arange(runs)[:, None]
            counts = np.bincount(place.ravel(), minlength=25 * runs).reshape(runs, 25)
            yield Tally(values, counts.astype(np.float64), low=-1.0)


def power(runs: int) -> Iterator[Row]:
    """Share of runs that are ok / failed when the run ends with n prompts or at the first verdict before."""
    yield "differ by chance", "true loss", *(f"n = {n}" for n in PROMPTS)
    for balanced in BALANCED:
        for loss in LOSS:
            ok, failed = first_verdict(*looked_at(Gate(floor=None), Truth(0.95, balanced, loss), runs, max(PROMPTS)))
            yield (
                f"{balanced:.0%}",
                points(loss),
                *(f"{ok[:, n - 1].mean():.2f} / {failed[:, n - 1].mean():.2f}" for n in PROMPTS),
            )


def floor_prompts(runs: int) -> Iterator[Row]:
    """Prompts until a floor is proven; beside it, one look of Wilson's interval."""
    yield "floor", "truly valid", "median", "90% of runs by", "one look, if the rate is met exactly"
    limit = np.log(2 / 0.05)
    for floor in (0.95, 0.98):
        for rate in RATES[: 4 if floor == 0.95 else 2]:
            rng = np.random.default_rng(0)
            parts = [after_every_prompt(rng, Truth(rate), (_CHUNK, 4000)).arm for _ in range(0, runs, _CHUNK)]
            proven = np.concatenate([tally.log_e_above(floor) >= limit for tally in parts])
            first = np.where(proven.any(axis=1), proven.argmax(axis=1) + 1, np.inf)
            middle, late = np.quantile(first, [0.5, 0.9], method="higher")
            yield f"{floor:.0%}", f"{rate:.0%}", f"{middle:.0f}", f"{late:.0f}", needed(rate, floor)


def first_verdict(ok: Bits, failed: Bits) -> tuple[Bits, Bits]:
    """(ok, failed)[runs, n] of a run that stops at its first verdict."""
    ever_ok, ever_failed = (np.logical_or.accumulate(flags, axis=1) for flags in (ok, failed))
    first = np.where(ok.any(axis=1), ok.argmax(axis=1), ok.shape[1])
    first_failed = np.where(failed.any(axis=1), failed.argmax(axis=1), ok.shape[1])
    ok_first = (first < first_failed)[:, None]
    return ever_ok & ok_first, ever_failed & ~ok_first


def points(loss: float) -> str:
    return f"{100 * loss:.0f} points"


def share(hits: ArrayLike) -> str:
    return f"{np.asarray(hits).mean():.3f}"


def print_table(rows: Iterable[Row]) -> None:
    for index, row in enumerate(rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
        if index == 0:
            print("|---" * len(row) + "|")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000, help="simulated comparisons per row (default %(default)s)")
    runs = parser.parse_args().runs
    for table in (errors, floor_errors, repeats, power, floor_prompts):
        print_table(table(runs))


if __name__ == "__main__":
    main()
