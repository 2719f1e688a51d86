"""What a rule would have done at every recorded position."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Scores
from draftgate.replay.walk import Drafts
from draftgate.trace.columns import Columns

__all__ = ["Replayable"]

_BLOCK_STEPS = 8192  # evaluated at once, so that a rule's temporaries stay in cache


@dataclass(frozen=True, slots=True)
class Replayable:
    """A trace with the scores that rules read, computed once for any number of policies.

    Attributes:
        columns: the trace.
        scores: arrays [K, S].
        exact: outcome of the lossless test at each position with the recorded uniform numbers [K, S].
        drafts: the recorded drafts, for walking.
        languages: the languages in the trace, each once, for language offsets.
        requests: requests that took steps.
    """

    columns: Columns
    scores: Scores
    exact: NDArray[np.bool_]
    drafts: Drafts
    languages: tuple[str | None, ...]
    requests: int

    @classmethod
    def of(cls, columns: Columns) -> "Replayable":
        """Prepare a trace."""
        p = np.exp(columns.logp)
        with np.errstate(invalid="ignore"):
            top = columns.logp + columns.top1_margin
        scores = Scores(
            p=p,
            law=(columns.rank == 0).astype(np.float32) if columns.greedy else p,
            q=np.exp(columns.logq),
            # Where p is 0 the margin is infinite and the top unknown; fmin takes 1, which no margin rule is looser for.
            top=np.exp(np.fmin(top, np.float32(0))),
            rank=columns.rank,
            entropy=columns.entropy,
        )
        exact = columns.uniform < RULES["lossless"].accept(scores, np.zeros(1, np.float32), {})
        languages = tuple(sorted(set(columns.languages), key=str))
        # Accepted tokens without a bonus token after them: the last one ended the text.
        ended = (columns.accepted > 0) & (columns.committed == columns.accepted)
        drafts = Drafts(columns.drafted_n, ended, columns.request, columns.n_requests)
        return cls(columns, scores, exact, drafts, languages, len(np.unique(columns.request)))

    def kept(self, policy: Policy) -> NDArray[np.bool_]:
        """Outcome of a policy's rule at each position [K, S], whatever happened before it in the draft.

        Cells past a step's draft hold anything. A lossless rule may return `exact` itself: do not write to it.
        """
        rule = RULES[policy.rule]
        if rule.name == "lossless" or (rule.lossless and self.columns.greedy):
            return self.exact
        keep = np.empty(self.columns.shape, bool)
        for start in range(0, keep.shape[1], _BLOCK_STEPS):
            here = slice(start, start + _BLOCK_STEPS)
            taus = self._taus(policy, here) if rule.uses_tau else np.zeros(1, np.float32)
            chance = rule.accept(_part(self.scores, here), taus, policy.params)
            np.less(self.columns.uniform[:, here], chance, out=keep[:, here])
        return keep

    def _taus(self, policy: Policy, here: slice) -> NDArray[np.float32]:
        """Thresholds of some steps, [K, s], or [1] when nothing varies."""
        if not (policy.category or policy.position or policy.language):
            return np.array([policy.tau], np.float32).clip(*policy.bounds)
        columns = self.columns
        category = columns.category[:, here]
        offset = columns.offset[here] + np.arange(len(category), dtype=np.int32)[:, None]
        if not policy.language:
            return policy.taus(category, offset, None)
        taus = np.empty(category.shape, np.float32)
        request, of_step = np.unique(columns.request[here], return_inverse=True)
        spoken = np.array([self.languages.index(columns.languages[r]) for r in request])[of_step]
        for i in np.unique(spoken):
            steps = spoken == i
            taus[:, steps] = policy.taus(category[:, steps], offset[:, steps], self.languages[i])
        return taus


def _part(scores: Scores, here: slice) -> Scores:
    """The scores of some steps, without copying."""
    s = scores
    return Scores(s.p[:, here], s.law[:, here], s.q[:, here], s.top[:, here], s.rank[:, here], s.entropy[:, here])
