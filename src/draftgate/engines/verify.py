"""One verification: which drafted tokens are kept, and what follows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import draw, one_hot, probabilities
from draftgate.errors import EngineError
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Rule, Scores, replacement, truncated
from draftgate.trace.records import Drafted

__all__ = ["Proposal", "Verified", "verify"]

_ALL = slice(None)
_EMPTY = np.zeros(0)
_EVERYTHING = frozenset({"p", "top", "rank", "entropy"})
_FLOOR = np.float32(-200.0)  # exp(-200) is 0 in float32; keeps 0 x -inf out of entropies
_OPEN = (np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).epsneg)  # ends of (0, 1): float32 can round to 0 or 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft of k tokens.

    Attributes:
        tokens: drafted ids [k].
        evidence: what the drafter knew of each [k].
        category: token categories [k].
        q: draft distributions [k, V], None when the draft is deterministic.
    """

    tokens: NDArray[np.int32]
    evidence: NDArray[np.float64]
    category: NDArray[np.uint8]
    q: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, k: int) -> "Proposal":
        """The same draft, cut to its first k tokens."""
        if k == len(self):
            return self
        return Proposal(self.tokens[:k], self.evidence[:k], self.category[:k], None if self.q is None else self.q[:k])


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome: `accepted` drafted tokens are kept, then `token` (the bonus token or the replacement) follows."""

    accepted: int
    token: int
    drafted: Drafted | None


def verify(
    logits: NDArray[np.float32],
    proposal: Proposal,
    policy: Policy,
    sampling: Sampling,
    rng: np.random.Generator,
    offset: int,
    language: str | None,
    record: bool,
) -> Verified:
    """Apply a policy's rule to one verified draft.

    Args:
        logits: target logits [k + 1, V]: row i scores drafted position i, the last row the bonus token.
        proposal: the draft.
        rng: the request's stream; k + 1 numbers are drawn from it unless decoding is greedy.
        offset: output offset of drafted position 0.
        record: keep the scores of every drafted position; the outcome is the same without.

    Raises:
        EngineError: logits are not finite.
    """
    k, rule = len(proposal), RULES[policy.rule]
    choice = logits.argmax(axis=1)
    best = logits[np.arange(k + 1), choice]  # NaN wherever a row holds one: argmax stops at the first
    if not np.isfinite(best).all():
        raise EngineError(f"the engine returned logits that are not finite at output offset {offset}")
    taus = policy.taus(proposal.category, offset + np.arange(k), language) if rule.uses_tau else np.zeros(k, np.float32)
    test = _Test(proposal, rule, taus, policy.params, _EVERYTHING if record else rule.needs, record)
    if sampling.greedy:
        return _greedy(logits, choice, best, test)
    cut = partial(_cut, policy, offset, language) if policy.truncate else None
    return _sampled(logits, sampling, rng.random(k + 1), test, cut)


@dataclass(frozen=True, slots=True)
class _Test:
    """The acceptance test of one draft: `taus` [k] and the scores that it, or the record, needs."""

    proposal: Proposal
    rule: Rule
    taus: NDArray[np.float32]
    params: Mapping[str, float]
    needs: frozenset[str]
    record: bool

    def passed(self, scores: Scores, uniform: NDArray[np.float64], part: slice = _ALL) -> int:
        """How many leading tokens of a part of the draft are kept."""
        kept = uniform < self.rule.accept(scores, self.taus[part], self.params)
        return len(kept) if kept.all() else int(kept.argmin())


def _draft_probability(proposal: Proposal, part: slice = _ALL) -> NDArray[np.float64]:
    tokens = proposal.tokens[part]
    return np.ones(len(tokens)) if proposal.q is None else proposal.q[part][np.arange(len(tokens)), tokens]


def _greedy(logits: NDArray[np.float32], choice: NDArray[np.intp], best: NDArray[np.float32], test: _Test) -> Verified:
    k = len(test.proposal)
    uniform = np.full(k, 0.5)  # acceptance is 0 or 1: any number in (0, 1) gives the same
    scores = _greedy_scores(logits[:k], choice[:k], best[:k], test)
    accepted = test.passed(scores, uniform)
    return Verified(accepted, int(choice[accepted]), _record(test.proposal, scores, uniform) if test.record else None)


def _greedy_scores(
    logits: NDArray[np.float32], choice: NDArray[np.intp], best: NDArray[np.float32], test: _Test
) -> Scores:
    """Scores under greedy decoding; the softmax at temperature 1 only where a rule or the trace reads it."""
    tokens, q = test.proposal.tokens, _draft_probability(test.proposal)
    law = (choice == tokens).astype(np.float64)
    if not test.needs:
        return Scores(_EMPTY, law, q, _EMPTY, _EMPTY, _EMPTY)
    gap = logits[np.arange(len(tokens)), tokens].astype(np.float64) - best
    total, entropy, rank = np.empty((3, len(tokens)))
    for i, row in enumerate(logits):  # row by row: a row's temporaries stay in cache, those of the whole block do not
        shifted = row - best[i]
        weight = np.exp(shifted)
        total[i] = weight.sum()
        if "entropy" in test.needs:  # H = log Z - E[shifted logit]
            entropy[i] = np.log(total[i]) - weight.dot(np.maximum(shifted, _FLOOR)) / total[i]
        if "rank" in test.needs:
            rank[i] = np.count_nonzero(row > row[tokens[i]])
    return Scores(np.exp(gap) / total, law, q, 1.0 / total, rank, entropy)


def _cut(policy: Policy, offset: int, language: str | None, position: int, law: NDArray[np.float64]) -> Any:
    """The law at a position of the draft, cut to what the policy's rule keeps there."""
    tau = policy.taus(np.zeros(1, np.uint8), np.array([offset + position]), language)
    return truncated(RULES[policy.rule], law, tau, policy.params)


