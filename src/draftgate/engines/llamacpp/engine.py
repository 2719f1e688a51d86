"""The embedded engine: speculative decoding in process on llama.cpp."""

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.base import Capabilities, Completion, Request, Sampling, lexed_language
from draftgate.engines.drafters import Drafter, LookupDrafter, ModelDrafter
from draftgate.engines.grammar import Grammars
from draftgate.engines.hardware import processor
from draftgate.engines.llamacpp.abi import library_version
from draftgate.engines.llamacpp.capi import Context, Model
from draftgate.engines.loop import Speculator, Vocabulary
from draftgate.errors import ConfigError, ModelError
from draftgate.policy.category import category_table
from draftgate.policy.policy import Policy
from draftgate.policy.rules import RULES
from draftgate.trace.setup import Setup
from draftgate.workload.prompt import Prompt

__all__ = ["LOOKUP", "LlamaCpp", "fingerprint"]

LOOKUP = "lookup"
_THREAD_TRIAL_S = 2.0
_THREAD_TRIALS = 3
_CLEARLY = 0.9
_TOGETHER = (3, 8)  # tokens in a decode: two draft lengths, with other kernels than one token has
_LIKELY = 64
_COST_CONTEXT_TOK = 192  # context behind each sequence while costs are measured: that of a typical short request


def fingerprint(model: Model) -> str:
    """Digest of a vocabulary: two models can speculate together exactly when theirs are equal."""
    digest = hashlib.sha256()
    for piece in model.raw_pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.hexdigest()


def _require_same_vocabulary(target: Model, draft: Model) -> None:
    if fingerprint(target) == fingerprint(draft):
        return
    if target.n_vocab != draft.n_vocab:
        difference = f"{target.n_vocab} tokens against {draft.n_vocab}"
    else:
        pairs = zip(target.raw_pieces, draft.raw_pieces, strict=True)
        token, (a, b) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        difference = f"token {token} is {a!r} against {b!r}"
    raise ModelError(
        f"target {target.path.name} and draft {draft.path.name} have different vocabularies ({difference}); "
        "a draft must share its target's tokenizer: choose another, or --draft lookup"
    )


