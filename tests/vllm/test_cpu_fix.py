from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.sample import rejection_sampler

from draftgate.engines.vllm import cpu_fix


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6), data=st.data())
def test_each_token_gets_its_requests_value(counts: list[int], data: Any) -> None:
    values = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=len(counts), max_size=len(counts)))
    ends = torch.tensor(counts).cumsum(0).int()
    out = cpu_fix.expand_batch_to_tokens(torch.tensor(values), ends, sum(counts), replace_from=0, replace_to=1)
    assert out.tolist() == [value or 1.0 for value, n in zip(values, counts, strict=True) for _ in range(n)]


def test_the_bug_is_seen_by_what_the_kernel_does() -> None:
    def sound(output: Any, values: Any, ends: Any, replace_from: Any, replace_to: Any) -> None:
        output.copy_(cpu_fix.expand_batch_to_tokens(values, ends, len(output), replace_from, replace_to))

    assert not cpu_fix.expands_wrongly(SimpleNamespace(_expand_kernel_impl=sound))  # type: ignore[arg-type]
    assert cpu_fix.expands_wrongly(SimpleNamespace(_expand_kernel_impl=lambda *_: None))  # type: ignore[arg-type]


def test_this_vllm_has_it_and_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", rejection_sampler.expand_batch_to_tokens)
    assert cpu_fix.repair()
    assert rejection_sampler.expand_batch_to_tokens is cpu_fix.expand_batch_to_tokens


def test_nothing_is_replaced_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.platforms.current_platform.is_cpu", lambda: False)
    before = rejection_sampler.expand_batch_to_tokens
    assert not cpu_fix.repair()
    assert rejection_sampler.expand_batch_to_tokens is before
