"""What a rule would have done at every recorded position."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES, Scores
from draftgate.trace.columns import Columns

__all__ = ["Replayable"]


@dataclass(frozen=True, slots=True)
class Replayable:
    """A trace with the scores that rules read, computed once for any number of policies.

    Attributes:
        columns: the trace.
        scores: arrays [K, S].
        exact: outcome of the lossless test at each position with the recorded uniform numbers [K, S].
        language: steps of each language, for language offsets.
    """

    columns: Columns
    scores: Scores
    exact: NDArray[np.bool_]
    languages: tuple[str | None, ...]

    @classmethod
    def of(cls, columns: Columns) -> "Replayable":
        """Prepare a trace."""
        p = np.exp(columns.logp)
        law = (columns.rank == 0).astype(np.float32) if columns.greedy else p
        scores = Scores(
            p=p,
            law=law,
            q=np.exp(columns.logq),
            top=np.exp(columns.logp + columns.top1_margin),
            rank=columns.rank,
            entropy=columns.entropy,
        )
        exact = columns.uniform < RULES["lossless"].accept(scores, np.float32(0), {})
        return cls(columns, scores, exact, tuple(sorted(set(columns.languages), key=str)))

    def kept(self, policy: Policy) -> NDArray[np.bool_]:
        """Outcome of a policy's rule at each position [K, S], whatever happened before it in the draft."""
        rule = RULES[policy.rule]
        if rule.name == "lossless" or (rule.lossless and self.columns.greedy):
            return self.exact
        taus = self._taus(policy) if rule.uses_tau else np.zeros(1, np.float32)
        keep: NDArray[np.bool_] = self.columns.uniform < rule.accept(self.scores, taus, policy.params)
        return keep

    def _taus(self, policy: Policy) -> NDArray[np.float32]:
        """Thresholds, [K, S] or one number when nothing varies."""
        columns = self.columns
        if not (policy.category or policy.position or policy.language):
            return np.array([policy.tau], np.float32).clip(*policy.bounds)
        offset = columns.offset + np.arange(columns.shape[0])[:, None]
        if not policy.language:
            return policy.taus(columns.category, offset, None)
        out = np.empty(columns.shape, np.float32)
        of_request = np.array([self.languages.index(name) for name in columns.languages])
        for i, language in enumerate(self.languages):
            here = of_request[columns.request] == i
            out[:, here] = policy.taus(columns.category[:, here], offset[:, here], language)
        return out
