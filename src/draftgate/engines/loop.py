"""The draft-then-verify loop, for any model that can decode several tokens and roll back."""

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.base import Completion, Request
from draftgate.engines.drafters import Drafter, Forward
from draftgate.engines.verify import Proposal, verify
from draftgate.errors import ConfigError, EngineError
from draftgate.policy.lexer import Lexer, classify
from draftgate.policy.policy import Policy
from draftgate.trace.records import StepRecord

__all__ = ["Speculator", "Vocabulary"]

Clock = Callable[[], float]

_NOTHING = Proposal(np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.uint8))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the loop needs to know of tokens.

    Attributes:
        pieces: decoded bytes of each token.
        end_tokens: tokens that end generation.
        tables: category table [V] of a language.
    """

    pieces: Sequence[bytes]
    end_tokens: frozenset[int]
    tables: Callable[[str | None], NDArray[np.uint8]]

    def text(self, tokens: Sequence[int]) -> str:
        """Decoded text; bytes that are not UTF-8 show as replacement characters."""
        return b"".join(self.pieces[t] for t in tokens).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Timing:
    """Of one step, as its records give it."""

    batch: int
    draft_s: float
    verify_s: float


class _Sequence:
    """One request in progress."""

    def __init__(self, index: int, request: Request, vocabulary: Vocabulary, categories: bool) -> None:
        self.index = index
        self.request = request
        self.output: list[int] = []
        self.steps: list[StepRecord] = []
        self.finish = ""
        self.decode_s = 0.0
        self.rng = np.random.default_rng([request.sampling.seed, zlib.crc32(request.id.encode())])
        self._vocabulary = vocabulary
        self._grammar = request.grammar.fresh() if request.grammar else None
        self._lexer = Lexer(request.language) if categories else None
        if self._lexer is not None:
            self._lexer.feed(request.lexed.encode())
            self._table = vocabulary.tables(request.language)

    def classify(self, tokens: Sequence[int]) -> NDArray[np.uint8]:
        """Categories of tokens that would follow the output; zeros when nothing asks for them."""
        if self._lexer is None:
            return np.zeros(len(tokens), np.uint8)
        return classify(self._lexer, tokens, self._vocabulary.pieces, self._table)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens up to an end token; returns those that entered the output. A draft's length minds the limit."""
        tokens = list(tokens)
        for i, token in enumerate(tokens):
            if token in self._vocabulary.end_tokens:
                tokens, self.finish = tokens[: i + 1], "stop"
                break
        self.output.extend(tokens)
        if not self.finish and len(self.output) >= self.request.max_tokens:
            self.finish = "length"
        if self._lexer is not None:
            self._lexer.feed(b"".join(self._vocabulary.pieces[t] for t in tokens))
        if self._grammar is not None:
            self._grammar.advance(tokens)
        return tokens

    def legal(self, proposal: Proposal) -> Proposal:
        """A draft up to the first token that the grammar refuses: nothing behind it can be kept.

        A drawn draft keeps that token, which the target's masked law then rejects: dropping it because of what was
        drawn would change the output's law.
        """
        if self._grammar is None:
            return proposal
        legal = self._grammar.legal(proposal.tokens.tolist())
        return proposal.first(legal if proposal.q is None else min(legal + 1, len(proposal)))

    def masked(self, logits: NDArray[np.float32], drafted: Sequence[int]) -> NDArray[np.float32]:
        """Logits [k + 1, V] without the tokens that the grammar refuses."""
        return logits if self._grammar is None else self._grammar.masked(logits, drafted)

    @property
    def position(self) -> int:
        """Position of the last committed token, which the next decode starts with."""
        return len(self.request.tokens) + len(self.output) - 1

    @property
    def room(self) -> int:
        """Tokens that a draft may have, so that the bonus token still fits the request."""
        return self.request.max_tokens - len(self.output) - 1


