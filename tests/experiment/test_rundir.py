import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError, InputError, TraceError
from draftgate.experiment.rundir import BlockLog, RunDirectory, read_cost, read_json, recorded_threads

SETTINGS = {"budget_s": 60.0, "setup": {"threads": 2, "target": "m"}, "arms": {"a": {"verify_s": {1: (0.1, 0.2)}}}}


def test_a_new_run_is_not_resumed_and_the_next_one_is(tmp_path):
    run = RunDirectory(tmp_path / "deep" / "run")
    with run.opened(SETTINGS) as resumed:
        assert not resumed
    with run.opened(SETTINGS) as resumed:  # whole-number keys and tuples survive JSON
        assert resumed
    assert recorded_threads(run.path) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget_s": 30.0}, r"budget_s = 60\.0, not 30\.0"),
        ({"setup": {"threads": 4, "target": "m"}}, r"setup\.threads = 2, not 4"),
        ({"seed": 1}, "seed = None, not 1"),
    ],
)
def test_other_settings_are_refused_by_name(change, message, tmp_path):
    with RunDirectory(tmp_path / "run").opened(SETTINGS):
        pass
    with pytest.raises(ConfigError, match=message), RunDirectory(tmp_path / "run").opened(SETTINGS | change):
        pass


def test_a_second_process_is_refused_until_the_first_is_done(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with run.opened(SETTINGS):
        with pytest.raises(InputError, match="another draftgate process"), run.opened(SETTINGS):
            pass
        # Also with other settings: it is told about the lock, and does not overwrite the settings.
        with pytest.raises(InputError, match="another draftgate process"), run.opened({"budget_s": 1.0}):
            pass
    with run.opened(SETTINGS) as resumed:
        assert resumed


def test_a_folder_with_other_files_is_not_taken_over(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"holds 'thesis\.tex' but no run\.json"), RunDirectory(tmp_path).opened({}):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": "\udcff"}'])
def test_damaged_json_names_the_file(text, tmp_path):
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError, match=r"run\.json"), RunDirectory(tmp_path).opened(SETTINGS):
        pass


def test_damaged_costs_name_the_file(tmp_path):
    (tmp_path / "cost.json").write_text('{"curves": [{}]}')
    with pytest.raises(TraceError, match=r"cost\.json: step costs cannot be read"):
        read_cost(tmp_path / "cost.json")
    assert read_cost(tmp_path / "no.json") is None
    assert recorded_threads(tmp_path) is None


def test_a_place_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"), RunDirectory(tmp_path / "file" / "run").opened({}):
        pass


@given(st.text(min_size=1), st.text(min_size=1))
def test_workload_folders_stay_inside_and_apart(first, second):
    first, second = (name.encode("utf-8", "replace").decode() for name in (first, second))
    run = RunDirectory(Path("run"))
    assert run.of(first).parent == run.path
    assert not {"/", "\0", ".", ""} & set(run.of(first).name)
    assert (run.of(first) == run.of(second)) == (first == second)


@pytest.mark.parametrize("name", ["..", ".", "../x", "/etc", "a b", "run.json", "cost.json", ".lock", "result.json"])
def test_no_workload_folder_is_a_file_of_the_run(name):
    path = RunDirectory(Path("/r/run")).of(name)
    assert os.path.normpath(path) == str(path)
    assert path.parent == Path("/r/run")
    assert "." not in path.name


def test_plain_workload_names_are_kept():
    assert RunDirectory(Path("run")).of("code-edit_2").name == "code-edit_2"


def test_blocks_come_back_and_a_torn_line_is_cut_off(tmp_path):
    log = BlockLog(tmp_path / "w" / "live.jsonl")
    assert log.read() == []
    log.append({"a": 1})
    log.append({"a": 2})
    whole = log.path.read_bytes()
    for cut in range(len(whole) // 2 + 1, len(whole)):
        log.path.write_bytes(whole[:cut])
        assert log.read() == [{"a": 1}]
        log.append({"a": 2})
        assert log.path.read_bytes() == whole


@pytest.mark.parametrize("line", ["{", "[1]", "\x00\x00", "null"])
def test_a_damaged_whole_line_names_file_and_line(line, tmp_path):
    (tmp_path / "live.jsonl").write_text(f'{{"a": 1}}\n{line}\n{{"a": 2}}\n')
    with pytest.raises(TraceError, match=r"live\.jsonl:2: damaged"):
        BlockLog(tmp_path / "live.jsonl").read()


@pytest.mark.parametrize("full_after", [0, 5])
def test_a_full_disk_leaves_the_log_as_it_was(full_after, monkeypatch, tmp_path):
    log = BlockLog(tmp_path / "live.jsonl")
    log.append({"a": 1})
    before, write, room = log.path.read_bytes(), os.write, [full_after]

    def nearly_full(file: int, data: bytes) -> int:
        taken = data[: room[0]]
        room[0] -= len(taken)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, taken)

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(InputError, match=r"live\.jsonl: cannot be written: No space left on device"):
        log.append({"a": 2})
    assert log.path.read_bytes() == before


def test_a_log_that_cannot_be_read_is_one_error(tmp_path):
    (tmp_path / "live.jsonl").mkdir()
    with pytest.raises(InputError, match=r"live\.jsonl: cannot be read"):
        BlockLog(tmp_path / "live.jsonl").read()


def test_settings_are_written_as_json(tmp_path):
    with RunDirectory(tmp_path / "run").opened(SETTINGS):
        assert read_json(tmp_path / "run" / "run.json") == json.loads(json.dumps(SETTINGS))
