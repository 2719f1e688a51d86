"""What of a running engine goes into a trace: which requests, what is known of them, and the columns of their drafts.

A replay needs requests of one kind, so a folder holds a trace for each: `greedy` and `sampled`, and the same with
`-lossy` for those that a lossy policy served, whose text is not the target's own.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftgate.engines.hardware import processor
from draftgate.engines.vllm.hooks import Faults
from draftgate.engines.vllm.ring import Mark
from draftgate.engines.vllm.rows import policy_of
from draftgate.engines.vllm.tracing import Part, Recorder, Row, Sink
from draftgate.engines.vllm.transcript import Begun, Ending
from draftgate.engines.vllm.verify import Record
from draftgate.errors import ConfigError
from draftgate.policy.category import Category
from draftgate.policy.policyset import PolicySet
from draftgate.trace.setup import Setup
from draftgate.trace.store import TraceStore

__all__ = ["Recording", "columns", "keeps_traces", "recording_of", "trace_setup"]

_OPEN = (2.0**-126, 1 - 2.0**-24)  # float32 can round a draw to 0 or 1
_CLOSE_S = 10.0
_KINDS = ("greedy", "greedy-lossy", "sampled", "sampled-lossy")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")


class Recording:
    """Chooses requests and hands their steps to a recorder.

    Every rank has one, because what is recorded decides which code verifies a step; only the first has a recorder.
    """

    def __init__(self, recorder: Recorder | None, share: float, max_model_len: int) -> None:
        """Record a share of all requests."""
        self.recorder = recorder
        self._share, self._longest = share, max_model_len
        # A trace may hold requests of an earlier run: numbers from the time of the start are above theirs.
        self._numbers = count(time.time_ns() // 1_000_000 << 20)
        self._recorded: set[str] = set()

    def follow(self, scheduled: Any, policies: PolicySet | None) -> None:
        """Note who comes and goes with a step.

        Args:
            scheduled: vLLM's SchedulerOutput.
            policies: those in force; without any, nothing new is recorded.
        """
        over = self._recorded.intersection(scheduled.finished_req_ids)
        self._recorded -= over
        if over and self.recorder:
            self.recorder.end(list(over))
        for new in scheduled.scheduled_new_reqs:
            if policies is None or new.prompt_token_ids is None or not _chosen(new.req_id, self._share):
                continue
            self._recorded.add(new.req_id)
            if self.recorder:
                self.recorder.begin(new.req_id, self._begun(new, policies))

    def wants(self, requests: Sequence[str]) -> bool:
        """Whether any of these is recorded."""
        return not self._recorded.isdisjoint(requests)

    def keep(
        self,
        requests: Sequence[str],
        drafted: Sequence[int],
        discarded: NDArray[np.bool_],
        sampled: torch.Tensor,
        fields: Sequence[torch.Tensor],
        draft: tuple[Mark, Mark] | None,
        verify: tuple[Mark, Mark],
    ) -> None:
        """Hand over a step.

        Args:
            requests: request ids by row [R].
            drafted: drafted tokens by row [R].
            discarded: rows that only read a part of the prompt [R].
            sampled: what the sampler returned [R, K + 1].
            fields: `columns` of the drafted tokens; none when there are none.
            draft: marks around the drafting of these tokens.
            verify: marks around the step.
        """
        if self.recorder is None:
            return
        starts = np.cumsum(drafted) - drafted
        rows = [
            Row(name, i, int(starts[i]), drafted[i], bool(discarded[i]))
            for i, name in enumerate(requests)
            if name in self._recorded
        ]
        self.recorder.step(Part(rows, fields, sampled, len(requests), draft, verify))

    def _begun(self, new: Any, policies: PolicySet) -> Begun:
        params = new.sampling_params
        policy, ask, _ = policy_of(policies, params.extra_args)
        ends = set(params.stop_token_ids or ()) | ({params.eos_token_id} - {None})
        prompt = np.array(new.prompt_token_ids, np.int32)
        kind = "sampled" if params.temperature else "greedy"
        return Begun(
            kind=kind if policy.lossless else f"{kind}-lossy",
            request=next(self._numbers),
            prompt_id=ask.prompt or new.req_id,
            workload=ask.workload or "",
            language=ask.language,
            policy=policy.name,
            prompt_tokens=prompt,
            sampling=_sampling(params),
            ending=Ending(frozenset(ends), min(params.max_tokens or self._longest, self._longest - len(prompt))),
        )


def _sampling(params: Any) -> Mapping[str, Any]:
    """As `engines.base.Sampling`, with the limit; vLLM's seed may be None."""
    found = {name: getattr(params, name) for name in _SAMPLING}
    return found | {"top_k": max(found["top_k"], 0)}


