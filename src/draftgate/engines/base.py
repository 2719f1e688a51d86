"""What every engine offers: requests in, completions and step records out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from draftgate.cost.steps import StepCost
from draftgate.errors import ConfigError
from draftgate.policy.policy import Policy
from draftgate.policy.syntax import canonical
from draftgate.trace.records import StepRecord
from draftgate.trace.setup import Setup
from draftgate.workload.prompt import Prompt

if TYPE_CHECKING:
    from draftgate.engines.grammar import Grammar

__all__ = ["Capabilities", "Completion", "Engine", "Request", "Sampling", "lexed_language", "near_tie"]


def lexed_language(name: str | None) -> str | None:
    """The language for categories: a prompt may name one that draftgate has no lexer for, and is then plain text."""
    try:
        return canonical(name)
    except ConfigError:
        return None


_RANGES = (
    ("temperature", 0.0, 10.0),
    ("top_k", 0, 2**31),
    ("top_p", 1e-9, 1.0),
    ("min_p", 0.0, 1.0),
    ("seed", 0, 2**63),
)


def near_tie(gap: float, noise: float) -> bool:
    """Whether two tokens are so close that the engine's own rounding, which moves each logit by `noise`, can swap them.

    >>> near_tie(-0.02, 0.03), near_tie(1.5, 0.1)
    (True, False)
    """
    return abs(gap) <= 2 * noise


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses tokens.

    Transforms apply in the order temperature, top-k, top-p, min-p, as in Hugging Face transformers. vLLM applies min-p
    before top-k and top-p, which differs only when min-p is combined with one of them.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the fewest tokens whose mass reaches top_p.
        min_p: keep tokens with at least min_p times the greatest probability.
        seed: every request draws from its own stream, made from this and its prompt id; not negative.
        constrained: mask tokens that the JSON Schema or the tools of a prompt refuse.

    Raises:
        ConfigError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    constrained: bool = False

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"sampling: {name} must be in [{low:g}, {high:g}] but got {getattr(self, name)}")

    @property
    def greedy(self) -> bool:
        """Whether the target always takes its argmax."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, tokenised.

    Attributes:
        id: the prompt's id in its workload.
        tokens: prompt tokens.
        language: language of the output, for categories and language offsets; None when unknown.
        lexed: text of the prompt that the output continues, so that the lexer starts inside it; "" for a fresh answer.
        grammar: what the output must follow; None when nothing binds it.
    """

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    workload: str = ""
    language: str | None = None
    lexed: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    grammar: "Grammar | None" = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back.

    Attributes:
        tokens: output tokens; the first is chosen by the prefill, every later one is committed by a step.
        finish: "stop" or "length".
        prefill_s: seconds of the prompt's decode (as measured when it was last decoded; arms share one prefill).
        decode_s: seconds of all steps, bookkeeping included.
        steps: one record a step.
    """

    request: Request
    tokens: tuple[int, ...]
    text: str
    finish: str
    prefill_s: float
    decode_s: float
    steps: tuple[StepRecord, ...]

    @property
    def step_tokens(self) -> int:
        """Tokens that steps committed: all but the first."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, so that callers ask instead of failing half-way.

    Attributes:
        rules: names of acceptance rules it can apply.
        records_drafted: whether it reports the target's scores of every drafted token.
        max_batch: sequences in one decode.
        max_draft: tokens in one draft.
        evidence: whether its drafter says how sure it is of each token; without, a draft length can only be fixed.
        truncates: whether the target's own tokens can be drawn from a truncated law too (`Policy.truncate`).
    """

    rules: frozenset[str]
    records_drafted: bool
    max_batch: int
    max_draft: int
    evidence: bool
    truncates: bool


class Engine(Protocol):
    """A running engine."""

    @property
    def setup(self) -> Setup:
        """What figures measured here depend on."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end generation."""
        ...

    def encode(self, prompt: Prompt, workload: str, max_tokens: int, sampling: Sampling) -> Request:
        """Tokenise a prompt of a workload; `max_tokens` serves prompts that set none.

        Raises:
            InputError: it does not fit the context, or the model has no template for conversations.
        """
        ...

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete requests together, as one batch.

        Args:
            requests: at most `capabilities.max_batch`.
            policy: how to speculate; applies to all of them.
            record: keep the target's scores of every drafted token.

        Raises:
            InputError: a prompt does not fit the context, or the policy is not supported.
            EngineError: the engine failed.
        """
        ...

    def measure_cost(self, batches: Sequence[int], most: int, seconds: float) -> StepCost:
        """Time draft and verify steps of 1..most tokens a sequence at each batch size, for about `seconds` in all."""
        ...

    def logit_gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
        """Logit of `first` minus logit of `second` after prompt and output, and how far logits move by rounding.

        The gap is that of decoding the output one token at a time, as without speculation. The noise is the greatest
        change of a likely token's logit when more tokens are decoded together. `near_tie` reads both.
        """
        ...

    def close(self) -> None:
        """Free everything."""
        ...
