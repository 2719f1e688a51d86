"""Everything fails at random, and what must hold all the same.

python benchmarks/chaos.py [--seconds 1800] [--seed 0]

The engine is simulated; what stands between it and the loop is real: HTTP, Prometheus' text, the policy route, the
state file and the lease. Faults come and go in episodes that overlap. A kill ends a controller between any two things
that it does and starts a new one from the state file. Now and then all is well for a while, and then the loop must have
settled. It ends with an error at the first look at which something does not hold:

- a look of the loop raises nothing;
- what is put in force is the operator's policy with its knobs in their bounds;
- the state file can be read, and one controller acts at a time;
- after a calm, speculation that pays is on, and the last written policies are in force.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from draftgate.control import state
from draftgate.control.assemble import Options, lanes
from draftgate.control.breaker import Limits
from draftgate.control.counters import CounterWindows, Snapshot
from draftgate.control.lease import Lease
from draftgate.control.loop import Loop
from draftgate.control.setting import Setting
from draftgate.control.source import VLLM, PrometheusSource
from draftgate.control.target import HttpChannel
from draftgate.control.window import Window
from draftgate.errors import DraftgateError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, parse
from draftgate.simulate.engine import Engine
from draftgate.simulate.load import load_plant
from draftgate.simulate.plant import Conditions, Plant
from draftgate.simulate.scenario import Moment, Now

_DATA = Path(__file__).parents[1] / "tests" / "data" / "lookup-run"

_SLOW_S = 0.15  # longer than whoever asks should wait


def exposition(seen: Snapshot, model: str = "simulated") -> str:
    """Totals in Prometheus' text format, under vLLM's names."""
    label = f'model_name="{model}"'
    lines = [f"{VLLM['started_s']} {seen.started_s}"]
    plain = ("drafts", "drafted", "accepted", "generated", "first_tok", "steps", "sequence_s", "running")
    values = {name: getattr(seen, name) for name in plain}
    lines += [f"{VLLM[name]}{{{label}}} {value}" for name, value in values.items() if value is not None]
    lines.append(f'{VLLM["requests"]}{{{label},finished_reason="stop"}} {seen.requests}')
    lines += [f'{VLLM["kept"]}{{{label},position="{i}"}} {n}' for i, n in enumerate(seen.kept)]
    return "\n".join(lines) + "\n"


def _negative(text: str) -> str:
    return text.replace(f"{VLLM['drafted']}{{", f"{VLLM['drafted']}_gone{{") + f"{VLLM['drafted']} -5\n"


# What a scrape may turn into; what is not text is a way to fail.
METRICS_FAULTS: Mapping[str, Callable[[str], str] | None] = {
    "error": None,
    "gone": None,
    "slow": None,
    "short": None,
    "cut": lambda text: text[: len(text) // 2],
    "nan": lambda text: text + f"{VLLM['accepted']} NaN\n",
    "negative": _negative,
    "two models": lambda text: text + text.replace("simulated", "other"),
    "page": lambda text: "<html><body>login</body></html>\n",
    "nothing": lambda text: "",
    "gap": lambda text: text + f'{VLLM["kept"]}{{model_name="simulated",position="63"}} 1\n',
    "zeros": lambda text: "".join(f"{line.rpartition(' ')[0]} 0\n" for line in text.splitlines()),
    "huge": lambda text: text + f"{VLLM['accepted']} 1e300\n",
}

POLICY_FAULTS = ("error", "gone", "slow", "deaf", "other", "page")


@dataclass
class Server:
    """What answers, and how.

    Attributes:
        engine: whose figures and policies they are.
        metrics_fault, policy_fault: names of the present faults; None answers as it should.
        stuck: the last scrape is given again and again.
        url: where it listens.
        wrote: takes each policy set that was put in force.
    """

    engine: Engine
    wrote: Callable[[PolicySet], None]
    metrics_fault: str | None = None
    policy_fault: str | None = None
    stuck: bool = False
    url: str = ""
    _last: str = ""
    _never: threading.Event = field(default_factory=threading.Event)

    def get_metrics(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a scrape."""
        if not self.stuck or not self._last:
            self._last = exposition(self.engine.scrape())
        spoil = None if self.metrics_fault is None else METRICS_FAULTS[self.metrics_fault]
        self._answer(handler, self.metrics_fault, spoil(self._last) if spoil else self._last)

    def get_policy(self, handler: BaseHTTPRequestHandler) -> None:
        """Say what is in force."""
        self._answer(handler, self.policy_fault, json.dumps({"digest": self.engine.in_force()}))

    def put_policy(self, handler: BaseHTTPRequestHandler) -> None:
        """Put policies in force, or say so."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        try:
            policies = parse(json.loads(body))
        except (DraftgateError, ValueError) as error:
            return _send(handler, 400, str(error))
        if self.policy_fault is None:
            self.engine.write(policies)
            self.wrote(policies)
        digest = "0" * 16 if self.policy_fault == "other" else policies.digest()
        return self._answer(handler, self.policy_fault, json.dumps({"digest": digest}))

    def _answer(self, handler: BaseHTTPRequestHandler, fault: str | None, text: str) -> None:
        if fault == "gone":
            handler.close_connection = True
        elif fault == "error":
            _send(handler, 500, "internal error")
        elif fault == "slow":
            self._never.wait(_SLOW_S)
            _send(handler, 200, text)
        elif fault == "short":
            _send(handler, 200, text, len(text) + 100)
        else:
            _send(handler, 200, "<html>" if fault == "page" else text)


def _send(handler: BaseHTTPRequestHandler, code: int, text: str, length: int | None = None) -> None:
    body = text.encode()
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Listen on a free port of this machine meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (server.get_metrics if self.path == "/metrics" else server.get_policy)(self)

        def do_PUT(self) -> None:
            server.put_policy(self)

        def log_message(self, format: str, *args: object) -> None:
            return

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            return  # a client that did not wait

    http = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


_TIMEOUT_S = 0.1
_INTERVAL_S = 10.0
_STORM, _CALM = 300, 120  # looks; a calm is longer than any back-off below
_AT_REST = 20  # looks at the end of a calm


_EPISODES = ("metrics", "policy", "stuck", "disk", "clock", "draft", "restart", "reset", "meddler", "hang")


class Broken(DraftgateError):
    """Something that must always hold did not."""


class _Killed(BaseException):
    """No handler of the loop may stop it."""


@dataclass(slots=True)
class Tally:
    """What happened.

    Attributes:
        looks: of controllers.
        faults: episodes begun, by kind.
        kills, takeovers, writes: controllers killed, changes of who controls, policy sets put in force.
        settled: calms after which the loop had settled.
    """

    looks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    takeovers: int = 0
    writes: int = 0
    settled: int = 0


class _Fuse:
    """Kills at a call that was chosen beforehand."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise _Killed