def _chosen(request: str, share: float) -> bool:
    """Whether a request is in the recorded share; the same on every rank."""
    return zlib.crc32(request.encode()) < share * 2**32


def columns(record: Record, tokens: torch.Tensor, drawn: bool) -> list[torch.Tensor]:
    """Device vectors [N] in the order of `DRAFTED_TYPES`.

    Args:
        record: what the verification says.
        tokens: the drafted tokens as they came, padding included.
        drawn: whether the drafter gave probabilities; they then are its evidence, else it has none (NaN).
    """
    s = record.scores
    q = torch.ones_like(s.p) if s.q is None else s.q
    logp = s.p.log()
    category = record.category
    return [
        tokens.int(),
        (q if drawn else torch.full_like(q, torch.nan)).float(),
        torch.full_like(tokens, Category.OTHER).int() if category is None else category.int(),
        logp.float(),
        q.log().float(),
        (s.top.log() - logp).float(),
        s.rank.int(),
        s.entropy.float(),
        record.uniform.float().clamp(*_OPEN),
    ]


def trace_setup(config: Any) -> Setup:
    """The setup of a server's trace, from its VllmConfig."""
    import vllm

    model, spec = config.model_config, config.speculative_config
    described = model.hf_config.to_json_string() + str(model.dtype)
    return Setup(
        engine="vllm",
        version=vllm.__version__,
        target=str(model.model),
        target_sha=hashlib.sha256(described.encode()).hexdigest()[:12],
        draft=f"{spec.method}: {spec.model}" if spec.model else str(spec.method),
        hardware=processor() if config.device_config.device_type == "cpu" else torch.cuda.get_device_name(),
        threads=torch.get_num_threads() if config.device_config.device_type == "cpu" else None,
    )


def recording_of(config: Any, device: torch.device, faults: Faults) -> "Recording | None":
    """The recording that the environment asks for; None when it asks for none.

    Raises:
        InputError: a setting makes no sense, or the folder cannot hold this trace.
    """
    folder = os.environ.get("DRAFTGATE_TRACE")
    if not folder:
        return None
    share = _setting("DRAFTGATE_TRACE_SHARE", 1.0, 0.0, 1.0)
    words = int(_setting("DRAFTGATE_TRACE_MB", 64.0, 1.0, 2.0**20) * 2**18)
    recorder = None
    if keeps_traces():
        parallel = config.parallel_config
        part = f"dp-{parallel.data_parallel_rank}" if parallel.data_parallel_size > 1 else ""
        recorder = Recorder(folders(Path(folder, part), trace_setup(config)), device, words, faults)
        # Engine processes end without Python's own atexit.
        Finalize(None, recorder.close, args=(_CLOSE_S,), exitpriority=1)
    return Recording(recorder, share, config.model_config.max_model_len)


def folders(path: Path, setup: Setup) -> Sink:
    """A sink that appends each request to the trace of its kind.

    Raises:
        InputError: the place cannot be written, or holds traces of another setup.
    """
    stores = {kind: TraceStore.create(path / kind, setup) for kind in _KINDS}
    return lambda kind, pairs: stores[kind].append(pairs)


def keeps_traces() -> bool:
    """Whether this process is the rank that keeps the trace: the first of those that sample."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    return bool(get_pp_group().is_last_rank) and get_tensor_model_parallel_rank() == 0


def _setting(name: str, default: float, low: float, high: float) -> float:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:  # also refuses NaN
        raise ConfigError(f"{name} must be a number in [{low:g}, {high:g}] but got {text!r}")
    return value
