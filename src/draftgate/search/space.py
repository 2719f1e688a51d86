"""The policies worth trying: a grid to start from, and neighbours of the good ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from draftgate.policy.length import Cut, Fixed, Length
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES

__all__ = ["TAUS", "Space", "describe", "label"]

TAUS = (0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.65, 0.8)
_ALPHAS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_DELTAS = (0.05, 0.1, 0.2, 0.3, 0.5)
_OFFSETS = (-0.2, -0.1, -0.05, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Space:
    """Rules x thresholds x offsets x draft length x cut.

    Attributes:
        most: longest draft that the trace can score.
        cuts: evidence cuts to try; matching tokens for lookup, probabilities for a draft model; none for a drafter that
            gives no evidence.
        greedy: whether the target decodes greedily; the lossless rule is then the same as exact match and left out.
        rules: the rules that the engine can apply; lossless ones are always tried.
    """

    most: int
    cuts: tuple[float, ...] = (2.0, 3.0, 4.0, 6.0, 8.0)
    greedy: bool = True
    rules: frozenset[str] = frozenset(RULES)

    def lengths(self) -> list[Length]:
        """Draft lengths: every k, and the longer ones with each cut."""
        fixed: list[Length] = [Fixed(k) for k in range(1, self.most + 1)]
        return fixed + [Cut(k, cut) for k in range(2, self.most + 1) for cut in self.cuts]

    def lossless(self) -> list[Policy]:
        """Every lossless policy of the space."""
        rule = "exact" if self.greedy else "lossless"
        return [Policy(f"{rule}-{label(length)}", rule, length=length) for length in self.lengths()]

    def grid(self) -> Iterator[Policy]:
        """All rules at coarse settings and every draft length."""
        yield from self.lossless()
        for length, (rule, tau, params) in product(self.lengths(), self._settings()):
            if rule in self.rules:
                policy = Policy("", rule, tau, params, length=length)
                yield replace(policy, name=describe(policy))

    def _settings(self) -> Iterator[tuple[str, float | None, dict[str, float]]]:
        for rule, tau in product(("threshold", "threshold-or-lossless"), TAUS):
            yield rule, tau, {}
        for tau, delta in product((0.05, 0.1, 0.3), (0.1, 0.3)):
            yield "typical", tau, {"delta": delta}
        for k, delta in product((2, 5), _DELTAS):
            yield "topk-margin", None, {"top_k": k, "delta": delta}
        for alpha in _ALPHAS:
            yield "cascade", None, {"alpha": alpha}
        if not self.greedy:  # with a greedy law SGLang's coin is exact match, which threshold-or-lossless covers
            for tau, acc in product((0.1, 0.3, 0.5), (0.5, 0.8, 1.0)):
                yield "sglang", tau, {"acc": acc}

    def neighbour(self, policy: Policy, rng: np.random.Generator) -> Policy:
        """One random small change: a knob, an offset of one group, the position schedule's slope, or the length."""
        rule = RULES[policy.rule]
        moves = [
            "length",
            *(["tau", "category", "position"] if rule.uses_tau else []),
            *(["param"] if policy.params else []),
        ]
        move = moves[rng.integers(len(moves))]
        if move == "length":
            lengths = self.lengths()
            changed = replace(policy, length=lengths[rng.integers(len(lengths))])
        elif move == "param":
            name = sorted(policy.params)[rng.integers(len(policy.params))]
            changed = replace(policy, params={**policy.params, name: self._nudged(rule.name, name, policy, rng)})
        elif move == "category":
            group = ("safe", "normal", "structural")[rng.integers(3)]
            changed = replace(policy, category={**policy.category, group: float(rng.choice(_OFFSETS))})
        elif move == "position" and policy.tau is not None:
            end = float(np.clip(policy.tau * rng.uniform(0.5, 2.0), 0.0, 1.0))
            changed = replace(policy, tau=None, position=((0, policy.tau), (100, round(end, 4))))
        elif policy.tau is not None:
            changed = replace(policy, tau=round(float(np.clip(policy.tau * rng.uniform(0.6, 1.6), 0.001, 1.0)), 4))
        else:
            changed = replace(policy, tau=policy.position[0][1], position=())
        return replace(changed, name=describe(changed))

    def _nudged(self, rule: str, name: str, policy: Policy, rng: np.random.Generator) -> float:
        knob = next(k for k in RULES[rule].knobs if k.name == name)
        value = float(np.clip(policy.params[name] * rng.uniform(0.7, 1.4), knob.low, knob.high))
        return float(round(value)) if name == "top_k" else round(value, 4)


def label(length: Length) -> str:
    """Short name of a draft length, for arm names."""
    if isinstance(length, Fixed):
        return f"k{length.k}"
    return f"k{length.k}-cut{length.least:g}" if isinstance(length, Cut) else f"goodput{length.k}"


def describe(policy: Policy) -> str:
    """Short name of a policy: rule, knobs, offsets and length."""
    knobs = [f"{policy.tau:g}"] if policy.tau is not None else []
    knobs += [f"{tau:g}@{at}" for at, tau in policy.position]
    knobs += [f"{value:g}" for value in policy.params.values()]
    knobs += [f"{name}{value:+g}" for name, value in sorted(policy.category.items())]
    return "-".join([policy.rule, *knobs, label(policy.length)])
