import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from draftgate.control.assemble import Options, lanes
from draftgate.control.breaker import Limits
from draftgate.control.compose import ALL
from draftgate.control.fetch import SourceError
from draftgate.control.lease import Lease
from draftgate.control.loop import Loop
from draftgate.control.setting import Setting
from draftgate.control.target import FileChannel
from draftgate.control.window import Window
from draftgate.errors import InputError
from draftgate.policy.length import Fixed
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, load, save

BASE = PolicySet((Policy("mine", length=Fixed(6)),), "mine")
OFF_DIGEST = PolicySet((Policy("mine", length=Fixed(0)),), "mine").digest()


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Site:
    """An engine that obeys its policy file, its plant, and a loop that steers it."""

    folder: Path
    plant: Any
    clock: Clock = field(default_factory=Clock)
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    fails: bool = False
    left_out: str | None = None
    base: PolicySet = BASE
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = self.folder / "policy.yaml"
        self.state = self.folder / "state.json"
        if not self.path.exists():
            save(self.base, self.path)
        self.target: Any = FileChannel(self.path)
        self.windows: list[Window] | None = None
        self.loop = self.start()

    def start(self, lease: Lease | None = None, **more: Any) -> Loop:
        options = Options(
            cost=self.plant.cost, breaker=Limits(backoff_s=60.0, cap_s=240.0, jitter=0.0), stale_s=60.0, **self.options
        )
        made = lanes(self.base, True, options, random.Random(0))
        self.loop = Loop(self.base, self, self.target, made, self.state, lease, self.lines.append, self.clock, **more)
        return self.loop

    @property
    def setting(self) -> Setting:
        return Setting.of(load(self.path).of())

    def poll(self) -> list[Window]:
        """A window of what the file says, as long as the tick."""
        if self.fails:
            raise SourceError("metrics are gone")
        if self.windows is not None:
            return self.windows
        self.plant.now_s = self.clock.now_s - 9.0
        return [self.plant.window(self.setting)]

    def in_force(self) -> str | None:
        return None

    def tick(self, n: int = 1, seconds: float = 10.0) -> list[str]:
        """The actions of n ticks."""
        actions = []
        for _ in range(n):
            self.clock.now_s += seconds
            actions += [d.action for d in self.loop.tick()]
        return actions

    def said(self, action: str) -> list[str]:
        return [str(line["reason"]) for line in self.lines if line["action"] == action]

    def phase(self) -> str:
        return json.loads(self.state.read_text())["workloads"][ALL]["breaker"]["phase"]


@pytest.fixture
def site(tmp_path: Path, plant: Any) -> Callable[..., Site]:
    def make(base: PolicySet = BASE, options: Mapping[str, Any] | None = None, **p: Any) -> Site:
        return Site(tmp_path, plant(**({"cond": 0.8, "slope": 0.1} | p)), base=base, options=options or {})

    return make


def test_it_finds_a_better_length_and_puts_it_in_force(site: Callable[..., Site]) -> None:
    s = site(cond=0.5)
    s.tick(10)
    assert s.plant.rate(s.setting) >= 0.97 * s.plant.rate(s.plant.best(6))
    assert s.setting.k < 6
    assert all(json.dumps(line, allow_nan=False) for line in s.lines)
    assert all({"time_s", "action", "reason"} <= line.keys() for line in s.lines)


def test_steady_traffic_that_pays_never_opens(site: Callable[..., Site]) -> None:
    """2,000 windows, straight into the lane."""
    s = site(cond=0.8)
    lane = s.loop._lanes[ALL]
    actions = set()
    for t in range(2000):
        actions.add(lane.take(s.plant.window(lane.setting), float(t)).action)
        lane.wait(float(t), 0.0)
    assert actions <= {"hold", "change"}


def test_a_collapse_opens_within_one_window_and_recovery_closes(site: Callable[..., Site]) -> None:
    s = site(cond=0.8)
    s.tick(30)
    s.plant.cond = 0.05
    actions = s.tick(1)
    assert actions == ["open"]
    assert not s.setting.on
    s.tick(5)
    assert not s.setting.on
    s.plant.cond = 0.8
    actions = s.tick(30)
    assert "half-open" in actions
    assert "close" in actions
    assert s.setting.on