class LlamaCpp:
    """llama.cpp in this process, on the CPU."""

    def __init__(
        self,
        target: Path,
        draft: Path | str = LOOKUP,
        n_ctx: int = 2048,
        threads: int | None = None,
        max_batch: int = 1,
    ) -> None:
        """Load models.

        Args:
            target: GGUF file.
            draft: GGUF file of a draft model, or "lookup".
            n_ctx: tokens that a sequence can hold, prompt and output.
            threads: CPU threads; default: whichever of 1 and all processors decodes faster here now, since llama.cpp's
                threads spin at barriers and collapse on a busy machine.
            max_batch: sequences in one decode.

        Raises:
            ModelError: a file cannot be loaded, or the vocabularies differ.
            ConfigError: the context is longer than the model was trained for, or a number is below 1.
        """
        for name, value in (("context", n_ctx), ("threads", threads), ("batch", max_batch)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 but got {value}")
        self._max_batch, self._n_ctx = max_batch, n_ctx
        with ExitStack() as opened:
            self._open(opened, target, None if draft == LOOKUP else Path(draft), threads)
            self._opened = opened.pop_all()

    def _open(self, opened: ExitStack, target: Path, draft: Path | None, threads: int | None) -> None:
        self._target = opened.enter_context(closing(Model(target)))
        trained = self._target.n_ctx_train
        if self._n_ctx > trained:
            raise ConfigError(
                f"context of {self._n_ctx} exceeds the {trained} that {target.name} was trained for; lower --context"
            )
        processors = len(os.sched_getaffinity(0))
        self._threads = threads or processors
        self._context = opened.enter_context(closing(self._new_context(self._target)))
        if threads is None and processors > 1:
            self._threads = self._faster_threads(1, processors)
        self._draft = None if draft is None else opened.enter_context(closing(Model(draft)))
        drafter: Drafter = LookupDrafter(self._target.end_tokens)
        if self._draft is not None:
            _require_same_vocabulary(self._target, self._draft)
            drafter = ModelDrafter(
                opened.enter_context(closing(self._new_context(self._draft))), self._target.end_tokens
            )
        tables = cache(lambda language: category_table(self._target.pieces, language))
        vocabulary = Vocabulary(self._target.pieces, self._target.end_tokens, tables)
        self._speculator = Speculator(self._context, drafter, vocabulary, self._n_ctx, self._context.n_batch)
        self._grammars = Grammars(
            self._target.pieces,
            self._target.control,
            self._target.end_tokens,
            lambda text: self._target.tokenize(text, special=False),
        )

    def _new_context(self, model: Model) -> Context:
        return Context(model, self._n_ctx, self._threads, self._max_batch)

    def close(self) -> None:
        """Free models and memory; the engine cannot be used any more."""
        self._opened.close()

    def _faster_threads(self, fewer: int, more: int) -> int:
        """`more` threads, unless `fewer` decode clearly faster in every trial.

        A neighbour on a shared machine often holds a core for a few seconds: what loses one trial may win the run.
        """
        few = all(self._clearly_faster(fewer, more) for _ in range(_THREAD_TRIALS))
        self._context.set_threads(fewer if few else more)
        return fewer if few else more

    def _clearly_faster(self, fewer: int, more: int) -> bool:
        """Whether `fewer` threads win a trial: medians of one- and eight-token decodes, in turns over two seconds.

        Each turn begins with an untimed decode, since changing the thread count costs one.
        """
        context, tokens = self._context, [0] * 9
        context.prefill(0, tokens[:1])
        seconds: dict[int, list[float]] = {fewer: [], more: []}
        end = time.perf_counter() + _THREAD_TRIAL_S
        while time.perf_counter() < end or min(map(len, seconds.values())) < 8:
            for n, taken in seconds.items():
                context.set_threads(n)
                for timed in (False, True, True, True, True):
                    begin = time.perf_counter()
                    context.decode([(0, 1, tokens[:1])])
                    context.decode([(0, 2, tokens[1:])])
                    if timed:
                        taken.append(time.perf_counter() - begin)
                    context.rollback(0, 1)
        return float(np.median(seconds[fewer])) < _CLEARLY * float(np.median(seconds[more]))

    @property
    def setup(self) -> Setup:
        """What figures measured here depend on."""
        target, draft = self._target, self._draft
        digest = hashlib.sha256(f"{fingerprint(target)} {target.path.stat().st_size}".encode()).hexdigest()[:12]
        return Setup(
            engine="llamacpp",
            version=library_version(),
            target=f"{target.path.name} ({target.description})",
            target_sha=digest,
            draft=LOOKUP if draft is None else f"{draft.path.name} ({draft.description})",
            hardware=processor(),
            threads=self._threads,
        )

    @property
    def capabilities(self) -> Capabilities:
        """All rules; drafts as long as a decode's batch allows."""
        longest = self._context.n_batch // self._max_batch - 1
        return Capabilities(frozenset(RULES), True, self._max_batch, longest, evidence=True, truncates=True)

    def encode(self, prompt: Prompt, workload: str, max_tokens: int, sampling: Sampling) -> Request:
        """Tokenise a prompt; conversations go through the model's chat template."""
        if prompt.prompt is not None:
            text = lexed = prompt.prompt
        else:
            messages = [(message.role, message.content) for message in prompt.messages or ()]
            text, lexed = self._target.chat(messages), ""
        request = Request(
            id=prompt.id,
            tokens=tuple(self._target.tokenize(text)),
            max_tokens=prompt.max_tokens or max_tokens,
            workload=workload,
            language=lexed_language(prompt.language),
            lexed=lexed,
            sampling=sampling,
            grammar=self._grammars.of(prompt) if sampling.constrained else None,
        )
        self._speculator.check_request(request)
        return request

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete requests as one batch; see `Engine.generate`."""
        if not 1 <= len(requests) <= self._max_batch:
            raise ConfigError(f"batch must be 1 to {self._max_batch} requests but got {len(requests)}")
        return self._speculator.run(requests, policy, record)

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end generation."""
        return self._target.end_tokens

    def measure_cost(self, batches: Sequence[int], most: int, seconds: float) -> StepCost:
        """Time decodes of 1..most tokens a sequence at each batch size, for about `seconds` in all.

        Larger batches are measured up to fewer tokens a sequence, down to four: no decode then holds many more tokens
        than the largest at batch 1.
        """
        seconds /= len(batches) + (self._draft is not None)
        curves = {b: self._curve(self._target, b, max(min(4, most), most // b), seconds) for b in batches}
        draft_s = self._curve(self._draft, 1, 1, min(1.0, seconds)).seconds[0] if self._draft else 0.0
        return StepCost(curves, draft_s)

    def _curve(self, model: Model, batch: int, most: int, seconds: float) -> Curve:
        """In a context of its own: those of the engine hold what the loop thinks they hold."""
        with closing(Context(model, _COST_CONTEXT_TOK + most, self._threads, batch)) as context:
            return Curve.from_samples(batch, _decode_seconds(context, batch, most, seconds))

    def logit_gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
        """Logit of `first` minus logit of `second` after prompt and output, and how far logits move by rounding."""
        self._speculator.forget()
        alone = self._logits_after(prompt, output, 1)
        likely = np.argpartition(alone, -_LIKELY)[-_LIKELY:] if len(alone) > _LIKELY else np.arange(len(alone))
        moved = [np.abs(self._logits_after(prompt, output, n) - alone)[likely].max() for n in _TOGETHER]
        return float(alone[first] - alone[second]), float(max(moved))

    def _logits_after(self, prompt: Sequence[int], output: Sequence[int], together: int) -> NDArray[np.float32]:
        """Logits [V] after prompt and output, the output decoded `together` tokens at a time."""
        logits, at = self._context.prefill(0, prompt), len(prompt)
        for start in range(0, len(output), together):
            piece = output[start : start + together]
            logits, at = self._context.decode([(0, at, piece)], last_only=True)[0], at + len(piece)
        return logits.copy()


def _decode_seconds(context: Context, batch: int, most: int, seconds: float) -> NDArray[np.float64]:
    """Seconds of decodes of 1..most tokens for each of `batch` sequences, [rounds, most].

    At least five rounds over all token counts in turn: noise that drifts then spreads over all of them alike.
    """
    filler = (np.arange(_COST_CONTEXT_TOK + most) * 7919 % context.n_vocab).tolist()
    at = _COST_CONTEXT_TOK
    for sequence in range(batch):
        context.prefill(sequence, filler[:at])
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 5 or (time.perf_counter() < end and len(rounds) < 200):
        rounds.append([_timed(context, batch, at, filler[at : at + m]) for m in range(1, most + 1)])
    return np.array(rounds)


def _timed(context: Context, batch: int, at: int, tokens: Sequence[int]) -> float:
    begin = time.perf_counter()
    context.decode([(sequence, at, tokens) for sequence in range(batch)])
    spent = time.perf_counter() - begin
    for sequence in range(batch):
        context.rollback(sequence, at)
    return spent
