"""From blocks to figures and a recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftgate.engines.base import Engine, Request, near_tie
from draftgate.experiment.arms import BASELINE, Arm
from draftgate.experiment.judging import gated, quality_figures
from draftgate.experiment.live import Block, Run, arm_speedup
from draftgate.policy.length import Cut, Fixed, Goodput
from draftgate.quality.gate import Gate, Quality
from draftgate.stats.sequence import Interval
from draftgate.stats.verdict import Verdict, compare

__all__ = ["Decision", "arm_figures", "decide", "text_differences"]

_TIE = 0.02  # arms whose speedups are this close are told apart by simplicity, not by noise


def arm_figures(arm: Arm, blocks: Sequence[Block], alpha: float, arms: int, gate: Gate) -> dict[str, Any]:
    """The arm object of the JSON output; figures that were not measured are None."""
    runs = [run for block in blocks if (run := block.run(arm.name))]
    steps = sum(r.steps for r in runs)
    drafted = sum(r.drafted for r in runs)
    tokens = sum(r.step_tokens for r in runs)
    seconds = sum(r.decode_s for r in runs)
    return {
        "arm": arm.name,
        "origin": arm.origin,
        "rule": arm.policy.rule,
        "lossless": arm.policy.lossless,
        "speedup": _speedup_figure(arm, blocks, alpha, arms),
        "tokens_per_s": tokens / seconds if seconds else None,
        "acceptance_rate": sum(r.accepted for r in runs) / drafted if drafted else None,
        "acceptance_length": tokens / steps if steps else None,
        "coverage": sum(r.covered for r in runs) / steps if steps else None,
        "requests": len(runs),
        "predicted": arm.prediction,
    } | quality_figures(arm, blocks, gate)


def _speedup_figure(arm: Arm, blocks: Sequence[Block], alpha: float, arms: int) -> dict[str, Any]:
    if arm.name == BASELINE.name:
        n = len({block.prompt for block in blocks})
        return {"estimate": 1.0, "low": 1.0, "high": 1.0, "n": n, "how": "by definition"}
    i = arm_speedup(blocks, arm.name, alpha, arms)
    return {"estimate": i.estimate, "low": i.low, "high": i.high, "n": i.n, "how": "measured"}


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a workload.

    Attributes:
        verdict: "faster" when an arm is proven faster than none, "off" otherwise, "inconclusive" when too little ran.
        arm: the recommended arm, the baseline unless another is proven faster.
        why: one sentence with the figures behind it.
        best: the arm that the sentence is about, which a verdict of "off" does not recommend; None when nothing ran.
    """

    verdict: str
    arm: Arm
    why: str
    best: str | None


def decide(arms: Sequence[Arm], blocks: Sequence[Block], alpha: float, allow_lossy: bool, gate: Gate) -> Decision:
    """Recommend an arm: proven faster than none, of proven quality, the simplest of those that tie.

    A lossless arm has the target's quality unless the gate proves otherwise. A lossy one needs the gate's "ok", or,
    with `allow_lossy`, not to have failed.

    Every arm is compared with none at once, so alpha is divided over them (Bonferroni). None wins when nothing is
    proven.
    """
    named = {arm.name: arm for arm in arms}
    eligible = [a.name for a in arms if a.policy.drafts and _passes(a, blocks, allow_lossy, gate)]
    found = {name: arm_speedup(blocks, name, alpha, len(arms) - 1) for name in eligible}
    proven = {name: _estimate(i) for name, i in found.items() if compare(i) is Verdict.BETTER}
    if proven:
        close = [name for name, estimate in proven.items() if estimate >= max(proven.values()) * (1 - _TIE)]
        name = min(close, key=lambda name: (*_complexity(named[name]), -proven[name]))
        return Decision("faster", named[name], f"{name} is {_told(found[name])}", name)
    none = named[BASELINE.name]
    if all(i.low is None for i in found.values()):
        n = max((i.n for i in found.values()), default=0)
        why = f"only {n} prompts were compared, too few for an interval: raise --budget, or add prompts"
        return Decision("inconclusive", none, why, None)
    best = max(found, key=lambda name: _estimate(found[name]))
    why = f"nothing is proven faster than no speculation; the best was {best} at {_told(found[best])}"
    return Decision("off", none, why, best)


def _passes(arm: Arm, blocks: Sequence[Block], allow_lossy: bool, gate: Gate) -> bool:
    result = gated(arm, blocks, gate)
    if result is None or result.verdict is Quality.INCONCLUSIVE:
        return allow_lossy or arm.policy.lossless
    return result.verdict is Quality.OK


def _complexity(arm: Arm) -> tuple[bool, bool, int]:
    """Sorts arms by what they ask of a user: lossless first, then the engine as it is, then the plainest length."""
    kinds = (Fixed, Cut, Goodput)
    return not arm.policy.lossless, arm.origin != "engine default", kinds.index(type(arm.policy.length))


def _estimate(interval: Interval) -> float:
    return 0.0 if interval.estimate is None else interval.estimate


def _told(i: Interval) -> str:
    bounds = "no interval yet" if i.low is None or i.high is None else f"[{i.low:.2f}, {i.high:.2f}]"
    return f"{_estimate(i):.2f}x {bounds} over {i.n} prompts"


def _first_difference(a: Run, b: Run) -> int | None:
    if a.tokens == b.tokens:
        return None
    return next(
        (i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y),
        min(len(a.tokens), len(b.tokens)),
    )


def text_differences(
    engine: Engine, requests: Sequence[Request], arms: Sequence[Arm], blocks: Sequence[Block]
) -> list[dict[str, Any]]:
    """Greedy lossless outputs that differ from the baseline's, each with the logit gap where it first differs.

    A gap that the engine's own rounding can close (`engines.base.near_tie`) is a tie; anything else is an error of the
    engine or of draftgate, and is listed as such.
    """
    by_id = {r.id: r for r in requests}
    lossless = [arm for arm in arms if arm.policy.lossless]
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for block in blocks:
        none = block.run(BASELINE.name)
        for arm in lossless:
            run = block.run(arm.name)
            if none is None or run is None or (arm.name, block.prompt) in first:
                continue
            at = _first_difference(none, run)
            if at is not None:
                first[arm.name, block.prompt] = _difference(engine, by_id[block.prompt], arm, none, run, at)
    return list(first.values())


def _difference(engine: Engine, request: Request, arm: Arm, none: Run, run: Run, at: int) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm.name, "prompt": request.id, "offset": at}
    if at >= min(len(none.tokens), len(run.tokens)):  # one output only stops earlier, which no rounding explains
        return row | {"gap": None, "noise": None, "tie": False}
    gap, noise = engine.logit_gap(request.tokens, none.tokens[:at], none.tokens[at], run.tokens[at])
    return row | {"gap": abs(gap), "noise": noise, "tie": near_tie(gap, noise)}
