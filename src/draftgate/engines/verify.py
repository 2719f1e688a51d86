"""One verification: which drafted tokens are kept, and what follows them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import draw, probabilities
from draftgate.errors import EngineError
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Scores, replacement
from draftgate.trace.records import Drafted

__all__ = ["Proposal", "Verified", "verify"]

_SCORES = ("p", "top", "rank", "entropy")


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
        rng: the request's stream; k + 1 numbers are drawn from it unless everything is greedy.
        offset: output offset of drafted position 0.
        record: keep the scores of every drafted position.

    Raises:
        EngineError: logits are not finite.
    """
    k = len(proposal)
    rule = RULES[policy.rule]
    choice = logits.argmax(axis=1)
    best = logits[np.arange(k + 1), choice]
    if not np.isfinite(best).all():
        raise EngineError(f"the engine returned logits that are not finite at output offset {offset}")
    needs = frozenset(_SCORES) if record else rule.needs
    if sampling.greedy:
        scores, laws = _greedy_scores(logits, proposal, choice, best, needs), None
        uniform = np.full(k + 1, 0.5)  # acceptance is 0 or 1: any number in (0, 1) gives the same
    else:
        laws = np.array([probabilities(row, sampling) for row in logits])
        scores = _sampled_scores(laws, proposal)
        uniform = rng.random(k + 1)
    taus = policy.taus(proposal.category, offset + np.arange(k), language) if rule.uses_tau else np.zeros(k, np.float32)
    kept = uniform[:k] < rule.accept(scores, taus, policy.params)
    accepted = k if kept.all() else int(kept.argmin())
    if laws is None:
        token = int(choice[accepted])
    elif accepted == k:
        token = draw(laws[k], uniform[k])
    else:
        x = int(proposal.tokens[accepted])
        q = _one_hot(x, laws.shape[1]) if proposal.q is None else proposal.q[accepted]
        token = draw(replacement(rule.residual, laws[accepted], q, x), uniform[k])
    return Verified(accepted, token, _record(proposal, scores, uniform[:k]) if record else None)


def _one_hot(x: int, n: int) -> NDArray[np.float64]:
    out = np.zeros(n)
    out[x] = 1.0
    return out


def _draft_probability(proposal: Proposal) -> NDArray[np.float64]:
    k = len(proposal)
    return np.ones(k) if proposal.q is None else proposal.q[np.arange(k), proposal.tokens].clip(1e-30)


def _greedy_scores(
    logits: NDArray[np.float32],
    proposal: Proposal,
    choice: NDArray[np.intp],
    best: NDArray[np.float32],
    needs: frozenset[str],
) -> Scores:
    """Scores under greedy decoding; the softmax at temperature 1 only where a rule or the trace reads it."""
    k = len(proposal)
    law = (choice[:k] == proposal.tokens).astype(np.float32)
    empty = np.zeros(0)
    if not needs or k == 0:
        return Scores(p=empty, law=law, q=_draft_probability(proposal), top=empty, rank=empty, entropy=empty)
    shifted = logits[:k] - best[:k, None]
    x = shifted[np.arange(k), proposal.tokens]
    weight = np.exp(shifted)
    total = weight.sum(axis=1)
    # H = log Z - E[shifted logit]; einsum forms the product row by row without a temporary of k x V.
    entropy = np.log(total) - np.einsum("kv,kv->k", weight, shifted) / total if "entropy" in needs else empty
    rank = (shifted > x[:, None]).sum(axis=1) if "rank" in needs else empty
    return Scores(np.exp(x) / total, law, _draft_probability(proposal), 1.0 / total, rank, entropy)


def _sampled_scores(laws: NDArray[np.float64], proposal: Proposal) -> Scores:
    k = len(proposal)
    laws = laws[:k]
    p = laws[np.arange(k), proposal.tokens]
    entropy = -np.where(laws > 0, laws * np.log(np.where(laws > 0, laws, 1.0)), 0.0).sum(axis=1)
    return Scores(p, p, _draft_probability(proposal), laws.max(axis=1), (laws > p[:, None]).sum(axis=1), entropy)


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
        uniform=uniform.astype(np.float32),
    )
