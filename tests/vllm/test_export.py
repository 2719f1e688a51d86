"""What `draftgate export --to vllm` writes is what vLLM takes."""

import json
from pathlib import Path

import pytest
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.export import EXPORTERS, Measured
from draftgate.engines.vllm.client import Client
from draftgate.engines.vllm.launch import serve
from draftgate.engines.vllm.metrics import of_request
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


def test_a_server_starts_with_it_and_drafts_as_it_says(tiny_dir: Path, tmp_path: Path) -> None:
    """By itself: without draftgate's plugin."""
    config = json.loads(EXPORTERS["vllm"](Policy("p", length=Fixed(7)), "lookup", MEASURED).text)
    schedule = config["num_speculative_tokens_per_batch_size"]
    alone = next(k for first, _, k in schedule if first == 1)
    assert 0 < alone < 7
    options = ["--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32", "--max-model-len", "256"]
    options += ["--num-gpu-blocks-override", "40"]
    body = {"model": "tiny", "prompt": "a = 1\nb = 2\na = 1\nb = 2\na =", "max_tokens": 48, "temperature": 0.0}
    with serve(str(tiny_dir), config, tmp_path / "log", options, {"VLLM_PLUGINS": ""}) as url:
        answer = Client(url).send("POST", "/v1/completions", body | {"ignore_eos": True})
    found = answer["metrics"]["speculative_decoding"]
    assert of_request(found, 48).drafts > 0
    assert found["num_draft_tokens"] <= alone * found["num_spec_steps"]
