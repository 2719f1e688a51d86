"""What `draftgate export --to vllm` writes is what vLLM takes."""

import json

import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.export import EXPORTERS, Measured
from draftgate.policy.length import Cut, Fixed, Length
from draftgate.policy.policy import Policy

CURVES = {b: Curve(b, tuple(1 + 0.1 * b * m for m in range(1, 9)), (0.0,) * 8, 9) for b in (1, 4, 16)}
MEASURED = Measured(StepCost(CURVES), [0.5, 0.4, 0.3], 1.0)


@pytest.mark.parametrize("length", [Fixed(3), Cut(3, 4.0)], ids=["fixed", "cut"])
def test_the_schedule_is_one_that_vllm_reads(length: Length) -> None:
    config = json.loads(EXPORTERS["vllm"](Policy("p", length=length), "lookup", MEASURED).text)
    k = config["num_speculative_tokens"]
    by_batch = build_dynamic_sd_schedule_lookup(config["num_speculative_tokens_per_batch_size"], 64, k)
    assert by_batch[1] == 3
    assert by_batch[16] == by_batch[64] == 0
