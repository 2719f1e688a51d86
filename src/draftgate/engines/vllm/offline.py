"""The engine adapter for vLLM in this process: `draftgate tune --engine vllm` inside vLLM's own environment.

Policies act through the plugin (`plugin.py`), as on a server. What differs from a server:

- prefixes are not cached, so that every arm reads its prompt alike and greedy texts can be compared;
- scheduling is synchronous, so that the seconds of a step are its own.

A policy without drafts caps every request at none, and neither drafter nor verifier gets anything to do. What remains
of speculation is bookkeeping, and the memory of a draft model; docs/vllm.md has the measured difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.cost.steps import StepCost
from draftgate.engines.base import Capabilities, Completion, Request, Sampling, lexed_language
from draftgate.engines.vllm import cost
from draftgate.engines.vllm.asking import extra_arguments, seed_of
from draftgate.engines.vllm.checks import check_batch, check_request, check_sampling
from draftgate.engines.vllm.config import checked, for_draft, require_same_vocabulary
from draftgate.engines.vllm.control import put_policies
from draftgate.engines.vllm.plugin import PLUGIN
from draftgate.engines.vllm.progress import Progress
from draftgate.engines.vllm.start import end_tokens, setup_of, start
from draftgate.engines.vllm.stepper import Stepper
from draftgate.errors import ConfigError, EngineError, require
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from draftgate.policy.rules import RULES
from draftgate.trace.records import RequestRecord, StepRecord
from draftgate.trace.setup import Setup
from draftgate.workload.prompt import Prompt

__all__ = ["VllmOffline"]

_LIKELY = 64
_RING_WORDS = 1 << 22  # steps on their way to the recorder
_TOGETHER = (3, 8)  # tokens read at once: as in a step of two draft lengths


class VllmOffline:
    """vLLM in this process."""

    def __init__(
        self,
        target: str,
        draft: str | Mapping[str, Any] = "ngram",
        most: int = 7,
        n_ctx: int = 2048,
        threads: int | None = None,
        max_batch: int = 8,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load models.

        Args:
            target: folder of a model in Hugging Face's format, or its name there.
            draft: a word (`config.for_draft`), or a whole `speculative_config`.
            most: longest draft, where the word says nothing of it; fixed from then on.
            n_ctx: tokens that a sequence can hold, prompt and output.
            threads: CPU threads; None leaves them as torch has them.
            max_batch: sequences in one step.
            options: other arguments of `vllm.LLM`.

        Raises:
            ConfigError: an argument is wrong, or vLLM refuses the configuration.
            ModelError: a model cannot be read, or vocabularies differ.
            MissingExtraError: vLLM, or what a drafting method needs, is not installed.
            EngineError: the plugin is not active.
        """
        self._speculative = for_draft(draft, most, max_batch) if isinstance(draft, str) else checked(draft)
        require_same_vocabulary(target, self._speculative)
        self._n_ctx, self._max_batch = n_ctx, max_batch
        self._llm = start(target, self._speculative, n_ctx, threads, max_batch, options or {})
        self._stepper = Stepper(self._llm)
        self._tokenizer = self._llm.get_tokenizer()
        self._setup = setup_of(self._llm, self._speculative)
        self._end_tokens = end_tokens(self._llm)
        self._policy: Policy | None = None

    def close(self) -> None:
        """Free models and memory; the engine cannot be used any more."""
        self._llm.llm_engine.engine_core.shutdown()

    @property
    def setup(self) -> Setup:
        """What figures measured here depend on."""
        return self._setup

    @property
    def capabilities(self) -> Capabilities:
        """All rules; drafts up to the length that vLLM was started with, and no evidence for any."""
        longest: int = self._speculative["num_speculative_tokens"]
        return Capabilities(frozenset(RULES), True, self._max_batch, longest, evidence=False, truncates=False)

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end generation."""
        return self._end_tokens

    def encode(self, prompt: Prompt, workload: str, max_tokens: int, sampling: Sampling) -> Request:
        """Tokenise a prompt; conversations go through the model's chat template."""
        check_sampling(sampling)
        request = Request(
            id=prompt.id,
            tokens=tuple(self._encoded(prompt)),
            max_tokens=prompt.max_tokens or max_tokens,
            workload=workload,
            language=lexed_language(prompt.language),
            lexed=prompt.prompt or "",
            sampling=sampling,
        )
        check_request(request, self._n_ctx)
        return request

    def _encoded(self, prompt: Prompt) -> list[int]:
        if prompt.prompt is not None:
            tokens: list[int] = self._tokenizer.encode(prompt.prompt)
            return tokens
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages or ()]
        try:
            tokens = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        except ValueError as error:
            raise ConfigError(f"prompt '{prompt.id}': the model cannot take a conversation: {error}") from error
        return tokens

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete requests as one batch; see `Engine.generate`."""
        check_batch(requests, policy, self._n_ctx, self._max_batch, self.capabilities.max_draft)
        self._put(policy)
        if not record:
            return [p.completion(self._text(p.tokens), p.steps()) for p in self._run(requests)]
        with _recorded() as pairs:
            running = self._run(requests)
        if len(pairs) != len(running):
            raise EngineError(f"the plugin recorded {len(pairs)} of {len(running)} requests: {PLUGIN.status()}")
        pairs.sort(key=lambda pair: pair[0].request)  # numbered in the order they started
        return [p.completion(self._text(p.tokens), steps) for p, (_, steps) in zip(running, pairs, strict=True)]

    def _run(self, requests: Sequence[Request]) -> list[Progress]:
        running = {self._stepper.add(r.tokens, _params(r)): Progress(r) for r in requests}
        for tick in self._stepper.ticks():
            for name, progress in running.items():
                progress.take(tick, tick.news.get(name))
        return list(running.values())

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def _put(self, policy: Policy) -> None:
        if policy != self._policy:
            put_policies(self._llm, PolicySet((policy,), policy.name))
            self._policy = policy

    def measure_cost(self, batches: Sequence[int], most: int, seconds: float) -> StepCost:
        """Time steps of 1..most verified tokens a sequence at each batch size; see `cost.measure`."""
        most = min(most, self.capabilities.max_draft + 1)
        fitting = [b for b in batches if b <= self._max_batch]
        return cost.measure(self._stepper, self._start, self._limit, fitting, most, seconds)

    def _start(self, tokens: Sequence[int], output: int) -> str:
        return self._stepper.add(tokens, _sampling_params(max_tokens=output, ignore_eos=True))

    def _limit(self, k: int) -> None:
        self._put(Policy(f"cost-k{k}", length=Fixed(k)))

    def logit_gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
        """Logit of `first` minus logit of `second` after prompt and output, and how far logits move by rounding.

        vLLM gives log-probabilities: their difference is that of the logits, and so, nearly, is how far they move.
        """
        alone = self._logprobs(prompt, output, 1)
        likely = np.argpartition(alone, -_LIKELY)[-_LIKELY:] if len(alone) > _LIKELY else np.arange(len(alone))
        moved = [np.abs(self._logprobs(prompt, output, n) - alone)[likely].max() for n in _TOGETHER]
        return float(alone[first] - alone[second]), float(max(moved))

    def _logprobs(self, prompt: Sequence[int], output: Sequence[int], together: int) -> NDArray[np.float64]:
        """Log-probabilities [V] after prompt and output, the output read `together` tokens at a time."""
        name = self._stepper.add([*prompt, *output], _sampling_params(max_tokens=1, logprobs=-1, flat_logprobs=True))
        ticks = self._stepper.ticks()
        with self._stepper.pieces(len(prompt)):
            seen = [next(ticks)]
        with self._stepper.pieces(together):
            seen += ticks
        found = seen[-1].news[name].logprobs
        return np.array([found[token] for token in range(len(found))])


@contextmanager
def _recorded() -> Iterator[list[tuple[RequestRecord, Sequence[StepRecord]]]]:
    """Record what runs meanwhile, every request with the target's scores of its drafted tokens."""
    pairs: list[tuple[RequestRecord, Sequence[StepRecord]]] = []
    PLUGIN.record(lambda _, ended: pairs.extend(ended), words=_RING_WORDS)
    try:
        yield pairs
    finally:
        PLUGIN.stop_recording()


def _params(request: Request) -> Any:
    s = request.sampling
    return _sampling_params(
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        max_tokens=request.max_tokens,
        seed=seed_of(request),
        extra_args=extra_arguments(request),
    )


def _sampling_params(**given: Any) -> Any:
    vllm = require("vllm", "vllm")
    delta = require("vllm.sampling_params", "vllm").RequestOutputKind.DELTA
    return vllm.SamplingParams(**{"temperature": 0.0, "detokenize": False, "output_kind": delta} | given)
