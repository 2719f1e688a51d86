"""Where drafts come from: lookup in the text so far, or a smaller model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import draw, probabilities
from draftgate.engines.verify import Proposal
from draftgate.errors import EngineError
from draftgate.policy.length import Cut, Fixed, Goodput, Length
from draftgate.policy.lookup import SuffixLookup
from draftgate.policy.policy import Policy

__all__ = ["Classify", "Drafter", "Forward", "LookupDrafter", "ModelDrafter"]


class Forward(Protocol):
    """A model with rollback: what the step loop needs of an engine."""

    def prefill(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Start a sequence; logits [V] after its last token."""
        ...

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False) -> NDArray[np.float32]:
        """Logits of new tokens given as (sequence, position, tokens)."""
        ...

    def rollback(self, sequence: int, position: int) -> None:
        """Forget a sequence from `position` on."""
        ...


class Classify(Protocol):
    """Categories of drafted tokens, given what the sequence committed."""

    def __call__(self, tokens: Sequence[int]) -> NDArray[np.uint8]:
        """Category of each token, [k]."""
        ...


class Drafter(Protocol):
    """Proposes tokens for one sequence at a time and decides, by the policy, how many."""

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        """Begin a sequence with its prompt."""
        ...

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Tokens that were committed."""
        ...

    def propose(
        self, sequence: int, most: int, policy: Policy, batch: int, classify: Classify, rng: np.random.Generator
    ) -> Proposal:
        """A draft of at most `most` tokens, with nothing behind an end token."""
        ...


class LookupDrafter:
    """Lookup drafts from the sequence's own prompt and output."""

    def __init__(self, end_tokens: frozenset[int] = frozenset()) -> None:
        """A proposal ends with the first of `end_tokens`: nothing behind it can pay."""
        self._end_tokens = end_tokens
        self._indexes: dict[int, SuffixLookup] = {}

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        """Index the prompt."""
        self._indexes[sequence] = SuffixLookup(prompt)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Index committed tokens."""
        self._indexes[sequence].extend(tokens)

    def propose(
        self, sequence: int, most: int, policy: Policy, batch: int, classify: Classify, rng: np.random.Generator
    ) -> Proposal:
        """The continuation of the longest match, as long as the policy wants it."""
        index = self._indexes[sequence]
        tokens, _ = index.propose(min(most, policy.length.most))
        tokens = tokens[: next((i + 1 for i, token in enumerate(tokens) if token in self._end_tokens), len(tokens))]
        evidence = SuffixLookup.evidence(index.strength, len(tokens))
        category = classify(tokens)
        k = int(policy.length.choose(evidence, category, len(tokens), batch))
        return Proposal(np.array(tokens[:k], np.int32), evidence[:k], category[:k])


@dataclass(slots=True)
class _Memory:
    """One sequence of a draft model: its text, what the model holds of it, and how far the two are known to agree."""

    text: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    same: int = 0

    def common(self) -> int:
        """Tokens of the text that are held."""
        end = min(len(self.text), len(self.held))
        while self.same < end and self.text[self.same] == self.held[self.same]:
            self.same += 1
        return self.same


class ModelDrafter:
    """Drafts of a smaller model, one token at a time, with its own temperature and top-p.

    A drawn draft (temperature above 0) keeps every token drawn: the test min(1, p/q) is lossless only if whether a
    position is drafted does not depend on the token drawn there. A confidence cut or goodput then ends the draft behind
    a weak token; an argmax draft, where nothing is left to chance, ends before it.
    """

    def __init__(self, model: Forward, end_tokens: frozenset[int] = frozenset()) -> None:
        """A proposal ends with the first of `end_tokens`: nothing behind it can pay."""
        self._model, self._end_tokens = model, end_tokens
        self._memory: dict[int, _Memory] = {}

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        """Decode the prompt, unless the sequence already holds it from an earlier run."""
        memory = self._memory.setdefault(sequence, _Memory())
        memory.text, memory.same = list(prompt), 0
        if memory.common() < len(prompt):
            memory.held = []  # unknown, should the prefill fail
            self._model.prefill(sequence, prompt)
            memory.held = list(prompt)
        memory.same = len(prompt)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Note committed tokens; they are decoded with the next draft."""
        self._memory[sequence].text.extend(tokens)

    def _after(self, sequence: int, drafted: Sequence[int]) -> NDArray[np.float32]:
        """Logits [V] after the committed and the drafted tokens, of which all but the last may be held."""
        memory = self._memory[sequence]
        text, held = memory.text, memory.held
        if drafted:
            at, new = len(held), [drafted[-1]]
        else:
            at = min(memory.common(), len(text) - 1)  # the last token is decoded again for its logits when all is held
            new = text[at:]
            self._model.rollback(sequence, at)
            del held[at:]
            memory.same = at
        logits: NDArray[np.float32] = self._model.decode([(sequence, at, new)], last_only=True)[0]
        if not np.isfinite(logits.max()):
            raise EngineError("the draft model returned logits that are not finite")
        held.extend(new)
        return logits

    def propose(
        self, sequence: int, most: int, policy: Policy, batch: int, classify: Classify, rng: np.random.Generator
    ) -> Proposal:
        """Draft until the policy says stop.

        Raises:
            EngineError: the draft model's logits are not finite.
        """
        most = min(most, policy.length.most)
        sampling = Sampling(temperature=policy.draft_temperature, top_p=policy.draft_top_p)
        tokens: list[int] = []
        evidence: list[float] = []
        laws: list[NDArray[np.float64]] = []
        while len(tokens) < most and _wants_more(policy.length, tokens, evidence, classify, batch):
            if tokens and tokens[-1] in self._end_tokens:
                break
            logits = self._after(sequence, tokens)
            if sampling.greedy:
                token = int(logits.argmax())
            else:
                laws.append(probabilities(logits, sampling))
                token = draw(laws[-1], rng.random())
            tokens.append(token)
            evidence.append(_confidence(logits, token))
        known, category = np.array(evidence), classify(tokens)
        proposal = Proposal(np.array(tokens, np.int32), known, category, np.array(laws) if laws else None)
        if not sampling.greedy:
            return proposal
        return proposal.first(int(policy.length.choose(known, category, len(tokens), batch)))


def _confidence(logits: NDArray[np.float32], token: int) -> float:
    """Probability that the draft model gives a token at temperature 1."""
    weight = np.exp(logits - logits.max())
    return float(weight[token] / weight.sum())


def _wants_more(
    length: Length, tokens: Sequence[int], evidence: Sequence[float], classify: Classify, batch: int
) -> bool:
    """Whether a draft model should draft one more token, judging by those before it."""
    match length:
        case Cut():
            return not evidence or evidence[-1] >= length.least
        case Goodput():
            return length.continues(np.array(evidence), classify(tokens), batch)
        case Fixed():
            return True
