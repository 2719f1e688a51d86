import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftgate.control import channel as module
from draftgate.control.channel import LIMIT_BYTES, Channel
from draftgate.errors import InputError
from draftgate.policy.policy import Policy
from draftgate.policy.policyset import PolicySet, dump, save

SECOND_NS = 1_000_000_000


def policies(tau: float) -> PolicySet:
    return PolicySet((Policy("mine", "threshold", tau),), "mine")


def text(tau: float) -> str:
    return f"draftgate: 1\nname: mine\nrule: threshold\ntau: {tau}\n"


@dataclass
class Clock:
    """Wall time that a test moves: files written now are fresh at 0 and rested 10 seconds later."""

    ahead_s: int = 0

    def __call__(self) -> int:
        return module.time.time_ns() + self.ahead_s * SECOND_NS


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def channel(tmp_path: Path, clock: Clock) -> Channel:
    return Channel(tmp_path / "policy.yaml", clock)


def settled(channel: Channel) -> PolicySet | None:
    """What two polls give: the change of a fresh file is taken at the second."""
    return channel.poll() or channel.poll()


def test_what_is_written_is_read(channel: Channel) -> None:
    for tau in (0.1, 0.2, 0.3):
        channel.write(policies(tau))
        assert settled(channel) == channel.current == policies(tau)
        assert channel.poll() is None
    assert (channel.error, channel.refused) == (None, 0)


def test_the_first_set_is_taken_at_once_and_a_rested_change_too(channel: Channel, clock: Clock) -> None:
    channel.write(policies(0.1))
    assert channel.poll() == policies(0.1)
    channel.write(policies(0.2))
    clock.ahead_s = 10
    assert channel.poll() == policies(0.2)


def test_the_same_policies_in_other_words_are_nothing_new(channel: Channel, clock: Clock) -> None:
    channel.write(policies(0.25))
    channel.poll()
    channel.path.write_text(text(0.25) + "# a comment\n")
    clock.ahead_s = 10
    assert channel.poll() is None
    assert channel.error is None


# Cost