def _sampled(
    logits: NDArray[np.float32],
    sampling: Sampling,
    uniform: NDArray[np.float64],
    test: _Test,
    cut: Callable[[int, NDArray[np.float64]], NDArray[np.float64]] | None,
) -> Verified:
    """Above temperature 0: all rows at once for the record, else row by row up to the first rejection."""
    k, record = len(test.proposal), None
    law = cache(lambda i: probabilities(logits[i], sampling))
    accepted = 0
    for part in (slice(0, k),) if test.record else (slice(i, i + 1) for i in range(k)):
        laws = np.array([law(i) for i in range(k)[part]]).reshape(-1, logits.shape[1])
        scores = _sampled_scores(laws, test.proposal, part, test.needs)
        passed = test.passed(scores, uniform[:k][part], part)
        record = _record(test.proposal, scores, uniform[:k]) if test.record else None
        accepted += passed
        if passed < len(laws):
            break
    final = law(accepted) if cut is None else cut(accepted, law(accepted))
    return Verified(accepted, _following(final, accepted, uniform[k], test), record)


def _following(law: NDArray[np.float64], accepted: int, uniform: float, test: _Test) -> int:
    """The bonus token when the whole draft was kept, else the replacement of the first rejected token."""
    proposal = test.proposal
    if accepted == len(proposal):
        return draw(law, uniform)
    x = int(proposal.tokens[accepted])
    q = one_hot(x, len(law)) if proposal.q is None else proposal.q[accepted]
    return draw(replacement(test.rule.residual, law, q, x), uniform)


def _sampled_scores(laws: NDArray[np.float64], proposal: Proposal, part: slice, needs: frozenset[str]) -> Scores:
    tokens = proposal.tokens[part]
    p = laws[np.arange(len(tokens)), tokens]
    return Scores(
        p=p,
        law=p,
        q=_draft_probability(proposal, part),
        top=laws.max(axis=1) if "top" in needs else _EMPTY,
        rank=np.count_nonzero(laws > p[:, None], axis=1) if "rank" in needs else _EMPTY,
        entropy=_entropy(laws) if "entropy" in needs else _EMPTY,
    )


def _entropy(laws: NDArray[np.float64]) -> NDArray[np.float64]:
    logs = np.log(laws, out=np.zeros_like(laws), where=laws > 0)
    entropy: NDArray[np.float64] = -np.einsum("kv,kv->k", laws, logs)
    return entropy


def _record(proposal: Proposal, scores: Scores, uniform: NDArray[np.float64]) -> Drafted:
    with np.errstate(divide="ignore"):  # a token outside top-k or top-p has log p = -inf, and that is the truth
        logp, top = np.log(scores.p), np.log(scores.top)
    return Drafted(
        tokens=proposal.tokens,
        evidence=proposal.evidence.astype(np.float32),
        category=proposal.category,
        logp=logp.astype(np.float32),
        logq=np.log(scores.q).astype(np.float32),
        top1_margin=(top - logp).astype(np.float32),
        rank=scores.rank.astype(np.int32),
        entropy=scores.entropy.astype(np.float32),
        uniform=uniform.astype(np.float32).clip(*_OPEN),
    )
