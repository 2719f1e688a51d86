import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftgate.control.lease import Lease
from draftgate.errors import InputError

HOLD = """
import sys, time
from pathlib import Path
from draftgate.control.lease import Lease
lease = Lease(Path(sys.argv[1]), time.monotonic)
print(lease.held(), flush=True)
sys.stdin.read()
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lease."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def test_one_of_two_holds_and_the_other_takes_over_when_it_lets_go(tmp_path: Path) -> None:
    first, second = (Lease(tmp_path / "lease", Clock()) for _ in range(2))
    assert (first.held(), second.held()) == (True, False)
    assert f"process {os.getpid()} on " in second.holder
    first.release()
    assert second.held()
    assert not first.held()


def test_a_killed_holder_frees_it_at_once(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease", Clock())
    with holder(tmp_path / "lease") as process:
        assert not lease.held()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lease.held()


def test_a_hung_holder_is_replaced_and_notices(tmp_path: Path) -> None:
    clock = Clock()
    hung, standby = Lease(tmp_path / "lease", clock), Lease(tmp_path / "lease", clock, stale_s=60.0)
    assert hung.held()
    assert not standby.held()
    clock.now_s = 61.0
    assert standby.held()
    assert not hung.held()
    clock.now_s = 100.0
    assert standby.held()


def test_a_holder_that_beats_is_not_replaced(tmp_path: Path) -> None:
    clock = Clock()
    holds, standby = Lease(tmp_path / "lease", clock), Lease(tmp_path / "lease", clock, stale_s=60.0)
    for _ in range(20):
        assert holds.held()
        assert not standby.held()
        clock.now_s += 50.0


def test_a_removed_lease_file_is_taken_again_by_one(tmp_path: Path) -> None:
    first, second = (Lease(tmp_path / "lease", Clock()) for _ in range(2))
    assert first.held()
    (tmp_path / "lease").unlink()
    assert [second.held(), first.held()] == [True, False]


def test_a_file_that_is_replaced_while_it_is_taken_is_not_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, real = Lease(tmp_path / "lease", Clock()), fcntl.flock

    def replaced_first(file: int, how: int) -> None:
        (tmp_path / "other").write_text("")
        (tmp_path / "other").replace(tmp_path / "lease")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced_first)
    assert not lease.held()
    monkeypatch.undo()
    assert lease.held()


def test_a_place_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be locked"):
        Lease(tmp_path / "file" / "lease", Clock()).held()
