"""Every promise of `draftgate.quality.sandbox` has attacks that try to break it: programs in attacks/, kept as data.

They are named .py.txt so that nothing imports them by accident. Those that say "Unconfined: escapes" are also run
without walls, where they must get what they want: an attack that cannot succeed anywhere proves nothing.
"""

import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from draftgate.errors import ConfigError, MissingExtraError
from draftgate.quality.sandbox import Limits, Sandbox, bubblewrap, find, find_sandbox, layout, native, seccomp
from draftgate.quality.sandbox.bubblewrap import Bubblewrap
from draftgate.quality.sandbox.cell import Walls
from draftgate.quality.sandbox.landlock import Landlock
from draftgate.quality.sandbox.native import Native

HERE = Path(__file__).parent
ATTACKS = sorted(HERE.glob("attacks/*.py.txt"))
EVERY_WALLS = (Bubblewrap(), Native(), Landlock())
WALLS = [walls for walls in EVERY_WALLS if find.obstacle(walls) is None]
UNCONFINED = Sandbox(find.Unconfined())


class Host:
    """What an attack is told about this machine, more than it could find out, and whether it reached any of it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.canary, secret, path = folder / "canary", folder / "secret", str(folder / "unix")
        folder.chmod(0o777)
        secret.write_text("not for you")
        abstract, self.marker = uuid4().hex, uuid4().hex[:12]
        self.tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.unix = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for server, address in zip(self.unix, ("\0" + abstract, path), strict=True):
            server.bind(address)
            server.listen()
        self.told = json.dumps(
            {
                "abstract": abstract,
                "canary": str(self.canary),
                "marker": self.marker,
                "pid": os.getpid(),
                "secret": str(secret),
                "tcp": self.tcp.getsockname()[1],
                "udp": self.udp.getsockname()[1],
                "unix": path,
            }
        )

    def reached(self) -> list[str]:
        found = ["a file"] if self.canary.exists() else []
        for server in (self.tcp, self.udp, *self.unix):
            server.setblocking(False)
            try:
                server.recv(1) if server is self.udp else server.accept()[0].close()
                found.append("a socket")
            except BlockingIOError:
                pass
        return found

    def left(self) -> list[int]:
        """Processes that the attack called by the marker."""
        return [int(comm.parent.name) for comm in Path("/proc").glob("[0-9]*/comm") if read(comm) == self.marker]


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def header(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^# (\w+): (.*)$", path.read_text(), re.MULTILINE))


def limits(path: Path) -> Limits:
    pairs = re.findall(r"(\w+)=(\d+)", header(path).get("Limits", ""))
    return replace(Limits(), **{name: int(value) for name, value in pairs})


def promised(path: Path, walls: Walls) -> bool:
    """By these walls; a few promises are made by some only."""
    return walls.name in header(path).get("Walls", walls.name)


def marked(kind: str) -> list[Path]:
    wanted = {kind, f"{kind} for root"} if os.getuid() == 0 else {kind}
    return [path for path in ATTACKS if header(path).get("Unconfined") in wanted]


def name(value: Path | Walls) -> str:
    return value.name.partition(".")[0]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


@pytest.fixture(params=WALLS, ids=name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox(request.param)


def test_some_walls_work_here() -> None:
    assert WALLS, [find.obstacle(walls) for walls in EVERY_WALLS]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_both_kinds_of_namespaces_work_or_neither() -> None:
    """Broken walls must not drop out of the tests as walls that this machine refuses would."""
    assert (find.obstacle(Bubblewrap()) is None) == (find.obstacle(Native()) is None), find.obstacle(Bubblewrap())


@pytest.mark.parametrize("path", ATTACKS, ids=name)
def test_attack_fails(path: Path, sandbox: Sandbox, host: Host) -> None:
    head = header(path)
    if not promised(path, sandbox.walls):
        return
    outcome = sandbox.run(path.read_text(), limits(path), stdin=host.told)
    assert "ESCAPED" not in outcome.stdout
    ends = head["Alone"] if sandbox.name == "landlock" and "Alone" in head else head["Ends"]
    assert outcome.kind in ends.split(", "), outcome
    assert host.reached() == []
    assert host.left() == []


BY_WALLS = [path for path in ATTACKS if "Limits" not in header(path) and header(path).get("By") != "filter"]


@pytest.mark.parametrize("walls", [walls for walls in WALLS if walls.name != "landlock"], ids=name)
@pytest.mark.parametrize("path", BY_WALLS, ids=name)
def test_walls_hold_without_the_filter(path: Path, walls: Walls, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter of system calls is the second layer; attacks that only it stops say so."""
    if not promised(path, walls):
        return
    allow_all = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    for module in (bubblewrap, native):
        monkeypatch.setattr(module, "filter_program", lambda: allow_all)
    assert "ESCAPED" not in Sandbox(walls).run(path.read_text(), stdin=host.told).stdout
    assert host.reached() == []
    assert host.left() == []


