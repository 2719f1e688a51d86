import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftgate.control import state

BASE = {"draftgate": 1, "default": "exact", "policies": []}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    state.save(path, BASE, {"*": {"breaker": {"phase": "open"}}})
    loaded = state.load(path)
    assert (loaded.workloads, loaded.base, loaded.damage) == ({"*": {"breaker": {"phase": "open"}}}, BASE, None)


def test_no_file_is_a_first_start(tmp_path: Path) -> None:
    assert state.load(tmp_path / "state.json") == state.Loaded()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"draftgate_control": 2, "base": {}, "workloads": {}}',
        b'{"draftgate_control": 1, "base": {}}',
        b'{"draftgate_control": 1, "base": {}, "workloads": {"*": 3}}',
        b'{"draftgate_control": 1, "base": {}, "workloads": {"*": {"x": NaN}}}',
    ],
)
def test_damage_is_told_and_set_aside(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text)
    assert state.load(path).damage
    state.set_aside(path)
    assert not path.exists()
    assert (tmp_path / "state.json.damaged").read_bytes() == text


@given(cut=st.integers(0, 200), flip=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_raises(tmp_path: Path, cut: int, flip: int) -> None:
    path = tmp_path / "state.json"
    state.save(path, BASE, {"*": {"breaker": {"phase": "open"}}})
    data = bytearray(path.read_bytes())
    data[cut % len(data)] ^= flip
    path.write_bytes(data[: max(cut, 1)])
    loaded = state.load(path)
    assert loaded.damage or json.loads(path.read_bytes())["draftgate_control"] == 1


def test_a_folder_in_its_place_is_damage(tmp_path: Path) -> None:
    assert state.load(tmp_path).damage
