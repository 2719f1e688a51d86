"""When a drafted token is accepted: one pure function a rule, on arrays of any shape.

A rule is two decisions. `accept` gives the probability that a drafted token is kept, and `residual` says what the
replacement is drawn from after a rejection. Together they fix the output law of one verified position,

    out(y) = q(y) a(y) + (1 - sum_x q(x) a(x)) r(y | x),

which `output_law` computes by enumeration; a rule is lossless exactly when out = target law for every target and draft.
Target probabilities are those after temperature, top-k, top-p and min-p. Under greedy decoding the law is one-hot on
the argmax, while thresholds still look at the softmax at temperature 1 (that is what an engine can compare with tau).
So with tau >= 0.5 a greedy 'threshold' keeps no token that 'exact' would not keep, unless two tokens tie at 0.5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from draftgate.errors import ConfigError, nearest

__all__ = [
    "RULES",
    "Array",
    "Knob",
    "Residual",
    "Rule",
    "Scores",
    "output_law",
    "replacement",
    "rule_named",
    "truncated",
]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Scores:
    """What one verification says about drafted tokens x. Every field has the same shape.

    Attributes:
        p: target probability of x.
        law: probability of x under the law the target samples from: p, or 1 for the argmax and 0 otherwise when greedy.
        q: draft probability of x under the draft's own sampling; 1 for a deterministic draft, 0 only for a token that
            cannot be drafted.
        top: probability of the target's most probable token.
        rank: how many tokens the target finds more probable than x.
        entropy: entropy of the target distribution in nats.
    """

    p: Array
    law: Array
    q: Array
    top: Array
    rank: Array
    entropy: Array


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that can be tuned, with the side it acts on and the sign of its effect on acceptance.

    Attributes:
        effect: +1 when raising the knob raises acceptance, -1 when it lowers it.
        low: least value allowed.
        high: greatest value allowed.
        default: value when none is given; None when one must be.
    """

    name: str
    side: Literal["target", "draft", "length", "gate"]
    effect: Literal[-1, 1]
    low: float
    high: float
    default: float | None = None


class Residual(StrEnum):
    """What a rejected position is replaced from."""

    LAW = "law"  # the target law itself: right after a deterministic rejection
    LAW_WITHOUT_X = "law without x"  # the law given that it is not x: right when x was kept with probability law(x)
    LAW_MINUS_Q = "law minus q"  # (law - q)+: right when x was kept with probability min(1, law/q)


