"""The engine adapter for a running vLLM server: `draftgate bench --engine vllm --url http://host:port`.

Every request says which policy it wants (`vllm_xargs`), so other traffic on the server keeps its own. Two things that
vLLM in this process offers are not to be had over HTTP: drafts cannot be forced to a length, and the scores of drafted
tokens stay in the trace that the server writes. So arms can be compared live, and `draftgate replay` predicts from that
trace, but `tune` needs the engine in its own process.

Conversations are tokenised by the server's /tokenize, with its chat template, and all prompts then go to
/v1/completions as token ids: every arm reads the very same tokens.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from draftgate.cost.steps import StepCost
from draftgate.engines.base import Capabilities, Completion, Request, Sampling, lexed_language
from draftgate.engines.vllm import ties
from draftgate.engines.vllm.asking import extra_arguments, seed_of
from draftgate.engines.vllm.checks import check_batch, check_request, check_sampling
from draftgate.engines.vllm.client import Client, NotThere
from draftgate.engines.vllm.metrics import read_counters
from draftgate.engines.vllm.streamed import Streamed
from draftgate.errors import ConfigError, EngineError, MissingExtraError, nearest
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.policyset import PolicySet, dump, parse
from draftgate.policy.rules import RULES
from draftgate.trace.setup import Setup
from draftgate.workload.prompt import Prompt

__all__ = ["VllmServer"]

_ARM = "draftgate-arm"  # the policy of our requests
_ENGINE = "engine"  # the policy of other requests where none was in force: vLLM's own rule and draft length


class VllmServer:
    """A vLLM server that speaks HTTP."""

    def __init__(self, client: Client, model: str | None = None, max_batch: int = 8) -> None:
        """Look at a server.

        Args:
            model: name of a served model; None takes the first.
            max_batch: requests to send at once.

        Raises:
            ConfigError: the server has no draftgate plugin, does not speculate, or serves no such model.
            EngineError: it cannot be reached.
        """
        self._client, self._max_batch = client, max_batch
        self._model, self._n_ctx = _served(client, model)
        self._status = _status(client, self._model)
        self._before = self._status["policy"] and parse(self._status["policy"])
        self._policy: Policy | None = None
        self._ends: set[int] = set()

    def close(self) -> None:
        """Put the server's policies back in force as they were found."""
        if self._policy is not None:
            self._put_set(self._others())
            self._policy = None

    @property
    def setup(self) -> Setup:
        """What figures measured here depend on, as far as the server tells."""
        spec, version = self._status["speculation"], self._client.get("/version")["version"]
        draft = f"{spec['method']} (num_speculative_tokens {spec['most_tok']})"
        return Setup("vllm-http", version, self._model, "", draft, self._client.url, None)

    @property
    def capabilities(self) -> Capabilities:
        """All rules, and drafts up to the length that the server was started with."""
        longest: int = self._status["speculation"]["most_tok"]
        return Capabilities(frozenset(RULES), False, self._max_batch, longest, evidence=False, truncates=False)

    @property
    def end_tokens(self) -> frozenset[int]:
        """End tokens seen so far: a server does not list them."""
        return frozenset(self._ends)

    def encode(self, prompt: Prompt, workload: str, max_tokens: int, sampling: Sampling) -> Request:
        """Have the server tokenise a prompt, through its chat template if it is a conversation."""
        check_sampling(sampling)
        if prompt.prompt is not None:
            body: dict[str, Any] = {"prompt": prompt.prompt}
        else:
            messages = [{"role": m.role, "content": m.content} for m in prompt.messages or ()]
            body = {"messages": messages, "add_generation_prompt": True}
        answer = self._client.send("POST", "/tokenize", {"model": self._model, **body})
        request = Request(
            id=prompt.id,
            tokens=tuple(answer["tokens"]),
            max_tokens=prompt.max_tokens or max_tokens,
            workload=workload,
            language=lexed_language(prompt.language),
            lexed=prompt.prompt or "",
            sampling=sampling,
        )
        check_request(request, self._n_ctx)
        return request

    def generate(self, requests: Sequence[Request], policy: Policy, record: bool = False) -> list[Completion]:
        """Complete requests at the same time; see `Engine.generate`.

        Raises:
            ConfigError: `record`: the scores of drafted tokens are in the server's own trace.
        """
        if record:
            raise ConfigError(
                "over HTTP nothing is recorded: start the server with DRAFTGATE_TRACE=folder and read that trace, or "
                "run vLLM in this process, without --url"
            )
        check_batch(requests, policy, self._n_ctx, self._max_batch, self.capabilities.max_draft)
        self._put(policy)
        with ThreadPoolExecutor(len(requests)) as pool:
            done = list(pool.map(lambda request: self._complete(request, len(requests)), requests))
        self._ends |= {d.tokens[-1] for d in done if d.finish == "stop"}
        return done

    def _put(self, policy: Policy) -> None:
        """Put a policy in force for our requests, again each time: others can change a server's policies too."""
        others = self._others()
        arm = replace(policy, name=_ARM)
        self._put_set(PolicySet((*others.policies, arm), others.default, others.workloads))
        self._policy = policy

    def _others(self) -> PolicySet:
        """What serves everybody else."""
        if self._before is not None:
            return self._before
        own = Policy(_ENGINE, "lossless", length=Fixed(self.capabilities.max_draft))
        return PolicySet((own,), _ENGINE)

    def _put_set(self, policies: PolicySet) -> None:
        answer = self._client.send("PUT", "/draftgate/policy", dump(policies))
        if answer["digest"] != policies.digest():
            raise EngineError(f"{self._client.url}: other policies are in force than were sent; does a file rule it?")

    def _complete(self, request: Request, batch: int) -> Completion:
        streamed = Streamed(request, batch, time.perf_counter())
        for event in self._client.events("/v1/completions", self._body(request)):
            streamed.take(event, time.perf_counter())
        return streamed.completion()

    def _body(self, request: Request) -> Mapping[str, Any]:
        s = request.sampling
        return {
            "model": self._model,
            "prompt": list(request.tokens),
            "max_tokens": request.max_tokens,
            "temperature": s.temperature,
            "top_k": s.top_k,
            "top_p": s.top_p,
            "seed": seed_of(request),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "vllm_xargs": extra_arguments(request) | {"draftgate_policy": _ARM},
        }

    def measure_cost(self, batches: Sequence[int], most: int, seconds: float) -> StepCost:
        """Not possible over HTTP.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "step costs cannot be measured over HTTP, where drafts cannot be forced to a length; run vLLM in this "
            "process, without --url, or compare arms with 'draftgate bench'"
        )

    def logit_gap(self, prompt: Sequence[int], output: Sequence[int], first: int, second: int) -> tuple[float, float]:
        """Logit of `first` minus logit of `second` after prompt and output, and how far logits move; see `ties.gap`."""
        self._put(NONE)

        def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
            common = {"model": self._model, "temperature": 0.0, "vllm_xargs": {"draftgate_policy": _ARM}}
            choice: Mapping[str, Any] = self._client.send("POST", "/v1/completions", {**common, **body})["choices"][0]
            return choice

        return ties.gap(ask, prompt, output, first, second)


def _served(client: Client, model: str | None) -> tuple[str, int]:
    """Name and context length of a served model."""
    models = {m["id"]: m for m in client.get("/v1/models")["data"]}
    name = next(iter(models)) if model is None else model
    if name not in models:
        raise ConfigError(f"{client.url} does not serve '{name}'; {nearest(name, models)}")
    return name, models[name]["max_model_len"]


def _status(client: Client, model: str) -> dict[str, Any]:
    """What the plugin says of the server.

    Raises:
        ConfigError: it is not there, or the server does not speculate.
    """
    try:
        status: dict[str, Any] = client.get("/draftgate/status")
    except NotThere:
        raise ConfigError(
            f"{client.url} runs without draftgate{_own_acceptance(client, model)}. Without it no other arm can be "
            "put in force: install draftgate in the server's environment and start it with VLLM_PLUGINS=draftgate"
        ) from None
    if not status["speculation"]["most_tok"]:
        raise ConfigError(f"{client.url} was started without speculation; give it a --speculative-config")
    return status


def _own_acceptance(client: Client, model: str) -> str:
    """What can be said of a server without the plugin: the acceptance of its own setting, since it started."""
    try:
        found = read_counters(client.text("/metrics"), model).acceptance()
    except (EngineError, MissingExtraError):
        return ""
    if found is None:
        return " and without speculation"
    rate = "unknown" if found.rate is None else f"{found.rate:.0%}"
    return f"; its own setting accepts {rate} of the drafted tokens over {found.drafts} drafts so far"
