"""The control loop: metrics in, one decision line per decision out, and what is wanted kept in force.

    loop = Loop(base, source, channel, lanes, state_path, lease, say=print)
    while not stopped.wait(10):
        loop.tick()
    loop.stop("keep")

What fails is reported, held and tried again; nothing that a source, an engine or a disk does ends the loop. The state
is written before the policies are: a loop killed between the two finds at its next start what it had decided.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from draftgate.control import state
from draftgate.control.compose import ALL, compose, controlled
from draftgate.control.lane import Decision, Lane
from draftgate.control.lease import Lease
from draftgate.control.setting import OFF, Setting
from draftgate.control.source import Source
from draftgate.control.watch import LaneState, Look, Watcher
from draftgate.control.window import Window
from draftgate.errors import DraftgateError
from draftgate.policy.policyset import PolicySet, dump, parse

__all__ = ["Loop", "OnExit", "Target"]

OnExit = Literal["keep", "restore", "off"]

_SETTLE_S = 5.0  # an engine takes a new file at a later step, and one fresher than two seconds at the second look
_RETRY_CAP_S = 300.0


class Target(Protocol):
    """Where policies are put in force."""

    def write(self, policies: PolicySet) -> None:
        """Put a set in force, or raise a DraftgateError."""
        ...

    def in_force(self) -> str | None:
        """Digest of the set that is in force; None when that cannot be told."""
        ...


class Loop:
    """Controls the workloads of one engine.

    Attributes:
        controls: whether this process holds the lease.
        fresh_s: when metrics last arrived, by the clock; None before.
    """

    def __init__(
        self,
        base: PolicySet,
        source: Source,
        target: Target,
        lanes: Sequence[Lane],
        state_path: Path,
        lease: Lease | None,
        say: Callable[[Mapping[str, Any]], None],
        clock: Callable[[], float] = time.time,
        dry_run: bool = False,
        watcher: Watcher | None = None,
    ) -> None:
        """Put the parts together; nothing is read or written yet.

        Args:
            base: the operator's policies, which settings are applied to.
            lanes: one for `compose.ALL`, or one for each workload that `base` names, or both.
            lease: None when nobody else can be controlling.
            say: takes each decision as a mapping of plain values.
            dry_run: decide and say, write nothing.
            watcher: is shown every tick; must not raise.
        """
        self.controls = False
        self.fresh_s: float | None = None
        self._base, self._source, self._target = base, source, target
        self._lanes = {lane.name: lane for lane in lanes}
        self._state_path, self._lease, self._clock, self._dry_run = state_path, lease, clock, dry_run
        self._emit, self._watcher = say, watcher
        self._said: dict[str, str | None] = {}
        self._started_s = clock()
        self._digest: str | None = None  # of what was written last
        self._written_s: float | None = None
        self._failures = 0
        self._refused = False  # whether the last write failed
        self._retry_s = 0.0
        self._is_in_force: bool | None = None  # what is wanted, at the last look; None when that cannot be told
        self._decisions: list[Decision] = []  # of this tick

    def tick(self) -> list[Decision]:
        """Look, decide, and act once."""
        now_s, self._decisions = self._clock(), []
        if not self._may_control(now_s):
            self._show(now_s, [])
            return []
        windows = self._poll(now_s)
        in_force = None if self._dry_run else self._in_force()
        trusted = self._in_force_as_wanted(in_force, now_s)
        decisions = [d for window in windows if (d := self._judge(window, now_s, trusted))]
        age_s = max(now_s - (self._started_s if self.fresh_s is None else self.fresh_s), 0.0)
        decisions += [d for lane in self._lanes.values() if (d := lane.wait(now_s, age_s))]
        for decision in decisions:
            self._decided(decision)
        self._save()
        self._put_in_force(in_force, now_s)
        self._show(now_s, windows)
        return decisions

    def stop(self, on_exit: OnExit) -> None:
        """Leave: keep what is in force, restore the operator's policies, or leave speculation off."""
        if self.controls and not self._dry_run and self._may_control(self._clock()):
            if on_exit != "keep":
                off = dict.fromkeys(self._lanes, OFF)
                self._write(self._base if on_exit == "restore" else compose(self._base, off), self._clock())
            self._save()
        if self._lease is not None:
            self._lease.release()
        self._say(action="stop", reason=f"{on_exit} on exit" if self.controls else "was standing by")

    def _may_control(self, now_s: float) -> bool:
        try:
            held = self._lease is None or self._lease.held()
        except DraftgateError as error:
            held = False
            self._topic("lease", "standby", str(error))
        else:
            holder = "" if self._lease is None else self._lease.holder
            self._topic("lease", "standby", None if held else f"another controller holds the lease: {holder}")
        if held and not self.controls:
            self._restore(now_s)
        self.controls = held
        return held

    def _restore(self, now_s: float) -> None:
        """Take the state up where this or another process left it."""
        if self._dry_run:
            return
        loaded = state.load(self._state_path)
        if loaded.damage:
            state.set_aside(self._state_path)
            self._say(action="state", reason=f"{self._state_path} is damaged and was set aside: {loaded.damage}")
        same = _digest(loaded.base) == self._base.digest()
        for lane in self._lanes.values():
            saved = loaded.workloads.get(lane.name)
            problem = loaded.damage
            if saved is not None:
                problem = _restored(lane, saved, same)
            if problem:
                self._decided(lane.open(f"the saved state is lost: {problem}", now_s))

    def _poll(self, now_s: float) -> list[Window]:
        try:
            windows = self._source.poll()
        except DraftgateError as error:
            self._topic("source", "hold", f"metrics are lost: {error}")
            return []
        if self._said.get("source"):
            self._failures, self._retry_s = 0, 0.0  # an engine that is back should not be left waiting
        self._topic("source", "hold", None)
        left_out = self._source.left_out
        self._topic("left out", "hold", left_out and f"left out: {left_out}")
        self.fresh_s = now_s
        return windows

    def _judge(self, window: Window, now_s: float, trusted: bool) -> Decision | None:
        lane = self._lanes.get(controlled(self._base, window.workload))
        if lane is None or not trusted:
            return None
        before = lane.controller.setting
        decision = lane.take(window, now_s)
        if self._dry_run:
            lane.revert(before)
        return decision

    def _wanted(self) -> PolicySet:
        return compose(self._base, {lane.name: lane.setting for lane in self._lanes.values()})

    def _in_force(self) -> str | None:
        try:
            digest = self._source.in_force() or self._target.in_force()
        except DraftgateError as error:
            self._topic("read back", "hold", f"what is in force cannot be read: {error}")
            return None
        self._topic("read back", "hold", None)
        return digest

    def _in_force_as_wanted(self, digest: str | None, now_s: float) -> bool:
        """Whether the engine runs what was written last; if not, windows say nothing about our settings."""
        if self._dry_run:
            return True
        wanted = self._wanted().digest()
        self._is_in_force = None if digest is None else digest == wanted
        differs = digest != wanted if digest is not None else self._refused
        settling = self._written_s is None or 0 <= now_s - self._written_s < _SETTLE_S
        if differs and not settling:
            self._topic("in force", "retry", f"the engine has {digest or 'other policies'} in force, not {wanted}")
        elif not differs:
            self._topic("in force", "retry", None)
            self._failures = 0
        return not differs

    def _put_in_force(self, in_force: str | None, now_s: float) -> None:
        """Write what is wanted unless it is in force; where it fails or does not stick, less and less often."""
        if self._dry_run:
            return
        wanted = self._wanted()
        written = self._digest == wanted.digest()
        if in_force == wanted.digest() or (in_force is None and written and not self._refused):
            return
        self._retry_s = min(self._retry_s, now_s + _RETRY_CAP_S)  # a clock that was set back
        if written and now_s < self._retry_s:
            return
        if self._may_control(now_s):  # this process may have been suspended since it last looked
            self._write(wanted, now_s)

    def _write(self, policies: PolicySet, now_s: float) -> None:
        again = self._digest == policies.digest()
        self._failures = self._failures + 1 if again else 0
        self._digest, self._written_s = policies.digest(), now_s
        self._retry_s = now_s + min(_SETTLE_S * 2.0 ** min(self._failures, 30), _RETRY_CAP_S)
        try:
            self._target.write(policies)
        except DraftgateError as error:
            self._refused = True
            self._topic("write", "retry", f"policies cannot be put in force: {error}")
            return
        self._refused = False
        self._topic("write", "retry", None)
        self._say(action="write", reason="not in force yet" if again else "decided", digest=policies.digest())

    def _show(self, now_s: float, windows: Sequence[Window]) -> None:
        if self._watcher is None:
            return
        if not self.controls:
            self._watcher(Look(now_s, False))
            return
        failing = tuple(topic for topic, problem in self._said.items() if problem)
        wanted = self._wanted()
        lanes = {
            name: LaneState(Setting.of(wanted.of(None if name == ALL else name)), lane.breaker.phase)
            for name, lane in self._lanes.items()
        }
        shown = tuple(w for w in windows if not w.shadow), tuple(self._decisions)
        self._watcher(Look(now_s, True, self.fresh_s, self._is_in_force, failing, *shown, lanes))

    def _decided(self, decision: Decision) -> None:
        self._decisions.append(decision)
        self._say(**asdict(decision))

    def _save(self) -> None:
        if self._dry_run:
            return
        try:
            state.save(self._state_path, dump(self._base), {n: lane.to_mapping() for n, lane in self._lanes.items()})
        except DraftgateError as error:
            self._topic("state", "state", f"{error}; control goes on, and the state is written again at the next tick")
        else:
            self._topic("state", "state", None)

    def _topic(self, topic: str, action: str, problem: str | None) -> None:
        """Say a problem once when it comes or changes, and once when it is over."""
        before, self._said[topic] = self._said.get(topic), problem
        if problem and problem != before:
            self._say(action=action, reason=problem)
        elif before and not problem:
            self._say(action="recovered", reason=f"over: {before}")

    def _say(self, **line: Any) -> None:
        line = {"time_s": self._clock()} | line | ({"dry_run": True} if self._dry_run else {})
        self._emit({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()})


def _digest(base: Mapping[str, Any] | None) -> str | None:
    try:
        return None if base is None else parse(base).digest()
    except DraftgateError:
        return None


def _restored(lane: Lane, saved: Mapping[str, Any], same_base: bool) -> str | None:
    """Restore a lane; with another base only its breaker, as settings refer to the policies. Returns what failed."""
    try:
        if same_base:
            lane.restore(saved)
        else:
            lane.breaker.restore(saved.get("breaker", {}))
    except DraftgateError as error:
        return str(error)
    return None