def test_probes_that_fail_come_less_and_less_often(site: Callable[..., Site]) -> None:
    s = site(options={"controller": "pid", "knob": "k"}, slope=0.5)
    for _ in range(3):
        s.loop._lanes[ALL]._baseline.learn(s.plant.window(Setting(False, None, 0, None)))
    s.plant.cond = 0.05
    times = [s.clock.now_s for _ in range(200) if "half-open" in s.tick()]
    gaps = [b - a for a, b in pairwise(times)]
    assert len(gaps) >= 3
    assert gaps[0] < gaps[-1] <= 240 + 60


def test_an_open_breaker_survives_a_restart_and_a_closed_one_stays_closed(site: Callable[..., Site]) -> None:
    s = site()
    s.tick(20)
    s.start()
    assert "open" not in s.tick(3)
    s.plant.cond = 0.05
    s.tick(1)
    s.plant.cond = 0.8
    s.start()
    s.tick(1)
    assert s.phase() == "open"
    assert not s.setting.on


def test_a_restart_goes_on_at_the_setting_that_was_found(site: Callable[..., Site]) -> None:
    s = site(cond=0.4)
    s.tick(20)
    found = s.setting
    assert found.k < 6
    s.start()
    s.tick(1)
    assert abs(s.setting.k - found.k) <= 1


@pytest.mark.parametrize("damage", ["", "{", '{"draftgate_control": 1, "base": {}, "workloads": {"*": {}}}'])
def test_a_damaged_state_starts_off_and_earns_its_way_back(site: Callable[..., Site], damage: str) -> None:
    s = site()
    s.tick(20)
    s.state.write_text(damage)
    s.start()
    s.tick(1)
    assert s.phase() == "open"
    assert not s.setting.on
    assert "lost" in s.said("open")[-1]
    s.tick(15)
    assert s.setting.on


def test_other_policies_keep_the_breaker_and_forget_the_settings(site: Callable[..., Site]) -> None:
    s = site()
    s.tick(20)
    s.plant.cond = 0.05
    s.tick(1)
    s.base = PolicySet((Policy("new", length=Fixed(4)),), "new")
    s.start()
    s.tick(1)
    assert s.phase() == "open"
    assert load(s.path).default == "new"


def test_lost_metrics_hold_and_then_open(site: Callable[..., Site]) -> None:
    s = site()
    s.tick(20)
    on = s.setting
    s.fails = True
    assert s.tick(6) == []
    assert s.setting == on
    assert s.tick(1) == ["open"]
    assert not s.setting.on
    assert len(s.said("hold")) == len([r for r in s.said("hold") if "lost" not in r]) + 1, "said once"
    s.tick(60)
    assert not s.setting.on, "no probe while blind"
    s.fails = False
    s.tick(30)
    assert s.setting.on
    assert s.said("recovered")


def test_what_a_source_leaves_out_is_said_once(site: Callable[..., Site]) -> None:
    s = site()
    s.left_out = "2 lines"
    s.tick(5)
    assert s.said("hold").count("left out: 2 lines") == 1
    s.left_out = None
    s.tick(2)
    assert s.said("recovered") == ["over: left out: 2 lines"]


def test_metrics_that_never_came_open_too(site: Callable[..., Site]) -> None:
    s = site()
    s.fails = True
    s.tick(7)
    assert not s.setting.on


def test_nonsense_opens_and_is_not_learned(site: Callable[..., Site]) -> None:
    s = site()
    s.tick(5)
    good = s.plant.window(s.setting)
    s.windows = [Window(**{**_fields(good), "start_s": 1e9, "end_s": 2e9, "accepted": good.drafted + 1})]
    assert s.tick(1) == ["open"]
    assert "make no sense" in s.said("open")[-1]
    assert not s.setting.on


def _fields(w: Window) -> dict[str, Any]:
    return {name: getattr(w, name) for name in Window.__slots__}


