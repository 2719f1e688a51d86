"""Run-time control of a real server, one for this module."""

import asyncio
import json
import re
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from draftgate.control.channel import LIMIT_BYTES, Channel
from draftgate.engines.vllm.control import Control
from draftgate.engines.vllm.endpoint import Endpoint
from draftgate.engines.vllm.launch import serve
from draftgate.policy.file import dump as dump_policy
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, dump, load

K = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
NEVER = PolicySet((Policy("never", "threshold", 1.0, length=Fixed(K)),), "never")
ALWAYS = PolicySet((Policy("always", "threshold", 0.0, length=Fixed(K)),), "always")
MANY = PolicySet(tuple(Policy(f"p{i}") for i in range(17)), "p0")
PROMPT = "for item in items: for item in items: for item in"
KEY = "sesame"
# The worker is made a process of its own, as with several ranks.
OPTIONS = (
    f"--api-key {KEY} --distributed-executor-backend mp --enforce-eager --dtype float32 --max-model-len 512 "
    "--max-num-seqs 16 --num-gpu-blocks-override 100"
).split()


@dataclass
class Server:
    """A running server, its policy file, its log, and a client that has its key."""

    http: Any
    channel: Channel
    log: Path
    model: str

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    def put(self, path: str, body: Any) -> Any:
        return self.http.put(path, content=body if isinstance(body, bytes) else json.dumps(body))

    def set(self, policies: PolicySet) -> Any:
        return self.put("/draftgate/policy", dump(policies)).raise_for_status().json()

    def complete(self, max_tokens: int = 40, temperature: float = 0.0, **extra: str) -> Any:
        """Acceptance of one request: (drafted, kept)."""
        body = {
            "model": self.model,
            "prompt": PROMPT,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "ignore_eos": True,
            "vllm_xargs": {f"draftgate_{name}": value for name, value in extra.items()},
        }
        answer = self.http.post("/v1/completions", json=body).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == max_tokens
        figures = answer["metrics"]["speculative_decoding"]
        return (0, 0) if figures is None else (figures["num_draft_tokens"], figures["num_accepted_draft_tokens"])

    def counted(self) -> dict[str, float]:
        """The server's own counters: steps that drafted, drafted tokens, kept tokens."""
        text = self.http.get("/metrics").text
        names = ("drafts", "draft_tokens", "accepted_tokens")
        found = {name: re.search(rf"^vllm:spec_decode_num_{name}_total{{.*}} (\S+)$", text, re.M) for name in names}
        return {name: float(match[1]) for name, match in found.items() if match}


