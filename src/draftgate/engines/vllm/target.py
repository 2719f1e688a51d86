"""What the target says about drafted tokens, and what replaces one that was rejected."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftgate.engines.vllm.rules import Scores

__all__ = ["Target", "recovered"]

_BLOCK = (
    2**19
)  # logits that are read at once on a CPU: what they become stays in its cache, and no new memory is touched
_FLOOR = -200.0  # exp(-200) is 0 in float32; keeps 0 x -inf out of entropies


@dataclass(frozen=True, slots=True)
class Target:
    """The target's view of N drafted tokens.

    Attributes:
        logits: after the sampling transforms; at temperature 1 where decoding is greedy [N, V].
        choice: their argmax [N]; empty when no request decodes greedily.
        probs: all laws [N, V], where they are wanted twice and few enough to be kept.
    """

    logits: Tensor
    choice: Tensor
    probs: Tensor | None = None

    @classmethod
    def of(cls, logits: Tensor, some_greedy: bool, keep_laws: bool) -> "Target":
        """Read the choices if some request decodes greedily.

        Args:
            keep_laws: laws are wanted for scores and for replacements, of the same rows or of few.
        """
        choice = _argmax(logits) if some_greedy else logits.new_empty(0, dtype=torch.int64)
        return cls(logits, choice, logits.softmax(1) if keep_laws else None)

    @staticmethod
    def at_once(logits: Tensor) -> int:
        """Rows that are read at once: on a CPU, as many as its cache holds."""
        rows, vocabulary = logits.shape
        return max(1, _BLOCK // int(vocabulary)) if logits.device.type == "cpu" else int(rows)

    def scores(
        self, tokens: Tensor, greedy: Tensor | None, q: Tensor | None, needs: frozenset[str], keep_choice: bool = False
    ) -> Scores:
        """Scores of the drafted tokens [N]; those that are not needed are empty.

        Args:
            tokens: the drafted tokens, all in the vocabulary [N].
            greedy: whether each is decoded greedily [N]; None when all are alike.
            q: their draft probabilities [N]; None for a deterministic draft.
            needs: fields of `Scores` beyond law and q.
            keep_choice: rules keep a greedy request's choice whatever these fields say, which need not be right there.
        """
        if not self.choice.shape[0]:
            p, top, rank, entropy = self._read(tokens, needs)
            return Scores(p, p, q, top, rank, entropy)
        chosen = self.choice == tokens
        if keep_choice and needs and self.probs is None and self.logits.device.type == "cpu":
            sure = chosen if greedy is None else chosen & greedy
            p, top, rank, entropy = self._read_some(tokens, needs, sure)
        else:
            p, top, rank, entropy = self._read(tokens, needs)
        law = chosen.to(self.logits.dtype)
        if greedy is not None:
            law = torch.where(greedy, law, p)
        return Scores(p, law, q, top, rank, entropy)

    def agrees(self, tokens: Tensor) -> bool:
        """Whether the drafted tokens [N] are known to be the target's choices; only a CPU looks."""
        return self.logits.device.type == "cpu" and bool(torch.equal(self.choice, tokens))

    def laws(self, at: Tensor | slice) -> Tensor:
        """Target laws of some of the tokens, [n, V]; of a slice they may be `probs` itself."""
        return self.logits[at].softmax(1) if self.probs is None else self.probs[at]

    def _read(self, tokens: Tensor, needs: frozenset[str]) -> tuple[Tensor, ...]:
        if not needs:
            return 4 * (self.logits.new_empty(0),)
        rows = self.at_once(self.logits)
        if self.probs is not None or self.logits.shape[0] <= rows:
            return _row_scores(self.logits, tokens[:, None], needs, self.probs)
        blocks = zip(torch.split(self.logits, rows), torch.split(tokens[:, None], rows), strict=True)
        fields = zip(*(_row_scores(logits, own, needs) for logits, own in blocks), strict=True)
        return tuple(torch.cat(field) for field in fields)

    def _read_some(self, tokens: Tensor, needs: frozenset[str], sure: Tensor) -> tuple[Tensor, ...]:
        """The same, of tokens that are not `sure` to be kept [N]; the others get the scores of a certain token.

        It is for a CPU, which may look at values at any time: a softmax of a vocabulary costs more there than all else
        that the host does for a token.
        """
        unsure = np.flatnonzero(~sure.numpy()).tolist()
        if len(unsure) == tokens.shape[0]:
            return self._read(tokens, needs)
        fields = self.logits.new_zeros(4, tokens.shape[0])
        fields[:2] = 1.0  # p and top; rank and entropy are 0
        for i in unsure:
            own = _row_scores(self.logits[i : i + 1], tokens[i : i + 1, None], needs)
            for field, value in zip(fields, own, strict=True):
                if value.shape[0]:
                    field[i : i + 1] = value
        return tuple(fields)


def _row_scores(
    logits: Tensor, tokens: Tensor, needs: frozenset[str], probs: Tensor | None = None
) -> tuple[Tensor, ...]:
    """p, top, rank and entropy of one token a row; p always, the others empty unless needed."""
    probs, none = logits.softmax(1) if probs is None else probs, logits.new_empty(0)
    top = probs.amax(1) if needs & {"top", "entropy"} else none
    return (
        probs.gather(1, tokens)[:, 0],
        top,
        (logits > logits.gather(1, tokens)).sum(1) if "rank" in needs else none,
        _entropy(logits, probs, top) if "entropy" in needs else none,
    )


def _entropy(logits: Tensor, probs: Tensor, top: Tensor) -> Tensor:
    """H = log Z - E[s], with s the logits less their greatest and Z = sum exp(s) = 1 / top."""
    shifted = (logits - logits.amax(1, keepdim=True)).clamp_(min=_FLOOR)
    entropy: Tensor = -(top.log() + shifted.mul_(probs).sum(1))
    return entropy


def recovered(
    laws: Tensor, q: Tensor | None, tokens: Tensor, known: Tensor, residual: Tensor, inverse: Tensor
) -> Tensor:
    """Draw what replaces R rejected tokens: `policy.rules.replacement`, and one sample of it [R].

    argmax(w / e) with standard exponential e is a draw from weights w, which need not sum to 1; vLLM draws so too.

    Args:
        laws: target laws at the rejected positions [R, V]; overwritten.
        q: draft laws there [R, V]; None for a deterministic draft.
        tokens: the rejected tokens, all in the vocabulary [R].
        known: whether the token was in the vocabulary as it came [R].
        residual: whether the law goes without the token, or minus q [R, 2] (`PolicyTables.residual`).
        inverse: 1 / e [R, V].
    """
    without, minus = residual.unbind(1)
    if q is None:
        without = without | minus  # q is 1 on the token and 0 elsewhere
    else:
        laws.addcmul_(q, minus[:, None].to(q.dtype), value=-1.0)  # what is negative now never wins
    at = tokens[:, None]
    laws.scatter_(1, at, laws.gather(1, at).masked_fill((without & known)[:, None], 0.0))
    weights = laws.mul_(inverse) if laws.dtype == inverse.dtype else laws * inverse
    drawn = _argmax(weights)
    # No weight at all means that a rejection had probability zero. Rounding leads here, and the token was right then.
    return torch.where(weights.gather(1, drawn[:, None])[:, 0] > 0, drawn, tokens)


def _argmax(x: Tensor) -> Tensor:
    """Index of the first greatest element of each row, [n] of [n, V]."""
    if x.device.type == "cpu":  # numpy's is several times faster there, one thread against one
        return torch.from_numpy(x.numpy().argmax(1))
    return x.argmax(1)
