"""The closed loop live on a vLLM server: `draftgate control` steers it over HTTP while clients use it.

    "$(python tools/vllm_env.py)"/bin/python benchmarks/vllm_loop.py MODEL traffic [--phase 48] [--json loop.json]
    "$(python tools/vllm_env.py)"/bin/python benchmarks/vllm_loop.py MODEL swap --draft DRAFT

traffic: n-gram drafts; code-edit, then chat at temperature 1, then code-edit again. swap: drafts of a model, code-edit
throughout; the model in the running server is made wrong, and right again. Step costs are measured first, as `tune
--engine vllm` does. The same phases are served with speculation always on and always off, half of each before the
steered run and half after it, so that a machine that slows down slows all alike. Tokens are counted by the server.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftgate.cost.steps import StepCost
from draftgate.engines.vllm.client import Client
from draftgate.engines.vllm.launch import serve
from draftgate.engines.vllm.metrics import Counters, read_counters
from draftgate.engines.vllm.offline import VllmOffline
from draftgate.errors import DraftgateError
from draftgate.experiment.rundir import write_json
from draftgate.policy.length import Fixed
from draftgate.policy.policy import NONE, Policy
from draftgate.policy.policyset import PolicySet, dump, save
from draftgate.workload.packs import load as load_pack

K = 4
USERS = 4
CONTEXT_TOK = 1024
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
START = PolicySet((Policy("mine", "lossless", length=Fixed(K)),), "mine")
ALWAYS_OFF = PolicySet((NONE,), NONE.name)

Body = Mapping[str, Any]
Line = Mapping[str, Any]


class Damage:
    """What vLLM mixes into its worker: the draft model can be made wrong, and right again, while it serves."""

    model_runner: Any

    def shift_draft(self, by: int) -> None:
        """Give every token of the draft model the embedding of another; the opposite shift undoes it."""
        weight = self.model_runner.drafter.model.model.embed_tokens.weight
        weight.data.copy_(weight.data.roll(by, 0))


# For `launch.serve`: the class above in the worker, and a route to call it.
DAMAGE_OPTIONS = ("--worker-extension-cls", "vllm_loop.Damage")
DAMAGE_ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parent)}


def shift_draft(client: Client, by: int) -> None:
    client.send("POST", "/collective_rpc", {"method": "shift_draft", "args": [by]})


@dataclass
class Load:
    """Clients of a server, each of whom sends the next request when the last one is answered.

    Attributes:
        bodies: what they send now; may be replaced while they do.
        answered: requests so far, those that failed included.
        failures: what went wrong, for each request that did.
    """

    client: Client
    bodies: Iterator[Body]
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def _user(self) -> None:
        while not self._over.is_set():
            with self._news:
                body = next(self.bodies)
            try:
                self.client.send("POST", "/v1/completions", body)
            except DraftgateError as error:
                self.failures.append(str(error))
            with self._news:
                self.answered += 1
                self._news.notify_all()

    def wait(self, requests: int, timeout_s: float = 120.0) -> None:
        """Wait until so many more were answered, while clients run."""
        with self._news:
            wanted = self.answered + requests
            assert self._news.wait_for(lambda: self.answered >= wanted, timeout_s), self.failures

    @contextmanager
    def running(self, users: int = USERS) -> Iterator["Load"]:
        """Clients run meanwhile; the last requests are answered before it ends."""
        self._over.clear()
        threads = [threading.Thread(target=self._user) for _ in range(users)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()


class Control:
    """A running `draftgate control` and the lines it has said."""

    def __init__(self, url: str, folder: Path, key: str | None = None, words: Sequence[str] = ()) -> None:
        """Start it on a server; `folder` has what `prepare` put there, and gets its state."""
        run = [sys.executable, "-c", "from draftgate.cli import main; main()", "control"]
        run += ["--channel", url, "--metrics", f"{url}/metrics", "--policy", str(folder / "start.yaml")]
        run += ["--run", str(folder / "run" / "mine"), "--state", str(folder / "state.json"), *words]
        variables = os.environ | ({"DRAFTGATE_API_KEY": key} if key else {})
        self.process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=variables)
        self.lines: list[Line] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                with self._news:
                    self.lines.append(json.loads(line))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def until(self, wanted: Callable[[Line], bool], since: int = 0, timeout_s: float = 240.0) -> int:
        """Wait for a line, from line `since` on; returns its number.

        Raises:
            AssertionError: it was not said in time, or the process has ended.
        """
        end_s = time.monotonic() + timeout_s
        with self._news:
            while True:
                for number in range(since, len(self.lines)):
                    if wanted(self.lines[number]):
                        return number
                since = len(self.lines)
                left_s = end_s - time.monotonic()
                if self._ended or left_s <= 0:
                    raise AssertionError("not said:\n" + "\n".join(map(str, self.lines[-12:])))
                self._news.wait(left_s)

    def stop(self, kill: bool = False) -> None:
        """End it by SIGTERM, or by SIGKILL."""
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(30)
        self._reader.join()


def prepare(folder: Path, start: PolicySet, cost: StepCost, survival: Sequence[float]) -> None:
    """Put in a folder what `Control` starts from: policies, step costs, and survival by position."""
    save(start, folder / "start.yaml")
    (folder / "run/mine").mkdir(parents=True)
    write_json(folder / "run/cost.json", cost.to_mapping())
    positions = [{"survival": {"rate": rate}} for rate in survival]
    write_json(folder / "run/result.json", {"workloads": [{"name": "mine", "trace": {"positions": positions}}]})


def counted(client: Client, model: str) -> Counters:
    return read_counters(client.text("/metrics"), model)


# The benchmark


@dataclass(frozen=True)
class Phase:
    """Some seconds of load: what it is called, what is sent, and what happens to the server before."""

    name: str
    pack: str
    temperature: float
    before: Callable[[Client], None] = lambda client: None


def bodies(client: Client, model: str, phase: Phase) -> Iterator[Body]:
    """A pack's prompts again and again, tokenised by the server; seeds differ."""
    tokens = []
    for p in load_pack(phase.pack).prompts:
        given = {"messages": [{"role": m.role, "content": m.content} for m in p.messages or ()]}
        asked = {"prompt": p.prompt} if p.prompt is not None else given
        tokens.append(client.send("POST", "/tokenize", {"model": model, **asked})["tokens"])
    for seed, prompt in enumerate(itertools.cycle(tokens)):
        yield {
            "model": model, "prompt": prompt, "max_tokens": 64, "temperature": phase.temperature, "seed": seed,
            "ignore_eos": True,
        }  # fmt: skip