class _Mortal:
    """A source and a target that may be the last thing a controller touches."""

    def __init__(self, source: PrometheusSource, target: HttpChannel, fuse: _Fuse) -> None:
        self._source, self._target, self._fuse = source, target, fuse

    @property
    def left_out(self) -> str | None:
        return self._source.left_out

    def poll(self) -> list[Window]:
        self._fuse.burn()
        windows = self._source.poll()
        self._fuse.burn()
        return windows

    def write(self, policies: PolicySet) -> None:
        self._fuse.burn()
        self._target.write(policies)
        self._fuse.burn()

    def in_force(self) -> str | None:
        self._fuse.burn()
        return self._target.in_force()


class Chaos:
    """One engine, two controllers that share a state file and a lease, and all their troubles.

    Attributes:
        tally: what happened so far.
    """

    def __init__(self, plant: Plant, options: Options, folder: Path, seed: int) -> None:
        """Set the scene; a folder that is empty."""
        self.tally = Tally()
        self._plant, self._options, self._folder = plant, options, folder
        self._rng = random.Random(seed)
        self._base = PolicySet((plant.policy,), plant.policy.name)
        self._wrong = False
        self._skew_s = 0.0
        self._until: dict[str, int] = {}  # look at which an episode ends
        windows = CounterWindows()  # of a poll that nobody asks for
        setting = Setting.of(plant.policy)
        self._engine = Engine(plant, self._scenario, setting, 10**9, np.random.default_rng(seed), windows)
        self._server = Server(self._engine, self._wrote)
        self._state = folder / "state" / "control.json"
        self._fuses = [_Fuse(), _Fuse()]
        self._loops: list[tuple[Loop, Lease]] = []
        self._holder: int | None = None
        self._digest: str | None = None  # of what was put in force last

    def run(self, go_on: Callable[[], bool]) -> Tally:
        """Storms and calms for as long as `go_on` says, asked before each.

        Raises:
            Broken: something that must always hold did not.
        """
        with serving(self._server), ExitStack() as stack:
            self._loops = [self._start(0), self._start(1)]
            stack.callback(lambda: [lease.release() for _, lease in self._loops])
            while go_on():
                for _ in range(_STORM):
                    self._stir()
                    self._look()
                self._calm()
        return self.tally

    def _start(self, which: int) -> tuple[Loop, Lease]:
        fuse = self._fuses[which]

        def clock() -> float:
            fuse.burn()
            return self._engine.now_s + self._skew_s

        def say(line: Mapping[str, Any]) -> None:
            json.dumps(line, allow_nan=False)
            fuse.burn()

        lease = Lease(self._folder / "lease", lambda: self._engine.now_s)
        source = PrometheusSource(self._server.url, timeout_s=_TIMEOUT_S, clock=clock)
        ends = _Mortal(source, HttpChannel(self._server.url, timeout_s=_TIMEOUT_S), fuse)
        made = lanes(self._base, False, self._options, random.Random(self._rng.random()))
        return Loop(self._base, ends, ends, made, self._state, lease, say, clock), lease

    def _stir(self) -> None:
        """End episodes that are over, and begin others."""
        look = self.tally.looks
        for kind in [k for k, end in self._until.items() if end <= look]:
            self._set(kind, False)
            del self._until[kind]
        if self._rng.random() < 0.1:
            kind = self._rng.choice(_EPISODES)
            if kind not in self._until:
                self._until[kind] = look + self._rng.choice((1, 3, 10, 30))
                self._set(kind, True)
        for fuse in self._fuses:
            if self._rng.random() < 0.03:
                fuse.left = self._rng.randrange(20)

    def _set(self, kind: str, on: bool) -> None:
        fault: str | None = None
        if kind == "metrics":
            fault = self._server.metrics_fault = self._rng.choice(list(METRICS_FAULTS)) if on else None
        elif kind == "policy":
            fault = self._server.policy_fault = self._rng.choice(POLICY_FAULTS) if on else None
        elif kind == "stuck":
            self._server.stuck = on
        elif kind == "disk":
            self._set_disk(on)
        elif kind == "clock":
            self._skew_s = self._rng.choice((-7200.0, -60.0, 60.0, 7200.0)) if on else 0.0
        elif kind == "draft":
            self._wrong = on
        elif on and kind == "restart":
            self._engine.restart(self._engine.now_s)
        elif on and kind == "reset":
            self._engine.restart(self._engine.scrape().started_s or 0.0)
        elif on and kind == "meddler":
            self._engine.write(PolicySet((Policy("other", length=Fixed(1)),), "other"))
        if on:
            self.tally.faults[f"{kind}: {fault}" if fault else kind] += 1

    def _set_disk(self, full: bool) -> None:
        """Put a file in the way of the state's folder, or take it away; what was there is kept."""
        folder, away = self._state.parent, self._state.parent.with_name("away")
        if full:
            if folder.exists():
                folder.rename(away)
            folder.write_bytes(b"")
        else:
            folder.unlink()
            if away.exists():
                away.rename(folder)

    def _look(self) -> None:
        """Let the engine run, and both controllers look once, the one that hangs excepted."""
        self._engine.advance(_INTERVAL_S)
        self.tally.looks += 1
        hangs = self._holder if "hang" in self._until else None
        for which in range(2):
            if which != hangs:
                self._tick(which)
        self._check(hangs)

    def _tick(self, which: int) -> None:
        loop, lease = self._loops[which]
        try:
            loop.tick()
        except _Killed:
            self.tally.kills += 1
            lease.release()  # as the system does for a process that has ended
            self._loops[which] = self._start(which)
        except Exception as error:
            raise Broken(f"look {self.tally.looks}: the loop raised {error!r}") from error

    def _check(self, hangs: int | None) -> None:
        holders = [i for i, (loop, _) in enumerate(self._loops) if loop.controls and i != hangs]
        if len(holders) > 1:
            raise Broken(f"look {self.tally.looks}: two controllers at once")
        if holders and holders[0] != self._holder:
            self.tally.takeovers += self._holder is not None
            self._holder = holders[0]
        if (damage := state.load(self._state).damage) and "disk" not in self._until:
            raise Broken(f"look {self.tally.looks}: the state file is damaged: {damage}")

    def _wrote(self, policies: PolicySet) -> None:
        """Whatever is put in force must be the operator's policy with its knobs in their bounds."""
        self.tally.writes += 1
        self._digest = policies.digest()
        mine, base = policies.of(), self._plant.policy
        settled = Setting.of(mine)
        if policies.default != base.name or (mine.rule, mine.tau) != (base.rule, base.tau):
            raise Broken(f"look {self.tally.looks}: other policies were written: {policies}")
        if settled.k > base.length.most:
            raise Broken(f"look {self.tally.looks}: drafts of {settled.k} were written")

    def _calm(self) -> None:
        """All is well for a while: the loop must come to rest with speculation on, and in force what it wants."""
        for kind in list(self._until):
            self._set(kind, False)
        self._until.clear()
        for fuse in self._fuses:
            fuse.left = None
        engine, on = self._engine, []
        for _ in range(_CALM):
            self._look()
            on.append(engine.setting.on)
        engine.advance(_INTERVAL_S)  # what was written at the last look comes in force
        if sum(loop.controls for loop, _ in self._loops) != 1:
            raise Broken(f"look {self.tally.looks}: nobody controls after a calm")
        if sum(on[-_AT_REST:]) <= _AT_REST / 2:  # but for a window in which off is tried
            raise Broken(f"look {self.tally.looks}: speculation pays, and is still off after a calm")
        if engine.in_force() != self._digest:
            raise Broken(f"look {self.tally.looks}: other policies are in force than were written last, after a calm")
        self.tally.settled += 1

    def _scenario(self, at: Moment) -> Now:
        return Now(Conditions(((at.names[0], 1.0),), wrong=float(self._wrong)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    end_s = time.monotonic() + a.seconds
    with tempfile.TemporaryDirectory() as folder:
        tally = chaos(Path(folder), a.seed).run(lambda: time.monotonic() < end_s)
    print(tally)


def chaos(folder: Path, seed: int) -> Chaos:
    """On recorded code edits, with times to recover that are short."""
    plant = load_plant(_DATA, clock=0.1)
    limits = Limits(cap_s=240.0)
    return Chaos(plant, Options(cost=plant.cost, breaker=limits), folder, seed)


if __name__ == "__main__":
    main()