def test_a_rested_file_costs_one_stat_a_poll(channel: Channel, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    channel.write(policies(0.1))
    clock.ahead_s = 10
    channel.poll()
    calls: list[object] = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    monkeypatch.setattr(module, "_read", lambda path: pytest.fail("opened"))
    for _ in range(5):
        assert channel.poll() is None
    assert calls == [(channel.path,)] * 5


def test_bad_content_is_parsed_once(channel: Channel, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    channel.path.write_text("tau: [")
    channel.poll()
    monkeypatch.setattr(module, "loads", lambda data, where: pytest.fail("parsed again"))
    for ahead_s in (0, 0, 10, 10):
        clock.ahead_s = ahead_s
        assert channel.poll() is None
    assert channel.refused == 1


# Kubernetes: kubelet's AtomicWriter fills a folder ..TIME, then renames a link ..data_tmp over ..data


def kubelet(volume: Path, stamp: str, content: str) -> None:
    old = volume / os.readlink(volume / "..data") if (volume / "..data").is_symlink() else None
    (volume / stamp).mkdir()
    (volume / stamp / "policy.yaml").write_text(content)
    os.symlink(stamp, volume / "..data_tmp")
    os.rename(volume / "..data_tmp", volume / "..data")
    if not (volume / "policy.yaml").is_symlink():
        os.symlink("..data/policy.yaml", volume / "policy.yaml")
    if old:
        shutil.rmtree(old)


@pytest.mark.parametrize("ahead_s", [0, 10])
def test_a_config_map_that_kubelet_swaps(channel: Channel, clock: Clock, ahead_s: int) -> None:
    clock.ahead_s = ahead_s
    for i, tau in enumerate((0.1, 0.2, 0.3)):
        kubelet(channel.path.parent, f"..2026_11_30_12_00_0{i}.{i}", text(tau))
        assert settled(channel) == policies(tau)
    assert (channel.error, channel.refused) == (None, 0)


def test_a_config_map_between_two_swaps_holds_one_or_the_other(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap that lands between the stat and the read, and one in the middle of the read."""
    volume = channel.path.parent
    kubelet(volume, "..1", text(0.1))
    channel.poll()
    during(monkeypatch, "open", lambda: kubelet(volume, "..2", text(0.2)))
    kubelet(volume, "..1b", text(0.15))
    assert settled(channel) == policies(0.2)
    during(monkeypatch, "fstat", lambda: kubelet(volume, "..4", text(0.4)))
    kubelet(volume, "..3", text(0.3))
    assert channel.poll() is None
    assert settled(channel) == policies(0.4)
    assert channel.refused == 0


def test_a_swap_while_a_rested_file_is_read_is_seen_at_the_next_poll(
    channel: Channel, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.ahead_s = 10
    volume = channel.path.parent
    kubelet(volume, "..1", text(0.1))
    during(monkeypatch, "fstat", lambda: kubelet(volume, "..2", text(0.2)))
    assert channel.poll() == policies(0.1)
    assert channel.poll() == policies(0.2)


def during(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Do something once, just before the channel calls this function of `os`."""
    real = getattr(os, name)

    def call(*args: object, **kwargs: object) -> object:
        monkeypatch.setattr(os, name, real)
        action()
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)


# Other writers


def test_half_a_file_can_be_valid_and_is_not_taken(channel: Channel) -> None:
    channel.write(policies(0.9))
    channel.poll()
    whole = text(0.25)
    for length in range(1, len(whole)):
        channel.path.write_text(whole[:length])
        assert channel.poll() is None
    channel.path.write_text(whole)
    assert channel.poll() is None
    assert channel.poll() == policies(0.25)
    assert channel.refused == 0


def test_a_copy_that_keeps_an_old_time_is_fresh_all_the_same(channel: Channel) -> None:
    channel.write(policies(0.9))
    channel.poll()
    channel.path.write_text(text(0.2))
    os.utime(channel.path, (0, 0))
    assert channel.poll() is None
    assert channel.poll() == policies(0.2)


def test_a_writer_that_stops_half_way_is_refused_and_can_go_on(channel: Channel) -> None:
    channel.write(policies(0.9))
    channel.poll()
    channel.path.write_text(text(0.25)[:20])
    assert settled(channel) is None
    assert channel.current == policies(0.9)
    assert "policy.yaml" in str(channel.error)
    assert channel.refused == 1
    channel.path.write_text(text(0.25))
    assert settled(channel) == policies(0.25)
    assert (channel.error, channel.refused) == (None, 1)


def test_a_change_that_leaves_no_new_stamp_is_seen(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    channel.write(policies(0.1))
    channel.poll()
    stamp = module._stamp(os.stat(channel.path))
    monkeypatch.setattr(module, "_stamp", lambda status: stamp)
    channel.write(policies(0.2))
    assert settled(channel) == policies(0.2)


def test_a_deleted_file_keeps_the_last_set_and_may_come_back(channel: Channel) -> None:
    assert channel.poll() is None
    assert str(channel.error).endswith("policy.yaml: cannot be read: No such file or directory")
    assert channel.refused == 1
    channel.write(policies(0.1))
    assert channel.poll() == policies(0.1)
    channel.path.unlink()
    for _ in range(3):
        assert channel.poll() is None
    assert channel.current == policies(0.1)
    assert channel.refused == 2
    channel.write(policies(0.1))
    assert settled(channel) is None
    assert channel.error is None
    channel.path.unlink()
    channel.poll()
    channel.write(policies(0.2))
    assert settled(channel) == policies(0.2)


INVALID: list[tuple[str, str]] = [
    (text(7), r"policy 'mine': tau must be in \[0, 1\] but got 7"),
    (text(0.5).replace("tau", "tua"), "unknown key 'tua'; did you mean 'tau'"),
    ("draftgate: 9", "reads policy version 1"),
    ("a: &a [*a]", "aliases and tags"),
    ("", "must be a mapping"),
    ("# " + "x" * LIMIT_BYTES, f"cannot be read: larger than {LIMIT_BYTES} bytes"),
]


@pytest.mark.parametrize(("content", "message"), INVALID, ids=[message for _, message in INVALID])
def test_invalid_content_keeps_the_last_good_set_and_says_why(
    content: str, message: str, channel: Channel, clock: Clock
) -> None:
    clock.ahead_s = 10
    channel.write(policies(0.1))
    channel.poll()
    for _ in range(3):
        channel.path.write_text(content)
        assert channel.poll() is None
    assert channel.current == policies(0.1)
    assert channel.refused == 1
    with pytest.raises(AssertionError, match=f"^{channel.path}: .*{message}"):
        raise AssertionError(channel.error)
    channel.write(policies(0.1))
    channel.poll()
    assert channel.error is None


def test_a_folder_a_pipe_and_a_loop_are_refused_without_waiting(channel: Channel) -> None:
    channel.path.mkdir()
    channel.poll()
    assert str(channel.error).endswith("cannot be read: Is a directory")
    channel.path.rmdir()
    os.mkfifo(channel.path)
    channel.poll()
    assert str(channel.error).endswith("cannot be read: not a file")
    channel.path.unlink()
    os.symlink(channel.path.name, channel.path)
    channel.poll()
    assert str(channel.error).endswith("cannot be read: Too many levels of symbolic links")


def test_a_file_that_grows_while_it_is_read_is_bounded(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    channel.write(policies(0.1))

    def grow() -> None:
        with channel.path.open("ab") as file:
            file.truncate(LIMIT_BYTES * 2)

    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda handle: (real(handle), grow())[0])
    assert channel.poll() is None
    assert "larger than" in str(channel.error)


def test_a_place_that_cannot_be_written_is_an_input_error(channel: Channel) -> None:
    channel.path.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        channel.write(policies(0.1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([text(t).encode() for t in (0.1, 0.2)]))))
def test_whatever_the_file_holds_a_poll_never_raises_and_the_last_good_set_stays(
    contents: list[bytes], channel: Channel, clock: Clock
) -> None:
    clock.ahead_s = 10
    channel.write(policies(0.5))
    channel.poll()
    good = policies(0.5)
    for content in contents:
        channel.path.write_bytes(content)
        good = channel.poll() or good
        assert channel.current == good
        assert (channel.error is None) == (content.startswith(b"draftgate: 1") and len(content) > 40)


def test_the_file_is_a_set_or_a_single_policy(channel: Channel, clock: Clock) -> None:
    clock.ahead_s = 10
    several = PolicySet((Policy("a"), Policy("b", "threshold", 0.3)), "a", {"code": "b", "chat": "none"})
    save(several, channel.path)
    assert channel.poll() == several
    channel.path.write_text(text(0.3))
    assert channel.poll() == policies(0.3)
    assert channel.current is not None
    assert dump(channel.current)["default"] == "mine"