def serve_phase(client: Client, model: str, phase: Phase, seconds: float) -> dict[str, Any]:
    """Load for some seconds: tokens per second, and what was drafted."""
    phase.before(client)
    load = Load(client, bodies(client, model, phase))
    before, start_s = counted(client, model), time.time()
    with load.running():
        time.sleep(seconds)
        now, took_s = counted(client, model), time.time() - start_s
    grown = now.since(before)
    assert grown is not None
    acceptance = grown.acceptance()
    assert acceptance is not None
    return {
        "phase": phase.name,
        "start_s": start_s,
        "tokens_per_s": (grown.generated_tok or 0) / took_s,
        "rate": acceptance.rate,
        "coverage": acceptance.coverage,
        "tokens": grown.generated_tok,
        "failures": load.failures,
    }


def fixed(client: Client, model: str, phases: Sequence[Phase], policies: PolicySet, seconds: float) -> list[Any]:
    client.send("PUT", "/draftgate/policy", dump(policies))
    return [serve_phase(client, model, phase, seconds) for phase in phases]


def steered(
    client: Client, model: str, phases: Sequence[Phase], folder: Path, seconds: float, seed: int
) -> tuple[list[Any], list[Line]]:
    words = ["--window-time", "4s", "--interval", "1s", "--seed", str(seed)]
    control = Control(client.url, folder, words=words)
    try:
        found = [serve_phase(client, model, phase, seconds) for phase in phases]
    finally:
        control.stop()
    return found, control.lines


