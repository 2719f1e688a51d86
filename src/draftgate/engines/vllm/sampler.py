"""What draftgate keeps beside one model runner of vLLM: policies on the device, the step in progress, the trace.

A V1 runner takes a step as `execute_model` (forward), `_sample` (which calls `rejection_sample`), then
`propose_draft_token_ids` for the next step; the plugin calls the methods here around those. v2.py has the other kind.

All ranks of a tensor-parallel group sample, so all must take the same branches and draw the same numbers. What is asked
for here is the same on all of them; only the first one keeps the trace.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from draftgate.engines.vllm.hooks import HOOKS, Function
from draftgate.engines.vllm.recording import Recording, columns
from draftgate.engines.vllm.ring import Mark, mark
from draftgate.engines.vllm.rows import Batch, Roster
from draftgate.engines.vllm.source import PolicySource
from draftgate.engines.vllm.tables import PolicyTables
from draftgate.engines.vllm.v1 import verify_v1
from draftgate.engines.vllm.verify import Rows
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet

__all__ = ["Runner", "RunnerV1", "Step"]

_V1_CALL = HOOKS["v1.rule"].parameters
_SYNTHETIC = ("synthetic_mode", "synthetic_conditional_rates")
_OWN = PolicySet((Policy("vllm", "lossless", length=Fixed(128)),), "vllm")  # to record what vLLM does by itself


@dataclass(slots=True)
class Step:
    """A step that is being sampled.

    Attributes:
        names: request ids by row [R].
        batch: the same requests, for the rules.
        inputs: vLLM's description of the step's drafts; None when there are none.
        recorded: whether the trace keeps something of it.
        fields: what it keeps of the drafted tokens, once they are verified.
    """

    names: list[str]
    batch: Batch
    inputs: Any
    recorded: bool
    fields: list[torch.Tensor] = field(default_factory=list)


class Runner:
    """What both kinds of model runner have.

    Attributes:
        roster: requests and policies.
        recording: the trace; None when nothing is recorded.
        verified: steps that were verified here instead of by vLLM.
    """

    def __init__(self, runner: Any, source: PolicySource, tables: PolicyTables) -> None:
        self.roster = Roster(tables)
        self.recording: Recording | None = None
        self.verified = 0
        self._runner, self._source, self._tables = runner, source, tables
        self._taken: PolicySet | None = None
        self._step: Step | None = None
        self._started: Mark = None
        self._began: Mark = None  # drafting
        self._drafting: tuple[Mark, Mark] | None = None

    @property
    def classifies(self) -> bool:
        """Whether the classes of tokens are known."""
        nothing = torch.zeros(0, dtype=torch.int64, device=self._tables.device)
        return self._tables.categories(nothing, nothing) is not None

    def status(self) -> dict[str, Any]:
        """What is in force and counted, as plain values."""
        recorder = self.recording and self.recording.recorder
        return {
            "policies": [policy.name for policy in self.roster.policies.policies] if self.roster.policies else [],
            "verified": self.verified,
            "unknown": self.roster.unknown,
            "token_classes": self.classifies,
            "trace": dict(recorder.counts) if recorder else None,
        }

    def begin(self, scheduled: Any, *_: Any, **__: Any) -> None:
        """Before `execute_model`: take new policies, note which requests come and go."""
        try:
            self._take()
        finally:
            self.roster.follow(scheduled)
            if self.recording is not None:
                self.recording.follow(scheduled, self.roster.policies)
                self._started = mark(self._tables.device)

    def _take(self) -> None:
        policies = self._source.current or (_OWN if self.recording else None)
        if policies is not self._taken:
            self._taken = policies
            self.roster.put(policies)

    def verify(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        """In place of `rejection_sample`."""
        raise NotImplementedError

    def _enter(self, names: list[str], inputs: Any) -> Step | None:
        """The step that is about to be sampled; None when vLLM is left to itself."""
        self._step = None
        if self.roster.policies is not None and names:
            recorded = self.recording is not None and self.recording.wants(names)
            self._step = Step(names, self.roster.batch(names), inputs, recorded)
        return self._step

    def _keep(self, step: Step, drafted: list[int], discarded: Any, sampled: torch.Tensor) -> None:
        """Hand a recorded step to the trace."""
        if self.recording is not None:
            self._began = mark(self._tables.device)
            times = self._drafting, (self._started, self._began)
            self.recording.keep(step.names, drafted, discarded, sampled, step.fields, *times)


class RunnerV1(Runner):
    """Beside a V1 runner."""

    def rows(self, _: Any, metadata: Any) -> None:
        """Before `_sample`: who is in the batch."""
        self._enter(self._runner.input_batch.req_ids, metadata)

    def verify(self, original: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """In place of `rejection_sample`."""
        step = self._step
        call = dict(zip(_V1_CALL, args, strict=False)) | kwargs
        synthetic, _ = (call.pop(name, None) for name in _SYNTHETIC)
        if step is None or step.inputs is None or synthetic or not (step.batch.ours or step.recorded):
            tokens: torch.Tensor = original(*args, **kwargs)
            return tokens
        outcome = verify_v1(self._tables, self._placed(step), **call, record=step.recorded)
        self.verified += 1
        if outcome.record is not None:
            step.fields = columns(outcome.record, call["draft_token_ids"], call["draft_probs"] is not None)
        return outcome.tokens

    def _placed(self, step: Step) -> Rows:
        batch, offset = step.batch, None
        if self._tables.facts(batch.slot if batch.only is None else batch.only).position:
            offset = _offsets(self._runner.positions, step.inputs, batch.prompt)
        return Rows(batch.slot, batch.language, offset, batch.only)

    def sampled(self, output: Any) -> None:
        """After `_sample`: hand the trace what it keeps."""
        step, self._step = self._step, None
        if step is not None and step.recorded:
            n = len(step.names)
            drafted = [0] * n if step.inputs is None else step.inputs.num_draft_tokens
            self._keep(step, drafted, self._runner.discard_request_mask.np[:n], output.sampled_token_ids)

    def drafting(self, *_: Any, **__: Any) -> None:
        """Before `propose_draft_token_ids`."""
        self._began = mark(self._tables.device) if self.recording is not None else None

    def drafted(self, _: Any) -> None:
        """After it."""
        self._drafting = None if self._began is None else (self._began, mark(self._tables.device))


def _offsets(positions: torch.Tensor, metadata: Any, prompt: torch.Tensor) -> torch.Tensor:
    """Output offset of each request's first drafted token, [R], from the positions that the device knows.

    Under asynchronous scheduling the host's counts are guesses, and corrected on the device only.
    """
    ends = metadata.cu_num_sampled_tokens.long()
    first = ends - torch.diff(ends, prepend=ends.new_zeros(1))
    return positions[metadata.logits_indices[first].long()] + 1 - prompt
