"""`draftgate control` on a real server under load; `benchmarks/vllm_loop.py` is the long form.

Step costs are given and windows end by requests. Two kinds of traffic differ in their texts alone: of one token, so
that every draft is kept, or drawn from a hundred, so that hardly any is. Either is so clear that a machine that slows
down by half does not matter. What only pays a little is for the benchmark.
"""

import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count, repeat
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("vllm")

from draftgate.control.fetch import fetch
from draftgate.cost.steps import Curve, StepCost
from draftgate.engines.vllm import launch
from draftgate.engines.vllm.client import Client
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "vllm_loop.py"))
Load, Control, prepare, shift_draft = (BENCHMARK[n] for n in ("Load", "Control", "prepare", "shift_draft"))

K = 3
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
DRAFT = {"method": "draft_model", "num_speculative_tokens": K}
POLICIES = PolicySet((Policy("mine", "lossless", length=Fixed(K)),), "mine")
COST = StepCost({1: Curve(1, (0.005, 0.006, 0.007, 0.008), (0.0,) * 4, 9)})
OPTIONS = ["--served-model-name", "tiny", "--enforce-eager", "--dtype", "float32", "--max-model-len", "256"]
OPTIONS += ["--max-num-seqs", "8", "--num-gpu-blocks-override", "40", *BENCHMARK["DAMAGE_OPTIONS"]]

PROMPT = "for item in items: for item in items: for item in"
KEPT, LOST = [100], list(range(300, 400))  # tokens that a text may use
KEY = "sesame"

Line = Mapping[str, Any]
Start = Callable[..., Any]


def drawn_from(tokens: list[int]) -> Iterator[Mapping[str, Any]]:
    for seed in count():
        yield body(temperature=2.0, seed=seed, allowed_token_ids=tokens)


def body(**more: Any) -> Mapping[str, Any]:
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 64, "ignore_eos": True} | more


