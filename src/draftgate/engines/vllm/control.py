"""Run-time control inside vLLM: what is in force is read and changed between two steps, on every rank at once.

Only the engine core decides. It watches the policy file, takes orders, and passes both to its workers through vLLM's
own `collective_rpc`, which runs between two steps on all ranks. A worker that watched the file by itself would switch a
step before or after another rank, and tensor-parallel ranks that keep different tokens no longer write the same text.

An order is a call of `collective_rpc("draftgate", args=(verb, value))`, which `LLM` and the server's engine client both
offer. Its reply holds plain values, refusals included: nothing here raises into vLLM.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from draftgate.control.channel import Channel
from draftgate.engines.vllm.hooks import Faults, Hook, observed, problem, wrap
from draftgate.engines.vllm.lengths import reach
from draftgate.engines.vllm.source import SOURCE
from draftgate.errors import ConfigError, EngineError
from draftgate.policy.policyset import PolicySet, dump, parse

__all__ = [
    "FILE_ENV",
    "HOOKS",
    "METHOD",
    "POLL_S",
    "Control",
    "install",
    "limit_drafts",
    "put_policies",
    "result",
    "status",
]

FILE_ENV = "DRAFTGATE_POLICY"  # names the policy file
METHOD = "draftgate"  # what orders call
POLL_S = 0.1

_LOG = logging.getLogger("vllm.draftgate")  # as the plugin's: a child of vLLM's logger

HOOKS = {
    "control.order": Hook(
        "vllm.v1.engine.core",
        "EngineCore.collective_rpc",
        ("self", "method", "timeout", "args", "kwargs"),
        "reading and changing policies at run time",
    ),
    "control.step": Hook("vllm.v1.engine.core", "EngineCore.step", ("self",), "watching the policy file"),
    "control.queue": Hook(
        "vllm.v1.engine.core", "EngineCore.step_with_batch_queue", ("self",), "watching the policy file"
    ),
}


class Control:
    """One engine core's policies: follows the file, obeys orders, keeps its ranks alike.

    Args:
        core: vLLM's `EngineCore`.
        path: the policy file to follow; None follows none.
    """

    def __init__(self, core: Any, path: Path | None) -> None:
        self._core = core
        self._channel = None if path is None else Channel(path)
        self._next_s = 0.0
        self._refused: str | None = None  # why a set that the file holds is not in force
        self._told: str | None = None  # what the log says of the file

    def before_step(self) -> None:
        """Take what the file has new, looking at most every `POLL_S`."""
        if self._channel is None or (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + POLL_S
        if (policies := self._channel.poll()) is not None:
            unfit = self._unfit(policies)
            self._refused = unfit and f"{self._channel.path}: {unfit}"
            if unfit is None:
                self._put(policies, SOURCE.limit_tok)
                _LOG.info("draftgate: %s: policies %s are in force", self._channel.path, policies.digest())
        self._tell(self._channel.error or self._refused)

    def _tell(self, error: str | None) -> None:
        """Log what is wrong with the file, once each time that it changes."""
        if error and error != self._told:
            kept = "vLLM's own rule" if SOURCE.current is None else f"policies {SOURCE.current.digest()}"
            _LOG.error("draftgate: %s; %s stays in force", error, kept)
        self._told = error

    def order(self, verb: str, value: Any = None) -> dict[str, Any]:
        """Obey one order and say what is in force then.

        Args:
            verb: "status"; "policy", with a policy set as `policyset.dump` gives it; "limit", with the longest draft or
                None.
            value: what the verb needs.

        Returns:
            `digest` and `policy` in force, `speculation`, `file`, and what each of the `ranks` reports. An order that
            was not obeyed has `refused` when the value is wrong, `cannot` when this engine is not able to; then nothing
            has changed. `speculation.drafter` says why the drafter spends more than shorter drafts need, if it does.
        """
        self.before_step()  # an idle engine takes none
        try:
            return self._obey(verb, value) | self._state()
        except ConfigError as error:
            return {"refused": str(error)} | self._state()

    def _obey(self, verb: str, value: Any) -> dict[str, Any]:
        if verb == "policy":
            policies = parse(value)
            if refused := self._unfit(policies):
                return {"refused": refused}
            self._put(policies, SOURCE.limit_tok)
        if verb == "limit":
            if cannot := self._cannot_limit():
                return {"cannot": cannot}
            self._put(SOURCE.current, self._limit(value))
        return {}

    def _limit(self, value: Any) -> int | None:
        if value is None:
            return None
        if type(value) is not int or not 0 <= value <= self._most_tok:
            raise ConfigError(f"k must be a whole number in [0, {self._most_tok}], what the server started with")
        return value

    @property
    def _most_tok(self) -> int:
        spec = self._core.vllm_config.speculative_config
        return 0 if spec is None else int(spec.num_speculative_tokens)

    def _cannot_limit(self) -> str | None:
        if self._most_tok == 0:
            return "the server was started without speculative decoding: start it with --speculative-config"
        return SOURCE.cannot_limit

    def _unfit(self, policies: PolicySet) -> str | None:
        """Why this core or one of its ranks cannot serve a set; None when all can."""
        checks = [SOURCE.check(policies), *self._ranks(_check_rank, policies)]
        return next((why for why in checks if why), None)

    def _put(self, policies: PolicySet | None, limit_tok: int | None) -> None:
        self._ranks(_put_rank, policies, limit_tok)
        SOURCE.set(policies, limit_tok)  # for the scheduler; a worker in this process has just set the same

    def _ranks(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function of this module on every rank, between two steps."""
        replies: list[Any] = self._core.model_executor.collective_rpc(function, args=args)
        return replies

    def _state(self) -> dict[str, Any]:
        policies, limit_tok = SOURCE.current, SOURCE.limit_tok
        spec = self._core.vllm_config.speculative_config
        return {
            "digest": None if policies is None else policies.digest(),
            "policy": None if policies is None else dump(policies),
            "speculation": {
                "method": None if spec is None else str(spec.method),
                "most_tok": self._most_tok,
                "limit_tok": limit_tok,
                "on": self._most_tok > 0 and limit_tok != 0,
                "cannot": self._cannot_limit(),
                "drafter": None if spec is None else reach(self._core.scheduler).reason or None,
            },
            "file": self._file(),
            "ranks": self._ranks(_report_rank),
        }

    def _file(self) -> dict[str, Any] | None:
        if self._channel is None:
            return None
        error = self._channel.error or self._refused
        return {"path": str(self._channel.path), "error": error, "refused": self._channel.refused}