def test_windows_of_before_a_change_are_passed_over(site: Callable[..., Site]) -> None:
    s = site(cond=0.3)
    assert s.tick(1) == ["change"]
    s.plant.now_s = 0.0
    s.windows = [s.plant.window(Setting(True, None, 6, None)) for _ in range(2)]  # began long before
    assert s.tick(1) == ["hold", "hold"]
    passed_over = [r for r in s.said("hold") if "before the last change" in r]
    assert len(passed_over) == 2
    s.windows = None
    s.tick(1)
    assert [r for r in s.said("hold") if "before the last change" in r] == passed_over


def test_windows_that_came_together_with_a_change_are_passed_over(site: Callable[..., Site]) -> None:
    """Whatever their clock says, they ran before it was written."""
    s = site(cond=0.3)
    s.plant.now_s = 1e6
    s.windows = [s.plant.window(Setting(True, None, 6, None)) for _ in range(3)]
    assert s.tick(1) == ["change", "hold", "hold"]
    assert all("before the last change" in r for r in s.said("hold"))


def test_a_wrong_clock_of_the_source_does_not_stop_control(site: Callable[..., Site]) -> None:
    s = site(cond=0.3)
    s.tick(1)
    s.plant.now_s = 0.0
    actions = []
    for _ in range(20):
        s.plant.now_s = 0.0
        s.windows = [s.plant.window(s.setting)]
        actions += s.tick(1)
    passed_over = [r for r in s.said("hold") if "before the last change" in r]
    assert len(passed_over) < 20