class Speculator:
    """Runs requests with a target, a drafter and a policy.

    Prompts stay in memory: a request whose prompt a sequence already holds is not decoded again, so that arms compared
    on one prompt share the very same prefill.
    """

    def __init__(
        self,
        target: Forward,
        drafter: Drafter,
        vocabulary: Vocabulary,
        n_ctx: int,
        n_batch: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Wrap a target.

        Args:
            n_ctx: tokens that one sequence can hold.
            n_batch: tokens that one decode can take.
            clock: seconds; a fake one serves tests.
        """
        self._target, self._drafter, self._vocabulary = target, drafter, vocabulary
        self._n_ctx, self._n_batch, self._clock = n_ctx, n_batch, clock
        self._prompts: dict[int, tuple[tuple[int, ...], NDArray[np.float32], float]] = {}

    def forget(self) -> None:
        """Note that something else used the target's memory: prompts are decoded again."""
        self._prompts.clear()

    def run(self, requests: Sequence[Request], policy: Policy, record: bool) -> list[Completion]:
        """Complete requests as one batch; see `Engine.generate`."""
        self._check(requests, policy)
        categories = record or policy.uses_category
        sequences = [_Sequence(i, r, self._vocabulary, categories) for i, r in enumerate(requests)]
        prefills = [self._begin(s, policy) for s in sequences]
        begin = self._clock()
        active = [s for s in sequences if not s.finish]
        while active:
            self._step(active, policy, record)
            now = self._clock()
            for s in active:
                s.decode_s = now - begin
            active = [s for s in active if not s.finish]
        return [
            Completion(
                request=s.request,
                tokens=tuple(s.output),
                text=self._vocabulary.text(s.output),
                finish=s.finish,
                prefill_s=prefill,
                decode_s=s.decode_s,
                steps=tuple(s.steps),
            )
            for s, prefill in zip(sequences, prefills, strict=True)
        ]

    def _check(self, requests: Sequence[Request], policy: Policy) -> None:
        for request in requests:
            self.check_request(request)
        n, k = len(requests), policy.length.most
        for tokens, room, where in ((k + 1, self._n_ctx, "the context"), (n * (k + 1), self._n_batch, "one decode")):
            if tokens > room:
                raise ConfigError(
                    f"policy '{policy.name}': k = {k} for {n} requests takes {tokens} tokens and does not fit "
                    f"{where} of {room}; lower k"
                )

    def check_request(self, request: Request) -> None:
        """Refuse a request that does not fit.

        Raises:
            ConfigError: no prompt, no output, or more of both than the context holds.
        """
        prompt, output = len(request.tokens), request.max_tokens
        if not prompt or output < 1:
            raise ConfigError(f"prompt '{request.id}': needs at least one prompt token and one output token")
        if prompt + output > self._n_ctx:
            raise ConfigError(
                f"prompt '{request.id}': {prompt} prompt tokens and {output} output tokens do not fit the context of "
                f"{self._n_ctx}; shorten it or raise --context"
            )

    def _begin(self, s: _Sequence, policy: Policy) -> float:
        """Decode the prompt or reuse it, and commit the first token; returns prefill seconds."""
        logits, prefill_s = self._prefill(s)
        logits = s.masked(logits[None], ())[0]
        if policy.drafts:
            self._drafter.start(s.index, s.request.tokens)
        request = s.request
        first = verify(logits[None], _NOTHING, policy, request.sampling, s.rng, 0, request.language, False)
        self._commit(s, [first.token], policy)
        return prefill_s

    def _prefill(self, s: _Sequence) -> tuple[NDArray[np.float32], float]:
        """Logits [V] after the prompt, and the seconds that its decode took."""
        tokens = s.request.tokens
        held = self._prompts.pop(s.index, None)  # gone, should the decode fail
        if held is not None and held[0] == tokens:
            self._target.rollback(s.index, len(tokens))
        else:
            start = self._clock()
            logits = self._target.prefill(s.index, tokens).copy()
            held = tokens, logits, self._clock() - start
            if not np.isfinite(logits.max()):
                raise EngineError(f"prompt '{s.request.id}': the engine returned logits that are not finite")
        self._prompts[s.index] = held
        return held[1:]

    def _commit(self, s: _Sequence, tokens: Sequence[int], policy: Policy) -> list[int]:
        tokens = s.commit(tokens)
        if policy.drafts and not s.finish:
            self._drafter.extend(s.index, tokens)
        return tokens

    def _propose(self, s: _Sequence, policy: Policy, batch: int) -> Proposal:
        """A draft that fits the request and its grammar."""
        most = s.room if policy.drafts else 0
        if most <= 0:
            return _NOTHING
        return s.legal(self._drafter.propose(s.index, most, policy, batch, s.classify, s.rng))

    def _step(self, active: Sequence[_Sequence], policy: Policy, record: bool) -> None:
        """Draft for every sequence, verify all in one decode, commit."""
        n, clock = len(active), self._clock
        start = clock()
        proposals = [self._propose(s, policy, n) for s in active]
        drafted = clock()
        logits = self._target.decode(
            [(s.index, s.position, [s.output[-1], *p.tokens.tolist()]) for s, p in zip(active, proposals, strict=True)]
        )
        timing = _Timing(n, (drafted - start) / n, clock() - drafted)
        row = 0
        for s, proposal in zip(active, proposals, strict=True):
            end = row + len(proposal) + 1
            self._settle(s, proposal, logits[row:end], policy, record, timing)
            row = end

    def _settle(
        self,
        s: _Sequence,
        proposal: Proposal,
        logits: NDArray[np.float32],
        policy: Policy,
        record: bool,
        timing: _Timing,
    ) -> None:
        """Apply the rule to one sequence's part of a decode."""
        request, offset = s.request, len(s.output)
        logits = s.masked(logits, proposal.tokens.tolist())
        result = verify(logits, proposal, policy, request.sampling, s.rng, offset, request.language, record)
        committed = self._commit(s, [*proposal.tokens[: result.accepted].tolist(), result.token], policy)
        self._target.rollback(s.index, s.position)
        s.steps.append(
            StepRecord(
                request=-1,
                step=len(s.steps),
                offset=offset,
                batch=timing.batch,
                draft_s=timing.draft_s,
                verify_s=timing.verify_s,
                drafted_n=len(proposal),
                accepted=result.accepted,
                committed=len(committed),
                drafted=result.drafted,
            )
        )