@pytest.mark.parametrize("path", marked("escapes"), ids=name)
def test_attack_succeeds_without_walls(path: Path, host: Host) -> None:
    outcome = UNCONFINED.run(path.read_text(), replace(limits(path), processes=4096), stdin=host.told)
    assert "ESCAPED" in outcome.stdout, outcome


@pytest.mark.parametrize("path", marked("leaves a process"), ids=name)
def test_attack_leaves_a_process_without_walls(path: Path, host: Host) -> None:
    UNCONFINED.run(path.read_text(), replace(limits(path), processes=4096), stdin=host.told)
    left = host.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left or path.name.startswith("zombies")  # its process group ends those that stay in it


def test_program_is_a_script() -> None:
    program = (
        "import sys\nif __name__ == '__main__':\n    print(sys.stdin.read().upper())\n    print('é', file=sys.stderr)\n"
    )
    done = find_sandbox().run(program, stdin="hé")
    assert (done.kind, done.exit, done.stdout, done.stderr) == ("ok", 0, "HÉ\n", "é\n")


def test_traceback_shows_the_program_and_nothing_else() -> None:
    done = find_sandbox().run("def f():\n    return 1 / 0\n\nf()\n")
    assert (done.kind, done.exit) == ("failed", 1)
    assert re.findall(r"File \"(.*?)\", line (\d+)", done.stderr) == [("<program>", "4"), ("<program>", "2")]
    assert "return 1 / 0" in done.stderr


def test_status_is_told(sandbox: Sandbox) -> None:
    assert sandbox.run("raise SystemExit(7)").exit == 7
    done = sandbox.run("import os\nos.abort()")
    assert (done.kind, done.exit) in (("killed", 128 + signal.SIGABRT), ("killed", 128 + signal.SIGSEGV))


def test_what_any_program_may_use_works(sandbox: Sandbox) -> None:
    program = """
import asyncio, io, random, threading
async def three():
    await asyncio.sleep(0.001)
    return 3
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
with open("/dev/null", "rb+") as null:
    null.write(b"x")
print(asyncio.run(three()), random.random() < 1)
"""
    done = sandbox.run(program)
    assert (done.kind, done.stdout) == ("ok", "thread\n3 True\n"), done


@pytest.mark.parametrize("walls", [walls for walls in WALLS if walls.name != "landlock"], ids=name)
def test_processes_and_files_work_behind_namespaces(walls: Walls) -> None:
    program = """
import multiprocessing, os, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "x"), "w") as file:
    file.write("x")
reader, writer = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=writer.send, args=(5,))
process.start()
child = subprocess.run([sys.executable, "-S", "-c", "print(7)"], capture_output=True)
print(os.getcwd(), reader.recv(), child.stdout)
process.join()
"""
    done = Sandbox(walls).run(program)
    assert (done.kind, done.stdout) == ("ok", "/tmp 5 b'7\\n'\n"), done


def test_runs_repeat_themselves(sandbox: Sandbox) -> None:
    program = "print(list({str(i) for i in range(50)}), hash('a'))"
    assert sandbox.run(program).stdout == sandbox.run(program).stdout


def test_many_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: sandbox.run(f"print({i})").stdout, range(24)))
    assert done == [f"{i}\n" for i in range(24)]


