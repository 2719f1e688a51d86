"""A small deterministic engine with a virtual clock, for tests of everything above engines.

Its model is an order-2 Markov chain over bytes: text repeats itself, so lookup drafts are sometimes right. The step
loop, drafters, rules and records are the real ones; only the forward pass and its seconds are made up. The seconds of a
completion depend on the requests and the policy alone, not on what ran before: a run that was killed and resumed
measures what an unbroken one does. (So does the same request again: repeats add no new noise.)
"""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.base import Capabilities, Completion, Request, Sampling, lexed_language
from draftgate.engines.drafters import LookupDrafter
from draftgate.engines.grammar import Grammars
from draftgate.engines.loop import Speculator, Vocabulary
from draftgate.policy.category import category_table
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES
from draftgate.trace.setup import Setup
from draftgate.workload.prompt import Prompt

__all__ = ["FakeEngine"]

_END = 0
_VOCABULARY = 128
_TICK_S = 2.0**-30  # seconds are whole ticks: sums are exact, whatever the clock showed before


def _tokenize(text: str) -> list[int]:
    """One token a byte; what the vocabulary lacks becomes something else."""
    return [b if 0 < b < _VOCABULARY else b % (_VOCABULARY - 1) + 1 for b in text.encode()]


class _Chain:
    """The forward pass: logits after the last two tokens, and seconds that grow with the tokens decoded."""

    def __init__(self, seed: int, base_s: float, token_s: float, noise: float) -> None:
        self.now = 0.0
        self._seed, self._base_s, self._token_s, self._noise = seed, base_s, token_s, noise
        self._rng = np.random.default_rng(seed)
        self._held: dict[int, list[int]] = {}
        self._logits: Callable[[int, int], NDArray[np.float32]] = lru_cache(maxsize=None)(self._compute)

    def begin(self, run: str) -> None:
        """Start the noise of a run."""
        self._rng = np.random.default_rng([self._seed, zlib.crc32(run.encode())])

    def _compute(self, before: int, last: int) -> NDArray[np.float32]:
        rng = np.random.default_rng([self._seed, before, last])
        logits: NDArray[np.float32] = rng.normal(0.0, 1.0, _VOCABULARY).astype(np.float32)
        logits[rng.integers(97, 123, 2)] += (9.0, 7.5)  # two likely letters
        logits[_END] -= 6.0
        return logits

    def seconds(self, tokens: int) -> float:
        """Seconds of one decode of so many tokens, before noise."""
        return self._base_s + self._token_s * tokens

    def prefill(self, sequence: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Start a sequence."""
        self._held[sequence] = []
        last: NDArray[np.float32] = self.decode([(sequence, 0, tokens)], last_only=True)[0]
        return last

    def decode(self, rows: Sequence[tuple[int, int, Sequence[int]]], last_only: bool = False) -> NDArray[np.float32]:
        """Logits of new tokens."""
        out = []
        for sequence, start, tokens in rows:
            held = self._held[sequence]
            assert start == len(held), f"decode at {start} but {len(held)} tokens are held"
            held.extend(tokens)
            wanted = range(len(held) - 1, len(held)) if last_only else range(start, len(held))
            out += [self._logits(held[i - 1] if i else 0, held[i]) for i in wanted]
        total = sum(len(tokens) for _, _, tokens in rows)
        noisy_s = self.seconds(total) * float(np.exp(self._noise * self._rng.normal()))
        self.now += max(round(noisy_s / _TICK_S), 1) * _TICK_S
        return np.array(out)

    def rollback(self, sequence: int, position: int) -> None:
        """Forget a sequence from `position` on."""
        del self._held[sequence][position:]


class FakeEngine:
    """Lookup drafts on the chain; one token costs base_s + token_s, noise is its relative standard deviation."""

    def __init__(
        self, seed: int = 0, base_s: float = 0.01, token_s: float = 0.001, noise: float = 0.02, n_ctx: int = 4096
    ) -> None:
        self._chain = _Chain(seed, base_s, token_s, noise)
        pieces = tuple(b"" if i == _END else bytes([i]) for i in range(_VOCABULARY))
        tables = lru_cache(maxsize=None)(lambda language: category_table(pieces, language))
        self._vocabulary = Vocabulary(pieces, self.end_tokens, tables)
        self._speculator = Speculator(
            self._chain, LookupDrafter(self.end_tokens), self._vocabulary, n_ctx, 512, clock=self.clock
        )
        self._grammars = Grammars(pieces, {_END: b"<end>"}, self.end_tokens, _tokenize)
        self._name = f"chain-{seed}-{base_s:g}-{token_s:g}"

    @property
    def end_tokens(self) -> frozenset[int]:
        """The one end token."""
        return frozenset({_END})

    @property
    def setup(self) -> Setup:
        """The chain's parameters."""
        digest = f"{zlib.crc32(self._name.encode()):08x}"
        return Setup("fake", "1", self._name, digest, "lookup", "virtual clock", None)

    @property
    def capabilities(self) -> Capabilities:
        """Everything, at batch 4."""
        return Capabilities(frozenset(RULES), True, 4, 64, evidence=True, truncates=True)

    def clock(self) -> float:
        """Virtual seconds since the start."""
        return self._chain.now

    def encode(self, prompt: Prompt, workload: str, max_tokens: int, sampling: Sampling) -> Request:
        """One token a byte; conversations are joined."""
        text = prompt.prompt or "\n".join(message.content for message in prompt.messages or ())
        request = Request(
            id=prompt.id,
            tokens=tuple(_tokenize(text)),
            max_tokens=prompt.max_tokens or max_tokens,
            workload=workload,
            language=lexed_language(prompt.language),
            sampling=sampling,
            grammar=self._grammars.of(prompt) if sampling.constrained else None,
        )
        self._speculator.check_request(request)
        return request

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete requests; see `Engine.generate`."""
        self._speculator.forget()  # else the seconds of a prompt would depend on whether it came last
        self._chain.begin(f"{policy.name} {[(r.workload, r.id) for r in requests]}")
        return self._speculator.run(requests, policy, record)

    def measure_cost(self, batches: Sequence[int], most: int, seconds: float) -> StepCost:
        """The chain's true costs."""
        curves = {
            b: Curve(b, tuple(self._chain.seconds(b * m) for m in range(1, most + 1)), (0.0,) * most, 1)
            for b in batches
        }
        return StepCost(curves)

    def logit_gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
        """Logit of `first` minus logit of `second`; the chain is exact, so nothing moves."""
        self._speculator.forget()
        logits = self._chain.prefill(0, (*prompt, *output))
        return float(logits[first] - logits[second]), 0.0

    def close(self) -> None:
        """Nothing to free."""
