"""A real server (one for this module): the suite that every engine passes, and what only HTTP has."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from draftgate.engines.base import Engine, Sampling
from draftgate.engines.vllm.client import Client
from draftgate.engines.vllm.http import VllmServer
from draftgate.engines.vllm.launch import serve
from draftgate.engines.vllm.metrics import of_request, read_counters
from draftgate.engines.vllm.offline import VllmOffline
from draftgate.errors import ConfigError, EngineError
from draftgate.experiment.bench import bench
from draftgate.experiment.judging import GateSettings
from draftgate.experiment.watch import Silent
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.policyset import PolicySet, dump
from draftgate.testing.engine import EngineContract, assert_tiled
from draftgate.workload.prompt import Message, Prompt, Workload

K = 7  # the longest draft that the suite asks for
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
OPTIONS = ["--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32", "--max-model-len", "256"]
OPTIONS += ["--num-gpu-blocks-override", "40"]  # of 128 tokens; else the cache takes a GiB
REPEAT = Prompt(id="repeat", prompt="a = 1\nb = 2\nc = 3\na = 1\nb = 2\nc = 3\na = 1\nb =", language="python")


@pytest.fixture(scope="module")
def client(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    with serve(str(tiny_dir), NGRAM, folder / "log", [*OPTIONS, "--no-enable-prefix-caching"]) as url:
        yield Client(url)


@pytest.fixture(scope="module")
def server(client: Client) -> Iterator[VllmServer]:
    with closing(VllmServer(client)) as engine:
        yield engine


class TestServer(EngineContract):
    lengths = (1, 3, K)

    @pytest.fixture
    def engine(self, server: VllmServer) -> Engine:
        return server


def test_the_server_says_what_it_is(server: VllmServer) -> None:
    setup, able = server.setup, server.capabilities
    assert (setup.engine, setup.version, setup.target) == ("vllm-http", "0.32.0", "tiny")
    assert (able.max_draft, able.evidence, able.records_drafted) == (K, False, False)


def test_each_completion_counts_as_the_servers_counters_do(server: VllmServer, client: Client) -> None:
    request = server.encode(REPEAT, "w", 40, Sampling())
    before = read_counters(client.text("/metrics"), "tiny")
    done = server.generate([request], Policy("exact", length=Fixed(K)))[0]
    counted = read_counters(client.text("/metrics"), "tiny").since(before)
    assert counted is not None
    assert_tiled(done, K)
    assert counted.drafts == sum(s.drafted_n > 0 for s in done.steps)
    assert counted.generated_tok == len(done.tokens)
    found = counted.acceptance()
    assert found is not None
    assert found.steps == len(done.steps)
    assert found.coverage == counted.drafts / len(done.steps)


def test_the_same_text_and_steps_as_in_process(server: VllmServer, tiny_dir: Path) -> None:
    options = {"dtype": "float32", "enforce_eager": True}
    with closing(VllmOffline(str(tiny_dir), NGRAM, n_ctx=256, max_batch=1, options=options)) as here:
        for policy in (
            Policy("exact", length=Fixed(3)),
            Policy("loose", "threshold-or-lossless", 0.1, length=Fixed(K)),
        ):
            a, b = (
                engine.generate([engine.encode(REPEAT, "w", 32, Sampling())], policy)[0] for engine in (here, server)
            )
            assert a.tokens == b.tokens
            assert sum(s.accepted for s in a.steps) == sum(s.accepted for s in b.steps)


def test_conversations_are_rendered_by_the_server(server: VllmServer, client: Client) -> None:
    request = server.encode(Prompt(id="chat", messages=(Message("user", "Say hello."),)), "w", 8, Sampling())
    text = client.send("POST", "/detokenize", {"model": "tiny", "tokens": list(request.tokens)})["prompt"]
    assert "<|im_start|>user\nSay hello.<|im_end|>" in text
    assert text.rstrip().endswith("<|im_start|>assistant")


def test_other_traffic_keeps_its_policy(server: VllmServer, client: Client) -> None:
    """Our arms are one more policy of the set; whoever asks for nothing gets vLLM's own behaviour."""
    body = {"model": "tiny", "prompt": REPEAT.prompt, "max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    plain = client.send("POST", "/v1/completions", body)
    server.generate([server.encode(REPEAT, "w", 8, Sampling())], NONE)
    beside = client.send("POST", "/v1/completions", body)
    assert beside["choices"][0]["text"] == plain["choices"][0]["text"]
    a, b = (of_request(answer["metrics"]["speculative_decoding"], 40) for answer in (plain, beside))
    assert a == b
    assert a.drafts > 0


def test_closing_puts_the_servers_policies_back(client: Client) -> None:
    mine = PolicySet((Policy("mine", "threshold-or-lossless", 0.3, length=Fixed(2)),), "mine", {"code": "mine"})
    client.send("PUT", "/draftgate/policy", dump(mine))
    with closing(VllmServer(client)) as engine:
        engine.generate([engine.encode(REPEAT, "w", 8, Sampling())], NONE)
        assert client.get("/draftgate/policy")["digest"] != mine.digest()
    assert client.get("/draftgate/policy")["digest"] == mine.digest()


def test_bench_over_http(server: VllmServer) -> None:
    prompts = tuple(replace(REPEAT, id=f"p{i}", prompt=f"{REPEAT.prompt} {i}") for i in range(4))
    arms = [Policy("exact", length=Fixed(3)), Policy("loose", "threshold-or-lossless", 0.05, length=Fixed(K))]
    result = bench(server, Workload("w", prompts), arms, Sampling(), 24, 1.0, None, Silent(), GateSettings())
    by_name = {arm["arm"]: arm for arm in result["arms"]}
    assert by_name["exact"]["coverage"] > 0
    assert by_name["none"]["coverage"] == 0
    assert by_name["exact"]["speedup"]["estimate"] > 0
    assert all(row["tie"] for row in result["differences"])


def test_a_model_that_is_not_served_is_refused(client: Client) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        VllmServer(client, "tinny")


def test_what_the_server_refuses_is_told(server: VllmServer) -> None:
    with pytest.raises((ConfigError, EngineError), match="max_tokens"):
        list(
            server._client.events("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": -1, "stream": True})
        )


def test_a_server_without_the_plugin_can_only_be_watched(tiny_dir: Path, tmp_path: Path) -> None:
    with serve(str(tiny_dir), NGRAM, tmp_path / "log", OPTIONS, {"VLLM_PLUGINS": ""}) as url:
        client = Client(url)
        client.send("POST", "/v1/completions", {"model": "tiny", "prompt": REPEAT.prompt, "max_tokens": 32})
        with pytest.raises(
            ConfigError, match=r"its own setting accepts \d+% of the drafted tokens .* VLLM_PLUGINS=draftgate"
        ):
            VllmServer(client)


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"ended with code \d+ while starting; the end of .*log"),
        serve(str(tmp_path / "no-such-model"), None, tmp_path / "log"),
    ):
        pytest.fail("it cannot have started")