class Engine:
    """One server at a time, always at the same address."""

    def __init__(self, target: Path, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._running = ExitStack()
        self._speculative: Mapping[str, Any] | None = None
        self.client = Client(f"http://127.0.0.1:{launch._free_port()}", KEY)

    def serve(self, speculative: Mapping[str, Any]) -> Client:
        """Start it, again if it drafts in another way."""
        if speculative != self._speculative:
            self.stop()
            environment = BENCHMARK["DAMAGE_ENVIRONMENT"] | {"VLLM_API_KEY": KEY}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(launch, "_free_port", lambda: int(self.client.url.rpartition(":")[2]))
                log = self._folder / f"log-{speculative['method']}"
                self._running.enter_context(launch.serve(str(self._target), speculative, log, OPTIONS, environment))
            self._speculative = speculative
        return self.client

    def stop(self) -> None:
        self._running.close()
        self._speculative = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The process that answers HTTP stands still meanwhile; the engine behind it does not."""
        (server,) = (p for p in psutil.Process().children() if "vllm.entrypoints.openai.api_server" in p.cmdline())
        server.suspend()
        try:
            yield
        finally:
            server.resume()

    def drafted(self) -> int:
        drafted: int = BENCHMARK["counted"](self.client, "tiny").drafted_tok
        return drafted

    def digest(self) -> str:
        digest: str = self.client.get("/draftgate/policy")["digest"]
        return digest


@pytest.fixture(scope="module")
def engine(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(tiny_dir, tmp_path_factory.mktemp("server"))
    yield engine
    engine.stop()


@pytest.fixture
def control(engine: Engine, tmp_path: Path) -> Iterator[Start]:
    """Starts `draftgate control` on the server, each time with the state that the last one left."""
    prepare(tmp_path, POLICIES, COST, (0.9,) * K)
    started: list[Any] = []

    def start(*words: str) -> Any:
        common = ("--window", "24", "--interval", "0.5s", "--seed", "0", *words)
        started.append(Control(engine.client.url, tmp_path, KEY, common))
        return started[-1]

    yield start
    for one in started:
        one.stop(kill=True)


def says(action: str, reason: str = "") -> Callable[[Line], bool]:
    return lambda line: line["action"] == action and reason in line["reason"]


def judges(line: Line) -> bool:
    """Whether a line is about a window."""
    return line.get("tokens_per_s") is not None


def is_on(line: Line) -> bool:
    return judges(line) and line["phase"] == "closed" and line["setting"] != "off"


def steady(loop: Any, windows: int = 2) -> int:
    """Wait for so many windows with speculation on; number of the last line."""
    at = -1
    for _ in range(windows):
        at = loop.until(is_on, at + 1)
    return at


def opens_at_once(loop: Any, change: Callable[[], None]) -> int:
    """Change something; the window in which it changed may still look good, the next must not pass."""
    before = len(loop.lines)
    change()
    opened: int = loop.until(says("open"), before)
    assert sum(map(judges, loop.lines[before : opened + 1])) <= 2
    return opened


def in_force_as_said(engine: Engine, loop: Any) -> None:
    said = [POLICIES.digest(), *(line["digest"] for line in loop.lines if line["action"] == "write")]
    assert engine.digest() == said[-1]


def assert_off(engine: Engine, load: Any, loop: Any, opened: int) -> int:
    """Nothing is drafted, and what is in force is what was decided; number of the line that says so."""
    written: int = loop.until(says("write"), opened)
    in_force_as_said(engine, loop)
    assert engine.client.get("/draftgate/policy")["policy"]["policies"][0]["draft"]["k"] == 0
    load.wait(1)  # what was drafted before is verified by one more step
    drafted = engine.drafted()
    load.wait(2)
    assert engine.drafted() == drafted
    return written


def comes_back(engine: Engine, loop: Any, since: int) -> None:
    """Through probation, by itself."""
    probed = loop.until(says("half-open"), since)
    closed = loop.until(says("close"), probed)
    drafted = engine.drafted()
    loop.until(is_on, closed + 1)
    assert engine.drafted() > drafted
    assert all(line["reason"] for line in loop.lines)


def test_traffic_shifts_and_comes_back(engine: Engine, control: Start) -> None:
    client, port = engine.serve(NGRAM), launch._free_port()
    load = Load(client, drawn_from(KEPT))
    with load.running():
        loop = control("--metrics-port", str(port))
        steady(loop)
        assert engine.drafted() > 0
        opened = opens_at_once(loop, lambda: setattr(load, "bodies", drawn_from(LOST)))
        quiet = assert_off(engine, load, loop, opened)
        exported = fetch(f"http://127.0.0.1:{port}/metrics", 5.0)
        assert 'draftgate_speculation_on{workload="*"} 0' in exported
        assert 'draftgate_breaker_state{state="open",workload="*"} 1' in exported
        load.bodies = drawn_from(KEPT)
        comes_back(engine, loop, quiet)
        exported = fetch(f"http://127.0.0.1:{port}/metrics", 5.0)
        assert 'draftgate_speculation_on{workload="*"} 1' in exported
        assert "\ndraftgate_in_force 1" in exported
    assert load.failures == []


def test_a_killed_loop_goes_on_where_it_was(engine: Engine, control: Start) -> None:
    load = Load(engine.serve(NGRAM), drawn_from(KEPT))
    with load.running():
        loop = control()
        steady(loop)
        loop.stop(kill=True)
        in_force_as_said(engine, loop)
        digest = engine.digest()
        loop = control()
        steady(loop)
        assert engine.digest() == digest
        assert {line["action"] for line in loop.lines} <= {"hold", "change"}
        opened = opens_at_once(loop, lambda: setattr(load, "bodies", drawn_from(LOST)))
        loop.until(says("write"), opened)
        reason = loop.lines[opened]["reason"]
        loop.stop(kill=True)
        digest = engine.digest()
        loop = control()
        probed = loop.until(says("half-open"))
        assert loop.lines[probed]["reason"] == f"on probation after: {reason}"
        assert not any(line["action"] in ("write", "open", "close") for line in loop.lines[:probed])
    assert load.failures == []


def test_a_server_that_hangs_goes_through_probation(engine: Engine, control: Start) -> None:
    """What does not answer cannot be switched off: that is said, and when it answers it has to prove itself."""
    load = Load(engine.serve(NGRAM), drawn_from(KEPT))
    with load.running():
        loop = control("--stale", "2s")
        at = steady(loop)
        with engine.hanging():
            opened = loop.until(says("open", "no metrics for"), at)
            loop.until(says("retry", "policies cannot be put in force"), at)
        comes_back(engine, loop, opened)
    assert load.failures == []


def test_the_server_restarts_and_its_draft_goes_wrong(engine: Engine, control: Start, tiny_dir: Path) -> None:
    """The draft model is the target's own copy, so it pays; then the copy in the running server is damaged."""
    load = Load(engine.serve(NGRAM), drawn_from(KEPT))
    loop = control("--stale", "10m")
    with load.running():
        steady(loop)
    engine.stop()
    lost = loop.until(says("hold", "metrics are lost"))
    client = engine.serve(DRAFT | {"model": str(tiny_dir)})
    back = loop.until(says("write", "not in force yet"), lost)
    in_force_as_said(engine, loop)
    load = Load(client, repeat(body(temperature=0.0)))
    with load.running():
        assert is_on(loop.lines[loop.until(judges, back)])  # that the counters fell is no reason to open
        opened = opens_at_once(loop, lambda: shift_draft(client, 1))
        quiet = assert_off(engine, load, loop, opened)
        shift_draft(client, -1)
        comes_back(engine, loop, quiet)
    assert load.failures == []
