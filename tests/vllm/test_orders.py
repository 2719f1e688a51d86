"""Orders to an engine, step by step. As a script this drives one engine in its own process and prints what it saw:

python tests/vllm/test_orders.py MODEL ngram|plain
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftgate.engines.vllm.control import limit_drafts, put_policies, status
from draftgate.errors import DraftgateError, EngineError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet
from vllm import LLM, SamplingParams

K = 4
STEPS = 20
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
NEVER = PolicySet((Policy("never", "threshold", 1.0, length=Fixed(K)),), "never")
ALWAYS = PolicySet((Policy("always", "threshold", 0.0, length=Fixed(K)),), "always")
MANY = PolicySet(tuple(Policy(f"p{i}") for i in range(17)), "p0")
PROMPT = "for item in items: for item in items: for item in"


def steps(llm: LLM, order: Callable[[], Any]) -> list[tuple[int, int]]:
    """(drafted, committed) tokens of every step of one request; the order is given after `STEPS` of them."""
    params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    llm.llm_engine.add_request("one", PROMPT, params)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    seen = []
    while llm.llm_engine.has_unfinished_requests():
        if len(seen) == STEPS:
            order()
        (request,) = scheduler.requests.values()
        drafted, before = len(request.spec_token_ids), request.num_output_tokens
        llm.llm_engine.step()
        seen.append((drafted, request.num_output_tokens - before))
    return seen


def refusal(order: Callable[[], Any]) -> str:
    """What an order that cannot be obeyed says."""
    try:
        order()
    except DraftgateError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("obeyed")


def ngram(llm: LLM) -> dict[str, Any]:
    put_policies(llm, NEVER)
    seen = {
        "to always": steps(llm, lambda: put_policies(llm, ALWAYS)),
        "to off": steps(llm, lambda: limit_drafts(llm, 0)),
        "off": status(llm),
        "too long": refusal(lambda: limit_drafts(llm, K + 1)),
        "too many": refusal(lambda: put_policies(llm, MANY)),
    }
    limit_drafts(llm, None)
    return seen | {"at the end": status(llm)}


def plain(llm: LLM) -> dict[str, Any]:
    return {"limit": refusal(lambda: limit_drafts(llm, 0)), "put": put_policies(llm, ALWAYS)}


def main(model: str, kind: str) -> None:
    llm = LLM(
        model,
        speculative_config=NGRAM if kind == "ngram" else None,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        num_gpu_blocks_override=40,
    )
    print(json.dumps(ngram(llm) if kind == "ngram" else plain(llm)))


# The tests


def run(script: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_order_acts_in_the_very_next_step(tiny_dir: Path) -> None:
    seen = json.loads(run(Path(__file__), str(tiny_dir), "ngram").splitlines()[-1])
    never, always = seen["to always"][:STEPS], seen["to always"][STEPS:-1]
    assert sum(drafted for drafted, _ in never) > 0
    assert {committed for _, committed in never} == {1}
    assert sum(drafted for drafted, _ in always) > 0
    assert all(committed == 1 + drafted for drafted, committed in always)
    # What was drafted before speculation went off is verified by one more step.
    assert sum(drafted for drafted, _ in seen["to off"][:STEPS]) > 0
    assert {tuple(step) for step in seen["to off"][STEPS + 1 :]} == {(0, 1)}
    assert seen["off"]["speculation"]["on"] is False
    assert seen["off"]["digest"] == ALWAYS.digest()
    assert seen["too long"] == f"ConfigError: k must be a whole number in [0, {K}], what the server started with"
    assert "up to 16 policies" in seen["too many"]
    assert seen["at the end"]["speculation"]["limit_tok"] is None
    assert seen["at the end"]["digest"] == ALWAYS.digest()
    assert seen["at the end"]["file"] is None


def test_an_engine_without_speculation_says_so(tiny_dir: Path) -> None:
    seen = json.loads(run(Path(__file__), str(tiny_dir), "plain").splitlines()[-1])
    assert seen["limit"] == (
        "EngineError: the server was started without speculative decoding: start it with --speculative-config"
    )
    assert seen["put"]["speculation"]["on"] is False
    assert seen["put"]["digest"] == ALWAYS.digest()


def test_an_engine_without_the_plugin_says_so() -> None:
    class Plain:
        def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
            raise NotImplementedError(f"Method {method!r} is not implemented.")

    with pytest.raises(EngineError, match="does not know draftgate; is its plugin loaded"):
        status(Plain())


def test_the_articles_example_runs(tiny_dir: Path) -> None:
    """Acceptance falls from exact match to .75 and rises with a threshold low enough."""
    script = Path(__file__).parents[2] / "examples" / "vllm_article.py"
    lines = re.findall(r"^ *(\S.*?)  request \d: kept (\d+) of (\d+)", run(script, str(tiny_dir)), re.M)
    kept = {name: sum(int(k) for n, k, _ in lines if n == name) for name, *_ in lines}
    drafted = {name: sum(int(d) for n, _, d in lines if n == name) for name, *_ in lines}
    rate = {name: kept[name] / drafted[name] for name in kept}
    assert list(rate) == ["exact", "tau 0.75", "tau 0.60", "tau 0.10"]
    assert rate["tau 0.75"] <= rate["tau 0.60"] <= rate["exact"]
    assert rate["tau 0.60"] < rate["tau 0.10"]


if __name__ == "__main__":
    main(*sys.argv[1:])
