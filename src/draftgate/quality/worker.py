"""Judging in a child process, because a text can hang or crash a parser.

Seen: 60 kB of `%w(` take tree-sitter-c 5 GB and 13 s, 100 kB of `(((]]` take tree-sitter-bash more; one text of 1 kB in
10,000 mixtures of languages takes its grammar longer than anybody waits; `ast` says that it can crash the interpreter;
a schema's pattern can backtrack without end. So a child does the work, one text after the other, within `cpu_s` and
`MEMORY_BYTES`. When it dies the text is left unchecked, and the next one gets a new child. It
ends with this process. It bounds accidents and is no sandbox: nothing of the text is ever executed.
"""

import atexit
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from draftgate import errors
from draftgate.quality.judgement import Finding, Judgement, Status, Task

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["MEMORY_BYTES", "WALL_S", "ask", "cpu_s"]

MEMORY_BYTES = 2 << 30  # of address space
WALL_S = 300.0  # for one text; only a machine that stands still gets there


def cpu_s(text: str) -> int:
    """CPU time that a text may take [s]: some ten times what the slowest grammar needs.

    >>> cpu_s("x = 1"), cpu_s("x" * 1_000_000)
    (2, 12)
    """
    return 2 + len(text) // 100_000


def ask(task: Task, text: str, finish: str | None) -> Judgement:
    """Have a text examined; safe to call from several threads, which wait for each other.

    Raises:
        DraftgateError: as `examine`, or no child can be started.
    """
    global _child
    request = pickle.dumps((task, text, finish))
    with _lock:
        _child = _child or _Child()
        reply = _child.answer(request)
        if reply is None:
            reason, _child = _child.end(text), None
            return Judgement(Status.UNCHECKED, (), (Finding("limit", f"its parser {reason}"),))
    return _judgement(json.loads(reply))


def _judgement(reply: Any) -> Judgement:
    if "error" in reply:
        raise getattr(errors, reply["error"])(reply["message"])
    findings = tuple(Finding(**finding) for finding in reply["findings"])
    return Judgement(Status(reply["status"]), tuple(reply["checked"]), findings, reply["form"])


class _Child:
    def __init__(self) -> None:
        from multiprocessing import Pipe

        self._pipe, theirs = Pipe()
        path = os.pathsep.join(filter(None, sys.path))  # whatever way this process finds the package
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "draftgate.quality.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
            )
        if self._receive() is None:
            raise errors.DraftgateError(f"the process that checks outputs {self.end()} as it started")

    def answer(self, request: bytes) -> bytes | None:
        """None when it died of the request."""
        try:
            self._pipe.send_bytes(request)
        except OSError:
            return None
        return self._receive()

    def _receive(self) -> bytes | None:
        try:
            return self._pipe.recv_bytes() if self._pipe.poll(WALL_S) else None
        except (EOFError, OSError):
            return None

    def end(self, text: str = "") -> str:
        """How it ended, over a text; it is made to, if it has not."""
        self._pipe.close()
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"took more than {WALL_S:.0f} s"
        if code == -signal.SIGXCPU:
            return f"took more than {cpu_s(text)} s of CPU time"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


_child: _Child | None = None
_lock = threading.Lock()


def _forget() -> None:
    """A forked process shares neither the child nor a lock that another thread may have held."""
    global _child, _lock
    _child, _lock = None, threading.Lock()


def _end() -> None:
    if _child is not None:
        _child.end()


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)


# The other side.


def _serve(pipe: "Connection") -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is for the parent, which ends this
    pipe.send_bytes(b"ready")
    while True:
        try:
            task, text, finish = pickle.loads(pipe.recv_bytes())
        except EOFError:  # the parent has closed its end, or is gone
            return
        until_s = math.ceil(time.process_time()) + cpu_s(text)
        resource.setrlimit(resource.RLIMIT_CPU, (until_s, resource.RLIM_INFINITY))
        pipe.send_bytes(json.dumps(_reply(task, text, finish)).encode())


def _reply(task: Task, text: str, finish: str | None) -> dict[str, Any]:
    from draftgate.quality.examine import examine

    try:
        return asdict(examine(task, text, finish))
    except errors.DraftgateError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        return asdict(Judgement(Status.UNCHECKED, (), (Finding("limit", "its parser ran out of memory"),)))
    except Exception as error:  # a plugin edge: a fault in a parser costs one judgement, not the whole run
        finding = Finding("crash", f"its parser failed: {type(error).__name__}: {error}"[:200])
        return asdict(Judgement(Status.UNCHECKED, (), (finding,)))


def main() -> None:
    """Serve until the parent closes the pipe whose descriptor is the only argument."""
    from multiprocessing.connection import Connection

    with Connection(int(sys.argv[1])) as pipe:
        _serve(pipe)


if __name__ == "__main__":
    main()
