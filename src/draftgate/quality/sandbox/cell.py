"""One confined process tree: started, watched from outside, and ended with everything in it."""

import marshal
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from importlib.abc import InspectLoader
from importlib.util import find_spec
from types import CodeType
from typing import Any

from draftgate.errors import DraftgateError
from draftgate.quality.sandbox.cage import Walls, sealed
from draftgate.quality.sandbox.layout import ENVIRONMENT
from draftgate.quality.sandbox.limits import Limits, Outcome
from draftgate.quality.sandbox.tree import end_children, resident_bytes

__all__ = ["Cell", "last_line", "watch"]

_INSIDE = "draftgate.quality.sandbox.inside"
_BOOT = """
import marshal, os, sys
with os.fdopen(int(sys.argv.pop()), "rb") as file:
    job = marshal.load(file)
for name, code in job["modules"]:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
sys.modules[name].start(job)
"""
"""Run inside, before anything else: the code comes along, because this package is not to be seen from in there."""

_LOOK_S = 0.05
_TRIES = 100
"""How often the command, which waits for its child, is waited for in turn, before it is ended itself."""


class Cell:
    """A started cell. Whatever happens, `end` it: until then its processes and pipes are there.

    Args:
        walls: what confines it.
        limits: what it may use.
        role: (module of `inside`, function) that takes over.
        modules: of `inside`, that the role needs, each after those that it imports.
        fds: further open files that it gets, at the same numbers.
        tells: further pipes to read from, beside stdout and stderr; closed at the end.
        stdin: what its standard input holds.
        job: further entries for the role.

    Raises:
        DraftgateError: the command cannot be run.
    """

    def __init__(
        self,
        walls: Walls,
        limits: Limits,
        role: tuple[str, str],
        modules: Sequence[str] = (),
        fds: Sequence[int] = (),
        tells: Sequence[int] = (),
        stdin: bytes = b"",
        **job: Any,
    ) -> None:
        self._walls, self._limits = walls, limits
        self._started_s, self._seconds = time.monotonic(), 0.0
        cage = walls.cage(limits)
        self._one_ends_all = cage.one_ends_all
        needed = (*modules, *(("kernel", cage.walls) if cage.walls else ()), "boot")
        told = {
            "modules": [(f"{_INSIDE}.{name}", _code(f"{_INSIDE}.{name}")) for name in needed],
            "role": (f"{_INSIDE}.{role[0]}", role[1]),
            "walls": cage.walls and f"{_INSIDE}.{cage.walls}",
            "plan": dict(cage.plan),
            "process_1": cage.process_1,
            "uid": cage.uid,
            "limits": asdict(limits) | {"processes": limits.processes + cage.counted},
        }
        (self._stdout, out), (self._stderr, err), (self._ready, tell) = os.pipe(), os.pipe(), os.pipe()
        plan, source = sealed(marshal.dumps(told | {"ready": tell} | job)), sealed(stdin)
        self._written = {fd: bytearray() for fd in (self._stdout, self._stderr, self._ready, *tells)}
        try:
            self._process = subprocess.Popen(
                [*cage.argv, "-c", _BOOT, str(plan)],
                stdin=source,
                stdout=out,
                stderr=err,
                pass_fds=(plan, tell, *cage.fds, *fds),
                env=ENVIRONMENT,
                cwd=cage.cwd,
                start_new_session=True,
            )
        except OSError as error:
            _close(self._written)
            raise DraftgateError(f"{walls.name} cannot run {cage.argv[0]}: {error.strerror}") from error
        finally:
            _close((plan, source, out, err, tell, *cage.fds))
        self.ended = os.pidfd_open(self._process.pid)
        for fd in self._written:
            os.set_blocking(fd, False)

    @property
    def deadline_s(self) -> float:
        """When its wall clock runs out, as `time.monotonic` tells."""
        return self._started_s + self._limits.wall_s

    @property
    def pipes(self) -> Iterable[int]:
        """What it writes to, to be passed to `read` when something is there."""
        return self._written.keys()

    def read(self, fd: int) -> bool:
        """Take what is there; False at the end of the pipe."""
        some = _take(fd)
        self._written[fd] += some or b""
        return some != b""

    def written(self, fd: int) -> bytes:
        """What came through a pipe so far."""
        return bytes(self._written[fd])

    def talks_too_much(self) -> bool:
        """Whether it wrote more than it may."""
        return sum(map(len, self._written.values())) > self._limits.output_bytes

    def takes_too_much(self) -> bool:
        """Whether its processes hold more memory than they may."""
        return resident_bytes(self._process.pid) > self._limits.memory_bytes

    def wait(self, seconds: float) -> bool:
        """Let it end by itself, for a while; whether it did."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.ended, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def drain(self) -> None:
        """Take what is in the pipes now."""
        for fd, written in self._written.items():
            while some := _take(fd):
                written += some

    def end(self) -> None:
        """End every process of it, and take what its pipes still hold."""
        if not self._one_ends_all:
            os.killpg(self._process.pid, signal.SIGKILL)
        tries = 0
        while not self.wait(_LOOK_S if tries else 0):
            if tries < _TRIES:
                end_children(self._process.pid)  # there may be none yet
            else:
                self._process.kill()
            tries += 1
        self._process.wait()
        self._seconds = time.monotonic() - self._started_s
        self.drain()
        _close((self.ended, *self._written))

    def outcome(self, cut: str | None) -> Outcome:
        """How it ended, once it has; `cut` is the limit that ended it, None when it ended by itself.

        Raises:
            DraftgateError: the program never started, because the walls could not be built.
        """
        code = self._process.returncode
        code = code if code >= 0 else 128 - code
        out, err = (self._written[fd].decode("utf-8", "replace") for fd in (self._stdout, self._stderr))
        if not cut and not self._written[self._ready]:
            raise DraftgateError(f"{self._walls.name} could not start a cell: {last_line(err) or f'status {code}'}")
        cut = cut or ("output" if self.talks_too_much() else None)  # the rest, after the end
        most = self._limits.output_bytes
        return Outcome(cut or _kind(code, err), code, out[:most], err[:most], self._seconds)


def watch(cells: Sequence[Cell]) -> str | None:
    """Read from all cells until the first one ends; the limit that one of them passed instead, if one did."""
    first = cells[0]
    with selectors.DefaultSelector() as selector:
        selector.register(first.ended, selectors.EVENT_READ)
        for cell in cells:
            for fd in cell.pipes:
                selector.register(fd, selectors.EVENT_READ, cell)
        look_s = time.monotonic()
        while (now_s := time.monotonic()) < first.deadline_s:
            for key, _ in selector.select(min(first.deadline_s - now_s, _LOOK_S)):
                if key.fd == first.ended:
                    first.drain()
                    return None
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
                if key.data.talks_too_much():
                    return "output"
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + _LOOK_S
                if any(cell.takes_too_much() for cell in cells):
                    return "memory"
    return "timeout"


def last_line(text: str) -> str:
    """Of an error output, what matters."""
    return text.rstrip().rpartition("\n")[2]


def _kind(code: int, err: str) -> str:
    if code == 0:
        return "ok"
    if code == 128 + signal.SIGXCPU:
        return "timeout"
    if last_line(err).startswith("MemoryError"):
        return "memory"
    return "killed" if code > 128 else "failed"


def _take(fd: int) -> bytes | None:
    """Up to 64 KiB; nothing at the end, None when there is nothing yet."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


@cache
def _code(module: str) -> CodeType:
    spec = find_spec(module)
    assert spec
    assert isinstance(spec.loader, InspectLoader)
    code = spec.loader.get_code(module)
    assert code
    return code