@pytest.fixture(scope="module")
def server(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    channel = Channel(folder / "policy.yaml")
    channel.write(NEVER)
    with (
        serve(
            str(tiny_dir),
            NGRAM,
            folder / "log",
            OPTIONS,
            {"DRAFTGATE_POLICY": str(channel.path), "DRAFTGATE_UNKNOWN": "refuse"},
        ) as url,
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as client,
    ):
        yield Server(client, channel, folder / "log", str(tiny_dir))


@pytest.fixture(autouse=True)
def restored(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        server.put("/draftgate/speculation", {"on": True}).raise_for_status()
        server.set(NEVER)


def test_the_file_is_in_force_from_the_start_on_every_rank(server: Server) -> None:
    status = server.get("/draftgate/status")
    digest = load(server.channel.path).digest()
    assert status["digest"] == digest
    assert {rank["digest"] for rank in status["ranks"]} == {digest}
    assert status["file"] == {"path": str(server.channel.path), "error": None, "refused": 0}
    assert status["speculation"] == {
        "method": "ngram",
        "most_tok": K,
        "limit_tok": None,
        "on": True,
        "cannot": None,
        "drafter": None,
    }


ROUTES = [("GET", "status"), ("GET", "metrics"), ("GET", "policy"), ("PUT", "policy"), ("PUT", "speculation")]


@pytest.mark.parametrize(("method", "route"), ROUTES)
@pytest.mark.parametrize("key", [None, "Bearer open", KEY])
def test_routes_ask_for_the_servers_key(server: Server, method: str, route: str, key: str | None) -> None:
    headers = {} if key is None else {"Authorization": key}
    answer = httpx.request(method, server.http.base_url.join(f"/draftgate/{route}"), headers=headers)
    assert answer.status_code == 401
    assert "API key" in answer.json()["error"]["message"]


def test_what_is_set_is_read_back_and_acts_at_once(server: Server) -> None:
    for policies in (ALWAYS, NEVER, ALWAYS):
        assert server.set(policies) == server.get("/draftgate/policy")
        assert server.get("/draftgate/policy") == {"digest": policies.digest(), "policy": dump(policies)}
        drafted, kept = server.complete()
        assert drafted > 0
        assert kept == (drafted if policies is ALWAYS else 0)


def test_a_change_acts_within_a_request(server: Server) -> None:
    """Nothing is kept before the change; from then on everything is. A busy machine can end the text before: again."""
    assert any(kept_after_a_change(server) for _ in range(10))


def kept_after_a_change(server: Server) -> float:
    server.set(NEVER)
    before = server.counted()
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 450, "stream": True, "temperature": 0.0}
    with server.http.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as stream:
        events = (line for line in stream.iter_lines() if line.startswith("data: {"))
        next(events)
        assert server.counted()["accepted_tokens"] == before["accepted_tokens"]
        server.set(ALWAYS)
        for _ in events:
            pass
    return server.counted()["accepted_tokens"] - before["accepted_tokens"]


BAD: list[tuple[bytes, str]] = [
    (b"tau: [", "body: is not plain YAML: line 1"),
    (b"draftgate: 1\nname: x\nrule: threshold\ntau: 7", r"body: policy: policy 'x': tau must be in [0, 1] but got 7"),
    (b"draftgate: 1\nname: x\nrule: threshold\ntau: .nan", "body: policy: tau: must be a finite number but got nan"),
    (b"draftgate: 1\ndefault: exatc", "body: default: 'exatc' is neither a policy of this set nor a preset; did you"),
    (b'draftgate: 1\nname: "\\ud800"\nrule: exact', r"names must be printable text but got '\ud800'"),
    (
        b'draftgate: 1\ndefault: exact\n"\\ud800": 1',
        "body: top level: unknown key '\\ud800'; valid: default, draftgate",
    ),
    (b"", "body: top level: must be a mapping but got None"),
    (b"\xff\xfe\xfd", "body: is not plain YAML"),
]


@pytest.mark.parametrize(("body", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_policy_is_a_400_and_the_last_good_one_stays(server: Server, body: bytes, message: str) -> None:
    before = server.get("/draftgate/policy")
    answer = server.put("/draftgate/policy", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert server.get("/draftgate/policy") == before


def test_a_set_that_the_engine_cannot_hold_is_a_400(server: Server) -> None:
    answer = server.put("/draftgate/policy", dump(MANY))
    assert answer.status_code == 400
    assert "up to 16 policies" in answer.json()["error"]["message"]
    assert server.get("/draftgate/policy")["digest"] == NEVER.digest()


def test_a_body_without_end_is_a_413(server: Server) -> None:
    assert server.put("/draftgate/policy", b"#" * (LIMIT_BYTES + 1)).status_code == 413


def test_yaml_json_and_a_single_policy_are_taken(server: Server) -> None:
    single = Policy("mine", "threshold-or-lossless", 0.25)
    digest = PolicySet((single,), "mine").digest()
    by_hand = "# by hand\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in dump_policy(single).items())
    for body in (by_hand.encode(), json.dumps(dump_policy(single)).encode()):
        server.set(NEVER)
        assert server.put("/draftgate/policy", body).json()["digest"] == digest


# The file


def until(server: Server, done: Callable[[Any], bool]) -> Any:
    """Ask for the status until it says so; the engine looks at the file at most every 100 ms."""
    for _ in range(5000):
        if done(status := server.get("/draftgate/status")):
            return status
    raise AssertionError(status)


def in_force(server: Server, policies: PolicySet) -> Any:
    digest = policies.digest()
    return until(server, lambda status: status["digest"] == digest)


def test_a_bad_file_is_told_and_leaves_the_last_good_one(server: Server) -> None:
    server.channel.write(ALWAYS)
    in_force(server, ALWAYS)
    server.channel.path.write_text("draftgate: 1\nname: x\nrule: treshold")
    status = until(server, lambda status: status["file"]["error"] is not None)
    assert status["file"]["error"].endswith("unknown rule 'treshold'; did you mean 'threshold'?")
    assert status["digest"] == ALWAYS.digest()
    server.channel.path.unlink()
    until(server, lambda status: "No such file" in status["file"]["error"])
    server.channel.write(MANY)
    status = until(server, lambda status: "up to 16 policies" in (status["file"]["error"] or ""))
    assert status["digest"] == ALWAYS.digest()
    assert metrics(server)["draftgate_engine_policy_file_ok"] == 0
    server.channel.write(NEVER)
    assert in_force(server, NEVER)["file"]["error"] is None
    found = metrics(server)
    assert found["draftgate_engine_policy_file_ok"] == 1
    assert found["draftgate_engine_policy_file_refused_total"] == status["file"]["refused"] >= 2
    assert found[f'draftgate_engine_policy_info{{digest="{NEVER.digest()}"}}'] == 1
    for told in ("'treshold'; did you mean 'threshold'?", "No such file", "up to 16 policies"):
        lines = [line for line in server.log.read_text().splitlines() if "draftgate: " in line and told in line]
        assert len(lines) == 1, told
        assert f"policies {ALWAYS.digest()} stays in force" in lines[0]


def metrics(server: Server) -> dict[str, float]:
    """Every sample of draftgate's own route, by name and labels."""
    lines = server.http.get("/draftgate/metrics").raise_for_status().text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


# Load


def test_fifty_changes_over_http_and_fifty_by_file_under_load(server: Server) -> None:
    """Eight clients; no request fails, every change is read back, and what is in force at the end acts."""
    before = server.counted()
    over = threading.Event()

    def client(n: int) -> int:
        done = 0
        while not over.is_set():
            drafted, kept = server.complete(max_tokens=24, temperature=float(n % 2))
            assert 0 <= kept <= drafted
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(client, n) for n in range(8)]
        try:
            for i in range(50):
                changed = PolicySet((Policy(f"http{i}", "threshold", i / 50, length=Fixed(1 + i % K)),), f"http{i}")
                assert server.set(changed) == {"digest": changed.digest(), "policy": dump(changed)}
            for i in range(50):
                changed = PolicySet((Policy(f"file{i}", "threshold-or-lossless", i / 50),), f"file{i}")
                server.channel.write(changed)
                in_force(server, changed)
        finally:
            over.set()
        requests = sum(future.result() for future in clients)
    assert requests >= 8
    after = server.counted()
    assert after["draft_tokens"] > before["draft_tokens"]
    status = server.get("/draftgate/status")
    assert all(rank["faults"] == {} for rank in status["ranks"])
    server.set(NEVER)
    assert server.complete()[1] == 0


# Speculation


def test_speculation_off_drafts_nothing_and_on_restores_it(server: Server) -> None:
    server.set(ALWAYS)
    assert server.complete()[0] > 0
    assert server.put("/draftgate/speculation", {"on": False}).json()["on"] is False
    before = server.counted()
    assert server.complete() == (0, 0)
    assert server.counted() == before
    assert server.get("/draftgate/policy")["digest"] == ALWAYS.digest()
    assert server.put("/draftgate/speculation", {"on": True, "k": 1}).json()["limit_tok"] == 1
    server.complete()
    steps, tokens = (server.counted()[name] - before[name] for name in ("drafts", "draft_tokens"))
    assert steps == tokens > 0
    assert server.put("/draftgate/speculation", {"on": True, "k": None}).json()["limit_tok"] is None
    before = server.counted()
    server.complete()
    steps, tokens = (server.counted()[name] - before[name] for name in ("drafts", "draft_tokens"))
    assert tokens > steps


BAD_SPECULATION: list[tuple[Any, str]] = [
    (b"{", "body: is not JSON"),
    ([], "body: must be an object"),
    ({}, "body.on: must be true or false but got null"),
    ({"on": 1}, "body.on: must be true or false but got 1"),
    ({"on": True, "kk": 2}, "body: unknown key 'kk'; did you mean 'k'?"),
    ({"on": True, "k": 0}, "body.k: must be a whole number of 1 or more"),
    ({"on": True, "k": True}, "body.k: must be a whole number of 1 or more"),
    ({"on": False, "k": 2}, "null when speculation is off"),
    ({"on": True, "k": K + 1}, f"k must be a whole number in [0, {K}], what the server started with"),
]


@pytest.mark.parametrize(("body", "message"), BAD_SPECULATION, ids=[message for _, message in BAD_SPECULATION])
def test_a_bad_order_about_speculation_is_a_400(server: Server, body: Any, message: str) -> None:
    before = server.get("/draftgate/status")["speculation"]
    answer = server.put("/draftgate/speculation", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert server.get("/draftgate/status")["speculation"] == before


@pytest.mark.parametrize(
    ("ask", "message"),
    [({"policy": "nevr"}, "did you mean 'never'"), ({"polcy": "never"}, "did you mean 'draftgate_policy'")],
)
def test_a_request_for_what_is_not_in_force_is_a_400(server: Server, ask: dict[str, str], message: str) -> None:
    """The server was started with DRAFTGATE_UNKNOWN=refuse; otherwise the default policy serves the first."""
    with pytest.raises(httpx.HTTPStatusError, match="400 Bad Request") as refused:
        server.complete(**ask)
    assert message in refused.value.response.text
    assert server.complete(policy="never")[1] == 0


def test_workloads_have_their_policies(server: Server) -> None:
    server.set(PolicySet((*ALWAYS.policies, *NEVER.policies), "never", {"code": "always", "chat": "none"}))
    assert server.complete()[1] == 0
    assert server.complete(workload="chat") == (0, 0)
    drafted, kept = server.complete(workload="code")
    assert kept == drafted > 0
    drafted, kept = server.complete(workload="chat", policy="always")
    assert kept == drafted > 0


# What is answered when an engine does not do as told


class Engine:
    """An engine client that gives one reply."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        if isinstance(self.reply, Exception):
            raise self.reply
        return [self.reply]


REPLIES: list[tuple[Any, int, str]] = [
    ({"refused": "not this"}, 400, "not this"),
    ({"cannot": "not here"}, 409, "not here"),
    ({"failed": "KeyError: 3"}, 500, "KeyError: 3"),
    ({"digest": "a", "policy": {}, "ranks": [{"digest": "a"}, {"digest": "b"}]}, 500, "ranks have different policies"),
    (NotImplementedError("Method 'draftgate' is not implemented."), 503, "'draftgate' is not implemented"),
]


@pytest.mark.parametrize(("reply", "code", "message"), REPLIES, ids=[message for *_, message in REPLIES])
def test_what_the_engine_does_not_do_is_told(reply: Any, code: int, message: str) -> None:
    app, endpoint = Starlette(), Endpoint()
    endpoint.attach_router(app)
    asyncio.run(endpoint.init_state(Engine(reply), None, Namespace(api_key=None)))
    answer = TestClient(app).put("/draftgate/speculation", content=b'{"on": false}')
    assert answer.status_code == code
    assert message in answer.text


def test_a_set_that_one_rank_cannot_serve_is_put_nowhere() -> None:
    called = []

    def collective_rpc(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
        called.append(function.__name__)
        return [None, "no room"] if function.__name__ == "_check_rank" else []

    core = SimpleNamespace(
        vllm_config=SimpleNamespace(speculative_config=None),
        model_executor=SimpleNamespace(collective_rpc=collective_rpc),
    )
    assert Control(core, None).order("policy", dump(ALWAYS))["refused"] == "no room"
    assert "_put_rank" not in called