def _check_rank(worker: Any, policies: PolicySet) -> str | None:
    return SOURCE.check(policies)


def _put_rank(worker: Any, policies: PolicySet | None, limit_tok: int | None) -> None:
    SOURCE.set(policies, limit_tok)


def _report_rank(worker: Any) -> dict[str, Any]:
    digest = None if SOURCE.current is None else SOURCE.current.digest()
    return {"rank": worker.rank, "digest": digest, "limit_tok": SOURCE.limit_tok} | SOURCE.report()


def _control(core: Any) -> Control:
    if not hasattr(core, "draftgate"):
        path = os.environ.get(FILE_ENV)
        core.draftgate = Control(core, Path(path) if path else None)
    control: Control = core.draftgate
    return control


def install(faults: Faults) -> dict[str, str]:
    """Hook the engine core; call it before one is made. Returns, by hook, what could not be hooked and why."""

    def orders(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def collective_rpc(
            self: Any, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if method != METHOD:
                return original(self, method, timeout, args, kwargs)
            try:
                return [_control(self).order(*args)]
            except Exception as error:  # a plugin must not raise into the engine
                faults.note("control.order", error)
                return [{"failed": f"{type(error).__name__}: {error}"}]

        return collective_rpc

    step = observed("control.step", faults, before=lambda core: _control(core).before_step())
    missing = {name: why for name, hook in HOOKS.items() if (why := problem(hook))}
    for name, wrapper in (("control.order", orders), ("control.step", step), ("control.queue", step)):
        if name not in missing:
            wrap(HOOKS[name], wrapper)
    return missing


def result(replies: list[Any]) -> dict[str, Any]:
    """The reply to an order.

    Raises:
        ConfigError: the value was refused.
        EngineError: this engine cannot do it, or failed.
    """
    reply: dict[str, Any] = replies[0]
    if "refused" in reply:
        raise ConfigError(reply["refused"])
    for key in ("cannot", "failed"):
        if key in reply:
            raise EngineError(reply[key])
    return reply


def status(llm: Any) -> dict[str, Any]:
    """What is in force in a `vllm.LLM`; see `Control.order`.

    Raises:
        EngineError: the plugin is not loaded there.
    """
    return _offline(llm, "status", None)


def put_policies(llm: Any, policies: PolicySet) -> dict[str, Any]:
    """Put a policy set in force in a `vllm.LLM`, from its next step on.

    Raises:
        ConfigError: the engine cannot serve this set.
        EngineError: the plugin is not loaded there.
    """
    return _offline(llm, "policy", dump(policies))


def limit_drafts(llm: Any, limit_tok: int | None) -> dict[str, Any]:
    """Bound the drafts of a `vllm.LLM` whatever its policies say: 0 is speculation off, None no bound.

    Raises:
        ConfigError: more than the engine was started with, or less than 0.
        EngineError: this engine cannot; the message says why.
    """
    return _offline(llm, "limit", limit_tok)


def _offline(llm: Any, verb: str, value: Any) -> dict[str, Any]:
    try:
        replies = llm.collective_rpc(METHOD, args=(verb, value))
    except Exception as error:  # vLLM's answers to an unknown method differ by executor
        raise EngineError(f"the engine does not know draftgate; is its plugin loaded? ({error})") from error
    return result(replies)