def show(arms: Mapping[str, Sequence[Sequence[Any]]], lines: Sequence[Line]) -> None:
    """What was decided, and tokens per second of each phase: one column a run of the phases."""
    (phases,) = arms["steered"]
    events = [(row["start_s"], "PHASE", row["phase"]) for row in phases]
    events += [(line["time_s"], line["action"], line["reason"]) for line in lines if line["action"] != "hold"]
    for at_s, action, reason in sorted(events):
        print(f"{at_s - phases[0]['start_s']:8.1f} s  {action:10} {reason}")
    print(f"\n{'tokens/s':14}" + "".join(f"{arm:>20}" for arm in arms))
    for i, row in enumerate(phases):
        cells = (" ".join(f"{run[i]['tokens_per_s']:.1f}" for run in runs) for runs in arms.values())
        print(f"{row['phase']:14}" + "".join(f"{cell:>20}" for cell in cells))
    print(f"failed requests: {sum(len(row['failures']) for runs in arms.values() for run in runs for row in run)}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("scenario", choices=["traffic", "swap"])
    words.add_argument("--draft", help="folder of the draft model, for swap")
    words.add_argument("--phase", type=float, default=48.0, metavar="SECONDS")
    words.add_argument("--cost", type=float, default=30.0, metavar="SECONDS", help="for measuring step costs")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--json", type=Path)
    a = words.parse_args()
    edit, chat = Phase("code-edit", "code-edit", 0.0), Phase("chat", "chat", 1.0)
    if a.scenario == "traffic":
        speculative, phases = NGRAM, [edit, chat, edit]
    else:
        speculative = {"method": "draft_model", "model": a.draft, "num_speculative_tokens": K}
        wrong = Phase("draft is wrong", "code-edit", 0.0, lambda client: shift_draft(client, 1))
        phases = [edit, wrong, Phase("draft is right", "code-edit", 0.0, lambda client: shift_draft(client, -1))]
    engine = {"n_ctx": CONTEXT_TOK, "max_batch": USERS, "options": {"dtype": "float32", "enforce_eager": True}}
    with closing(VllmOffline(a.model, speculative, **engine)) as offline:
        cost = offline.measure_cost([1, 2, USERS], K + 1, a.cost)
        setup = offline.setup
    for batch, curve in cost.curves.items():
        print(f"batch {batch}, ms of a step: " + " ".join(f"{1e3 * s:.1f}" for s in curve.seconds))
    options = ["--served-model-name", "mine", "--enforce-eager", "--dtype", "float32", *DAMAGE_OPTIONS]
    options += ["--max-model-len", str(CONTEXT_TOK), "--max-num-seqs", str(USERS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, START, cost, ())
        with serve(a.model, speculative, folder / "log", options, DAMAGE_ENVIRONMENT) as url:
            client = Client(url)
            arms: dict[str, list[Any]] = {"on": [], "steered": [], "off": []}
            for policies, arm in ((START, "on"), (ALWAYS_OFF, "off")):
                arms[arm].append(fixed(client, "mine", phases, policies, a.phase / 2))
            found, lines = steered(client, "mine", phases, folder, a.phase, a.seed)
            arms["steered"].append(found)
            for policies, arm in ((ALWAYS_OFF, "off"), (START, "on")):
                arms[arm].append(fixed(client, "mine", phases, policies, a.phase / 2))
    show(arms, lines)
    if a.json:
        write_json(a.json, {"setup": str(setup), "cost": cost.to_mapping(), "arms": arms, "lines": list(lines)})


if __name__ == "__main__":
    main()