def test_nothing_stays_open(sandbox: Sandbox) -> None:
    sandbox.run("print(1)")
    before = set(os.listdir("/proc/self/fd"))
    for program in ("print(1)", "import os\nos._exit(1)", "1 / 0"):
        sandbox.run(program)
    assert set(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == 1


LONELY = """
import sys
from draftgate.quality.sandbox import Sandbox
from draftgate.quality.sandbox.{module} import {walls}
program = '''
import ctypes, time
ctypes.CDLL(None).prctl(15, b'{marker}', 0, 0, 0)
time.sleep(60)
'''
Sandbox({walls}()).run(program)
"""


def test_cell_ends_with_the_tool(sandbox: Sandbox, host: Host) -> None:
    """Killed, the tool cannot clean up; the kernel does."""
    walls = type(sandbox.walls)
    source = LONELY.format(module=walls.__module__.rpartition(".")[2], walls=walls.__name__, marker=host.marker)
    tool = subprocess.Popen([sys.executable, "-c", source])
    while not (left := host.left()):
        assert tool.poll() is None
    ended = select.poll()
    for pid in left:
        ended.register(os.pidfd_open(pid))
    tool.kill()
    tool.wait()
    for _ in left:
        ((handle, _),) = ended.poll()[:1]  # as long as it takes
        ended.unregister(handle)
        os.close(handle)
    assert host.left() == []


def test_no_walls_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "obstacle", lambda walls: "refused here")
    with pytest.raises(
        MissingExtraError,
        match=r"bubblewrap: refused here; native: .*; landlock: refused here.*apt-get install bubblewrap",
    ):
        find_sandbox()
    assert find_sandbox(allow_unsafe=True).name == "unconfined"


def test_missing_bubblewrap_is_an_obstacle() -> None:
    reason = find.obstacle(Bubblewrap(program="bwrap-that-is-not-there"))
    assert reason == "bubblewrap cannot run bwrap-that-is-not-there: No such file or directory"


def test_bubblewrap_that_cannot_build_is_an_obstacle(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'no permissions to create a namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    assert "no permissions to create a namespace" in (find.obstacle(Bubblewrap(program=str(fake))) or "")


def test_walls_that_do_not_hold_are_an_obstacle(tmp_path: Path) -> None:
    """A bwrap that does not confine, but does start the program."""
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    assert find.obstacle(Bubblewrap(program=str(fake))) is not None


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_bytes", "processes", "output_bytes", "tmp_bytes"])
def test_limits_are_positive(field: str) -> None:
    with pytest.raises(ConfigError, match=f"limit {field} must be above 0 but got 0"):
        Limits(**{field: 0})


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(MissingExtraError, match="riscv64"):
        seccomp.filter_program(machine="riscv64")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_never_jumps_past_its_end(machine: str, alone: bool) -> None:
    steps = seccomp.filter_program(alone, machine)
    n = len(steps) // 8
    assert len(steps) == 8 * n <= 8 * 4096
    for i in range(n):
        code, jump_if, jump_else = (
            int.from_bytes(steps[8 * i : 8 * i + 2], "little"),
            steps[8 * i + 2],
            steps[8 * i + 3],
        )
        assert code in (0x20, 0x15, 0x25, 0x45, 0x06)
        assert i + 1 + max(jump_if, jump_else) < n or code == 0x06


@pytest.mark.parametrize(
    ("lines", "least", "most"),
    [
        ("         0          0 4294967295\n", 1 << 30, 1 << 31),
        ("         0     100000      65536\n", 60_000, 65_534),
        ("0 1000 1\n1 100000 65536\n", 60_000, 65_534),
    ],
)
def test_uid_is_one_that_nobody_has(
    lines: str, least: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uid_map").write_text(lines)
    monkeypatch.setattr(layout, "UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    found = [uid for _ in range(20) if (uid := layout.fresh_uid()) is not None]
    assert len(set(found)) > 10
    assert all(least < uid < most for uid in found)


def test_uid_stays_where_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uid_map").write_text("         0       1000          1\n")
    monkeypatch.setattr(layout, "UID_MAP", tmp_path / "uid_map")
    for uid in (0, 1000):
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        assert layout.fresh_uid() is None