class Liar(FileChannel):
    """Takes everything, and runs something else."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes = 0

    def write(self, policies: PolicySet) -> None:
        self.writes += 1

    def in_force(self) -> str | None:
        return BASE.digest()


def test_an_engine_that_lies_is_told_again_less_and_less_often_and_reported(site: Callable[..., Site]) -> None:
    s = site(cond=0.05, slope=0.5)
    s.target = Liar(s.path)
    s.start()
    s.tick(120)
    assert 3 <= s.target.writes <= 12
    assert any("the engine has" in r for r in s.said("retry"))
    assert len(s.said("retry")) == 1, "said once"


class Silent(FileChannel):
    """Takes policies and does not say what it runs."""

    writes = 0

    def write(self, policies: PolicySet) -> None:
        self.writes += 1
        super().write(policies)

    def in_force(self) -> str | None:
        return None


def test_an_engine_that_cannot_say_is_told_once(site: Callable[..., Site]) -> None:
    s = site(cond=0.05, slope=0.5)
    s.target = Silent(s.path)
    s.start()
    s.tick(1)
    assert s.setting.k < 6
    writes = s.target.writes
    changes = len(s.said("change"))
    s.tick(20)
    assert s.target.writes - writes == len(s.said("change")) - changes


class Deaf(FileChannel):
    """Takes nothing, and does not say what it runs."""

    def write(self, policies: PolicySet) -> None:
        raise SourceError("HTTP 404")

    def in_force(self) -> str | None:
        raise SourceError("HTTP 404")


def test_an_engine_that_comes_back_is_switched_off_at_once(site: Callable[..., Site]) -> None:
    """However long the wait until the next attempt would have been."""
    s = site(cond=0.8)
    s.tick(3)
    files, s.target, s.fails = s.target, Deaf(s.path), True
    s.start()
    while "open" not in s.tick(1):
        pass
    s.tick(4)  # off could not be written, and the next attempt is 20 s away
    assert s.setting.on
    s.loop._target, s.fails, s.windows = files, False, []
    s.tick(1, seconds=1.0)
    assert not s.setting.on


def test_windows_of_an_engine_that_takes_no_policies_teach_nothing(site: Callable[..., Site]) -> None:
    s = site(cond=0.05, slope=0.5)
    s.target = Deaf(s.path)
    s.start()
    s.tick(1)
    assert s.tick(10) == []
    assert s.said("change")[1:] == []
    assert any("HTTP 404" in r for r in s.said("retry"))


class Full(FileChannel):
    """A disk that is full for a while."""

    full = True

    def write(self, policies: PolicySet) -> None:
        if self.full:
            raise InputError("No space left on device")
        super().write(policies)


def test_a_full_disk_is_reported_and_written_when_there_is_room(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = site(cond=0.05, slope=0.5)
    s.target = Full(s.path)
    s.start()

    def no_space(*args: object) -> None:
        raise InputError("No space left on device")

    monkeypatch.setattr("draftgate.control.state.write_atomic", no_space)
    s.tick(5)
    assert s.setting.k == 6
    assert any("No space left" in r for r in s.said("retry"))
    assert any("control goes on" in r for r in s.said("state"))
    monkeypatch.undo()
    s.target.full = False
    s.tick(40)
    assert s.setting.k < 6
    assert s.state.exists()


def test_two_loops_share_a_lease_and_the_second_takes_over_where_the_first_was(site: Callable[..., Site]) -> None:
    s = site(cond=0.4)
    mono = Clock(0.0)
    first = s.start(Lease(s.folder / "lease", mono))
    second = s.start(Lease(s.folder / "lease", mono))
    for _ in range(20):
        s.clock.now_s += 10
        first.tick()
        assert second.tick() == []
    assert (first.controls, second.controls) == (True, False)
    assert len(s.said("standby")) == 1
    found = s.setting
    assert found.k < 6
    first.stop("keep")
    s.loop = second
    s.tick(1)
    assert second.controls
    assert abs(s.setting.k - found.k) <= 1


def test_a_loop_that_lost_its_lease_writes_nothing(site: Callable[..., Site]) -> None:
    s = site(cond=0.05, slope=0.5)
    mono = Clock(0.0)
    loop = s.start(Lease(s.folder / "lease", mono))
    s.tick(1)
    before = s.path.read_bytes()
    (s.folder / "lease").unlink()
    other = Lease(s.folder / "lease", mono)
    assert other.held()
    s.tick(20)
    assert not loop.controls
    loop.stop("restore")
    assert s.path.read_bytes() == before


@pytest.mark.parametrize(("on_exit", "k"), [("keep", None), ("restore", 6), ("off", 0)])
def test_what_is_left_in_force_is_chosen(site: Callable[..., Site], on_exit: Any, k: int | None) -> None:
    s = site(cond=0.4)
    s.tick(10)
    found = s.setting.k
    assert 0 < found < 6
    s.loop.stop(on_exit)
    assert s.setting.k == (found if k is None else k)
    if k == 0:
        assert load(s.path).digest() == OFF_DIGEST


def test_a_dry_run_says_and_writes_nothing(site: Callable[..., Site]) -> None:
    s = site(cond=0.05, slope=0.5)
    s.start(dry_run=True)
    before = s.path.read_bytes()
    assert "change" in s.tick(5)
    s.loop.stop("off")
    assert s.path.read_bytes() == before
    assert not s.state.exists()
    assert all(line.get("dry_run") for line in s.lines)


def test_workloads_are_steered_apart(site: Callable[..., Site], plant: Any) -> None:
    base = PolicySet((Policy("mine", length=Fixed(6)),), "mine", {"code": "mine", "chat": "mine"})
    s = site(base=base)
    plants = {"code": plant(cond=0.9, slope=0.1, seed=1), "chat": plant(cond=0.05, slope=0.5, seed=2)}

    def windows() -> list[Window]:
        out = []
        for name, p in plants.items():
            p.now_s = s.clock.now_s - 5.0
            out.append(p.window(Setting.of(load(s.path).of(name)), workload=name))
        return out

    for _ in range(20):
        s.clock.now_s += 10
        s.windows = windows()
        s.loop.tick()
    in_force = load(s.path)
    assert in_force.of("code").length.most >= 4
    assert in_force.of("chat").length.most <= 1
    assert in_force.of() == base.of()


def test_all_controllers_run_in_the_loop(site: Callable[..., Site]) -> None:
    policies = PolicySet((Policy("mine", "threshold", 0.65, length=Fixed(4)),), "mine")
    for controller in ("goodput", "pid", "pid-article"):
        s = site(base=policies, options={"controller": controller}, cond=0.7)
        s.path.unlink()
        s.state.unlink(missing_ok=True)
        save(policies, s.path)
        s.start()
        s.tick(20)
        assert json.loads(s.state.read_text())["workloads"]