Accept = Callable[[Scores, Array, Mapping[str, float]], Array]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named acceptance rule.

    Attributes:
        accept: (scores, tau, params) -> acceptance probability in [0, 1], shaped and typed as the scores; tau is an
            array that broadcasts to them.
        residual: what a rejected position is replaced from.
        needs: fields of `Scores` beyond law and q that the rule reads, so that engines compute no others.
        lossless: the output law equals the target law, whatever the draft.
        truncates: keeps only tokens of a set that the target alone decides, so that drafts are as if drawn from its
            truncated law.
        knobs: what can be tuned; `accept` reads all but tau from params.
        source: where the rule comes from.
    """

    name: str
    accept: Accept
    residual: Residual
    lossless: bool
    needs: frozenset[str]
    knobs: tuple[Knob, ...]
    source: str
    truncates: bool = False

    @property
    def uses_tau(self) -> bool:
        """Whether tau, and so category, language and position offsets, do anything."""
        return any(knob.name == "tau" for knob in self.knobs)


def _or(hit: Array, otherwise: Array) -> Array:
    """1 where `hit`, `otherwise` elsewhere."""
    return np.maximum(hit, otherwise)


def _never(s: Scores) -> Array:
    return np.zeros_like(s.law)


def _exact(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return s.law


def _lossless(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    # The ratio over max(law, q) is min(1, law / q); the tiny floor serves tokens that neither side ever gives.
    return s.law / np.maximum(np.maximum(s.law, s.q), _TINY)


def _threshold(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or(s.p >= tau, _never(s))


def _threshold_or_lossless(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or(s.p >= tau, _lossless(s, tau, params))


def _sglang(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or(s.p >= tau, (s.law / params["acc"]).clip(0.0, 1.0))


def _typical(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or(s.p >= np.minimum(tau, params["delta"] * np.exp(-s.entropy)), _never(s))


def _topk_margin(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or((s.rank < params["top_k"]) & (s.p >= s.top - params["delta"]), _never(s))


def _cascade(s: Scores, tau: Array, params: Mapping[str, float]) -> Array:
    return _or(s.p >= (1.0 - params["alpha"]) * s.top, s.law)


_TINY = 1e-37

_TAU = Knob("tau", "target", -1, 0.0, 1.0)

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "exact",
            _exact,
            Residual.LAW_WITHOUT_X,
            True,
            frozenset(),
            (),
            "token equality with the target's own choice (greedy: the argmax; else its sample)",
        ),
        Rule(
            "lossless",
            _lossless,
            Residual.LAW_MINUS_Q,
            True,
            frozenset(),
            (),
            "Leviathan et al. 2023 and Chen et al. 2023: min(1, p/q)",
        ),
        Rule(
            "threshold",
            _threshold,
            Residual.LAW,
            False,
            frozenset({"p"}),
            (_TAU,),
            "accept iff p >= tau, replacing the lossless test; a rejection is resampled from p, not from (p - q)+",
        ),
        Rule(
            "threshold-or-lossless",
            _threshold_or_lossless,
            Residual.LAW_MINUS_Q,
            False,
            frozenset({"p"}),
            (_TAU,),
            "accept iff p >= tau or the lossless test passes; one-hot drafts: the output law of 'threshold'",
        ),
        Rule(
            "sglang",
            _sglang,
            Residual.LAW_WITHOUT_X,
            False,
            frozenset({"p"}),
            (_TAU, Knob("acc", "target", -1, 1e-3, 1.0, 1.0)),
            "SGLang's target-only chain: coin < p/threshold_acc or p >= threshold_single (here tau); lossless at 1/1",
        ),
        Rule(
            "typical",
            _typical,
            Residual.LAW,
            False,
            frozenset({"p", "entropy"}),
            (_TAU, Knob("delta", "target", -1, 0.0, 1.0, 0.3)),
            "Medusa (Cai et al. 2024): p >= min(eps, delta exp(-H)); eps is tau",
            truncates=True,
        ),
        Rule(
            "topk-margin",
            _topk_margin,
            Residual.LAW,
            False,
            frozenset({"p", "top", "rank"}),
            (Knob("top_k", "target", 1, 1, 100, 10), Knob("delta", "target", 1, 0.0, 1.0, 0.1)),
            "TensorRT-LLM relaxed acceptance: among the target's top k and p >= p_top - delta (probabilities)",
            truncates=True,
        ),
        Rule(
            "cascade",
            _cascade,
            Residual.LAW_WITHOUT_X,
            False,
            frozenset({"p", "top"}),
            (Knob("alpha", "target", 1, 0.0, 1.0, 0.1),),
            "speculative cascade, token-specific deferral (Narasimhan et al. 2024): keep iff p >= (1 - alpha) p_top",
        ),
    )
}


def rule_named(name: str) -> Rule:
    """The rule of that name.

    Raises:
        ConfigError: no such rule.
    """
    if name not in RULES:
        raise ConfigError(f"unknown rule '{name}'; {nearest(name, RULES)}")
    return RULES[name]


def replacement(kind: Residual, law: Array, q: Array, x: int) -> Array:
    """Distribution [V] that replaces a rejected token x.

    Args:
        kind: the rule's residual.
        law: target law [V].
        q: draft distribution [V]; one-hot on x for a deterministic draft.
        x: the rejected token.
    """
    if kind is Residual.LAW:
        return law
    if kind is Residual.LAW_MINUS_Q:
        rest = (law - q).clip(0.0)
    else:
        rest = law + 0.0
        rest[x] = 0.0
    mass = rest.sum()
    # No mass means that a rejection had probability zero; rounding can still lead here, and the law is then right.
    return rest / mass if mass > 0 else law


def truncated(rule: Rule, law: Array, tau: Array, params: Mapping[str, float]) -> Array:
    """The target law [V] cut to the tokens that a truncating rule keeps, renormalised; its argmax if it keeps none.

    What sampling without speculation looks like under the same cut: for 'typical' this is eta sampling (Hewitt et al.
    2022).
    """
    ascending = np.sort(law)
    scores = Scores(
        p=law,
        law=law,
        q=np.ones_like(law),
        top=ascending[-1:],
        rank=len(law) - ascending.searchsorted(law, "right"),
        entropy=-np.sum(law * np.log(law, out=np.zeros_like(law), where=law > 0), keepdims=True),
    )
    kept: Array = law * rule.accept(scores, tau, params)
    mass = kept.sum()
    only_top: Array = np.eye(1, len(law), int(law.argmax()))[0]
    return kept / mass if mass > 0 else only_top


def output_law(rule: Rule, scores: Scores, q: Array, law: Array, tau: Array, params: Mapping[str, float]) -> Array:
    """Exact output distribution [V] of one position, by enumeration over the drafted token.

    Args:
        rule: the acceptance rule.
        scores: scores of every token of the vocabulary, arrays [V].
        q: the law drafts are drawn from [V].
        law: the target law [V].
        tau: threshold of every token [V], or one number.
        params: the rule's other knobs.
    """
    keep = rule.accept(scores, tau, params)
    out = q * keep
    for x in range(len(q)):
        if q[x] > 0 and keep[x] < 1:
            out = out + q[x] * (1 - keep[x]) * replacement(rule.residual, law, q, x)
    return out
