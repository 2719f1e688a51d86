"""Where drafts come from: lookup in the text so far, or a smaller model."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Sampling
from draftgate.engines.sampling import draw, probabilities, softmax
from draftgate.engines.verify import Proposal
from draftgate.policy.length import Cut, Goodput
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
        """A draft of at most `most` tokens."""
        ...


class LookupDrafter:
    """Lookup drafts from the sequence's own prompt and output."""

    def __init__(self) -> None:
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
        tokens, match = self._indexes[sequence].propose(min(most, policy.length.most))
        evidence = SuffixLookup.evidence(match, len(tokens))
        category = classify(tokens)
        k = int(policy.length.choose(evidence, category, len(tokens), batch))
        return Proposal(np.array(tokens[:k], np.int32), evidence[:k], category[:k])


class ModelDrafter:
    """Drafts of a smaller model, one token at a time, with its own temperature and top-p."""

    def __init__(self, model: Forward) -> None:
        self._model = model
        self._text: dict[int, list[int]] = {}
        self._held: dict[int, list[int]] = {}  # what the draft model's memory holds

    def start(self, sequence: int, prompt: Sequence[int]) -> None:
        """Decode the prompt, unless the sequence already holds it from an earlier run."""
        held = self._held.get(sequence, [])
        self._text[sequence] = list(prompt)
        if held[: len(prompt)] != self._text[sequence] or len(held) < len(prompt):
            self._model.prefill(sequence, prompt)
            self._held[sequence] = list(prompt)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Note committed tokens; they are decoded with the next draft."""
        self._text[sequence].extend(tokens)

    def _catch_up(self, sequence: int) -> NDArray[np.float32]:
        """Logits [V] after all committed tokens."""
        text, held = self._text[sequence], self._held[sequence]
        common = next(
            (i for i, (a, b) in enumerate(zip(text, held, strict=False)) if a != b), min(len(text), len(held))
        )
        common = min(common, len(text) - 1)  # the last token is decoded again for its logits when all is held
        self._model.rollback(sequence, common)
        self._held[sequence] = list(text)
        return self._model.decode([(sequence, common, text[common:])], last_only=True)[0]

    def propose(
        self, sequence: int, most: int, policy: Policy, batch: int, classify: Classify, rng: np.random.Generator
    ) -> Proposal:
        """Draft until the policy says stop."""
        length = policy.length
        most = min(most, length.most)
        sampling = Sampling(temperature=policy.draft_temperature, top_p=policy.draft_top_p)
        tokens: list[int] = []
        evidence: list[float] = []
        laws: list[NDArray[np.float64]] = []
        while len(tokens) < most and _wants_more(length, evidence, classify(tokens), batch):
            if tokens:
                held = self._held[sequence]
                logits = self._model.decode([(sequence, len(held), tokens[-1:])])[0]
                held.append(tokens[-1])
            else:
                logits = self._catch_up(sequence)
            if sampling.greedy:
                token = int(logits.argmax())
            else:
                laws.append(probabilities(logits, sampling))
                token = draw(laws[-1], rng.random())
            tokens.append(token)
            evidence.append(float(softmax(logits)[token]))
        category, known = classify(tokens), np.array(evidence)
        proposal = Proposal(np.array(tokens, np.int32), known, category, np.array(laws) if laws else None)
        return proposal.first(int(length.choose(known, category, len(tokens), batch)))


def _wants_more(length: object, evidence: Sequence[float], category: NDArray[np.uint8], batch: int) -> bool:
    """Whether a draft model should draft one more token."""
    if isinstance(length, Cut):
        return not evidence or evidence[-1] >= length.least
    return not isinstance(length, Goodput) or length.continues(np.array(evidence), category, batch)
