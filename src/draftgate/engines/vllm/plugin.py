"""The plugin that vLLM loads into each of its processes (entry point group `vllm.general_plugins`).

It wraps the functions in `hooks.HOOKS`, and those of control.py, and does nothing else until there is something to do:
a policy, from the file that DRAFTGATE_POLICY names or from an order, or a trace to record. Then samplers apply the
policies' rules row by row (sampler.py, v2.py), the scheduler cuts drafts to their lengths (lengths.py), and steps are
recorded (recording.py).

    DRAFTGATE_POLICY          policy file to follow
    DRAFTGATE_UNKNOWN         "refuse": a request that names no policy in force is an error; else the default serves it
    DRAFTGATE_TRACE           folder to record into, one trace for each kind of request
    DRAFTGATE_TRACE_SHARE     share of requests to record; 1 if not set
    DRAFTGATE_TRACE_MB        host memory for steps on their way to the disk; 64 if not set

Whatever fails leaves vLLM's own behaviour, is logged once and counted; `Plugin.status` has the counts.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from draftgate.engines.vllm import control, cpu_fix
from draftgate.engines.vllm.admission import refusing
from draftgate.engines.vllm.hooks import HOOKS, READ_IN, Faults, Function, Wrapper, instead, observed, problem, wrap
from draftgate.engines.vllm.lengths import Lengths
from draftgate.engines.vllm.recording import Recording, keeps_traces, recording_of
from draftgate.engines.vllm.rows import unfit
from draftgate.engines.vllm.sampler import Runner, RunnerV1
from draftgate.engines.vllm.source import SOURCE
from draftgate.engines.vllm.tables import PolicyTables, category_tables
from draftgate.engines.vllm.tracing import Recorder, Sink
from draftgate.engines.vllm.v2 import RunnerV2
from draftgate.engines.vllm.vocabulary import token_pieces
from draftgate.policy.policyset import PolicySet

__all__ = ["PLUGIN", "SLOTS", "Plugin", "register"]

SLOTS = 16  # policies in force at once

# What is called beside a model runner before and after its methods, by hook.
_BESIDE: Mapping[str, tuple[str | None, str | None]] = {
    "v1.execute": ("begin", None),
    "v1.sample": ("rows", "sampled"),
    "v1.draft": ("drafting", "drafted"),
    "v2.execute": ("begin", None),
    "v2.sample": ("rows", "sampled"),
    "v2.tokens": (None, "drafted"),
}


class Plugin:
    """What one process of vLLM has of draftgate.

    Attributes:
        faults: what failed.
        missing: hooks that this vLLM does not offer, and why.
        runners: what belongs to each model runner of the process.
        cpu_sampling: what was found about the sampling bug of vLLM's CPU build.
    """

    def __init__(self) -> None:
        self.log = logging.getLogger("vllm.draftgate")  # a child of vLLM's logger, so it shows where vLLM's log does
        self.faults = Faults(self.log)
        self.missing: dict[str, str] = {}
        self.runners: WeakKeyDictionary[Any, Runner] = WeakKeyDictionary()
        self.cpu_sampling = "not looked at"
        self.installed = False
        self._running: Runner | None = None  # whose step it is: steps of one process do not overlap

    def install(self) -> None:
        """Wrap what can be wrapped, and say so in one line."""
        self.cpu_sampling = "bug seen, worked around" if cpu_fix.repair() else "sound"
        for name, wrapper in self._wrappers().items():
            if why := problem(HOOKS[name]):
                self.missing[name] = why
                self.faults.note(name, why)
            else:
                wrap(HOOKS[name], wrapper)
        self.missing |= control.install(self.faults)
        SOURCE.check, SOURCE.report = self._unfit, self.status
        SOURCE.cannot_limit = self.missing.get("schedule") or self.missing.get("schedule.drafts")
        self.log.info("draftgate: %s", self._line())

    def _wrappers(self) -> Mapping[str, Wrapper]:
        lengths, faults = Lengths(SOURCE), self.faults
        return {
            "v1.init": self._made("v1.init", RunnerV1),
            "v2.init": self._made("v2.init", RunnerV2),
            "v1.rule": instead("v1.rule", faults, self._verify),
            "v2.rule": instead("v2.rule", faults, self._verify),
            **{name: self._beside(name, *methods) for name, methods in _BESIDE.items()},
            "schedule": observed("schedule", faults, before=lengths.drafting),
            "schedule.async": observed(
                "schedule.async", faults, before=lambda *args: args, after=lambda _, args: lengths.placeholders(*args)
            ),
            "schedule.drafts": observed("schedule.drafts", faults, before=lengths.drafts),
            "request": refusing(faults, SOURCE),
        }

    def _made(self, name: str, kind: type[Runner]) -> Wrapper:
        """Wrapper of a model runner's `__init__` that makes what belongs beside it."""

        def made(_: Any, runner: Any) -> None:
            config = runner.vllm_config
            if config.speculative_config is None:
                return  # nothing drafts, so there is nothing to do
            tables = PolicyTables(runner.device, SLOTS)
            state = self.runners[runner] = kind(runner, SOURCE, tables)
            try:
                tables.load_categories(category_tables(_pieces(config.model_config)))
            except Exception as error:  # tokenizers are of many kinds; policies without classes need none
                self.faults.note("token classes", error)
            state.recording = recording_of(config, tables.device, self.faults)

        return observed(name, self.faults, before=lambda runner, *_, **__: runner, after=made)

    def _beside(self, name: str, before: str | None, after: str | None) -> Wrapper:
        """Wrapper of a model runner's method that calls methods of what belongs beside it."""

        def enter(runner: Any, *args: Any, **kwargs: Any) -> Runner | None:
            self._running = state = self.runners.get(runner)
            if state is not None and before:
                getattr(state, before)(*args, **kwargs)
            return state

        def leave(result: Any, state: Runner | None) -> None:
            if state is not None and after:
                getattr(state, after)(result)

        return observed(name, self.faults, before=enter, after=leave)

    def _verify(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        return self._running.verify(original, *args, **kwargs) if self._running else original(*args, **kwargs)

    def _unfit(self, policies: PolicySet) -> str | None:
        """Why this process cannot serve a set; None when it can."""
        if any(policy.category for policy in policies.policies):
            for state in self.runners.values():
                if not state.classifies:
                    return "category: the classes of this tokenizer's tokens could not be read (see the server's log)"
        return unfit(policies, SLOTS)

    def record(self, sink: Sink, share: float = 1.0, words: int = 2**24) -> None:
        """Record a share of the requests that start from now on, in the model runners of this process."""
        for runner, state in self.runners.items():
            recorder = Recorder(sink, runner.device, words, self.faults) if keeps_traces() else None
            state.recording = Recording(recorder, share, runner.max_model_len)

    def stop_recording(self, timeout_s: float = 60.0) -> None:
        """Stop, after what has ended was handed to the sink."""
        for state in self.runners.values():
            recording, state.recording = state.recording, None
            if recording and recording.recorder:
                recording.recorder.close(timeout_s)

    def status(self) -> dict[str, Any]:
        """What is going on in this process, as plain values."""
        return {
            "hooks": {name: self.missing.get(name, "ok") for name in (*HOOKS, *control.HOOKS)},
            "cpu_sampling": self.cpu_sampling,
            "faults": dict(self.faults.counts),
            "first_fault": dict(self.faults.first),
            "runners": [state.status() for state in self.runners.values()],
        }

    def _line(self) -> str:
        wrapped = len(HOOKS) + len(control.HOOKS) - len(self.missing)
        parts = (
            _version(),
            f"{wrapped} hooks, {'; '.join(self.missing.values()) or 'none missing'}",
            f"CPU sampling: {self.cpu_sampling}",
            f"policy file: {os.environ.get(control.FILE_ENV, 'none yet')}",
            f"trace: {os.environ.get('DRAFTGATE_TRACE', 'off')}",
        )
        return "; ".join(parts)


def _version() -> str:
    import vllm

    version: str = vllm.__version__
    return f"vLLM {version}" if version.startswith(f"{READ_IN}.") else f"vLLM {version} (written for {READ_IN})"


def _pieces(model: Any) -> list[bytes]:
    from vllm.tokenizers import cached_tokenizer_from_config

    return token_pieces(cached_tokenizer_from_config(model), model.get_vocab_size())


PLUGIN = Plugin()
"""The one of this process."""


def register() -> None:
    """The entry point: installs the plugin, once in a process, and never raises."""
    if PLUGIN.installed:
        return
    PLUGIN.installed = True
    try:
        PLUGIN.install()
    except Exception as error:  # whatever it is, vLLM must start
        PLUGIN.faults.note("register", error)
