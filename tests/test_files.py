import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from draftgate.errors import ConfigError, InputError
from draftgate.files import dump_yaml, read_yaml, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.bin"
    for data in (b"old", b"new and longer", b""):
        write_atomic(path, data)
        assert path.read_bytes() == data
    assert names(path.parent) == ["file.bin"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace", "fdopen"])
def test_a_full_disk_leaves_the_old_file_whole_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(InputError, match=f"^{path}: cannot be written: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file.bin", b"new")
    assert names(tmp_path) == []


def test_bytes_are_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(handle: int) -> None:
        order.append(f"fsync {os.fstat(handle).st_size}")
        fsync(handle)

    def spy_replace(source: str, target: Path) -> None:
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write_atomic(tmp_path / "file.bin", b"12345")
    assert order == ["fsync 5", "replace"]


def test_a_folder_in_the_place_of_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file.bin").mkdir()
    with pytest.raises(InputError, match=r"file.bin: cannot be written: Is a directory"):
        write_atomic(tmp_path / "file.bin", b"new")
    assert names(tmp_path) == ["file.bin"]


def test_a_file_in_the_place_of_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").write_bytes(b"old")
    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "folder" / "file.bin", b"new")
    assert (tmp_path / "folder").read_bytes() == b"old"


# YAML


def read(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def test_reads_plain_types(tmp_path: Path) -> None:
    text = "\ufeffa: [1, 2.5, 1e-3, -2E+4, 1.5e-3, .inf, yes, null, text, 'é']\n1: {b: 0x10}\n"
    assert read(tmp_path, text) == {
        "a": [1, 2.5, 0.001, -20000.0, 0.0015, float("inf"), True, None, "text", "é"],
        1: {"b": 16},
    }
    assert read(tmp_path, "e3: 3e\nf: 1e5x\ng: '1e5'") == {"e3": "3e", "f": "1e5x", "g": "1e5"}


REFUSED: list[tuple[str | bytes, str]] = [
    ("a: 1\nb: 2\na: 3", "line 3: 'a' is given twice"),
    ("a:\n  b: {c: 1, c: 2}", "line 2: 'c' is given twice"),
    ("1: a\n0x1: b", "line 2: '1' is given twice"),
    ("a: &a [1]\nb: *a", "line 2: aliases and tags are not read"),
    ("a: &a [*a]", "line 1: aliases and tags"),
    ("a: !!int ''", "line 1: aliases and tags"),
    ("a: !!python/object/apply:os.getcwd []", "line 1: aliases and tags"),
    ("a: [1", "line 1: "),
    ("a: b: c", "line 1: mapping values are not allowed here"),
    ("a: =", "line 1: could not determine a constructor"),
    ("? [a]\n: b", "line 1: found unhashable key"),
    ("--- a\n--- b", "but found another document"),
    ("a: \x01", "special characters are not allowed"),
    (b"a: \xff", "codec can't decode byte"),
    ("a: 2001-99-99", "month must be in 1..12"),
    ("a: 0001-01-01 00:00:00+23:00\nb: [", "line "),
    ("1" * 5000, "limit"),
    ("[" * 5000, "recursion"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_plain_yaml_is_refused_by_file_and_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path / 'file.yaml'}: is not plain YAML: .*{message}"):
        read(tmp_path, text)


def test_a_bomb_of_aliases_is_refused_unread(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    with pytest.raises(ConfigError, match="line 2: aliases"):
        read(tmp_path, bomb)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path / 'none.yaml'}: cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["0E0", "1e-3", "-2E+5", "12", "true", "~", "2026-01-01", "a: b"])
def test_text_that_looks_like_something_else_stays_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.yaml").write_bytes(dump_yaml({"name": text}))
    assert read_yaml(tmp_path / "f.yaml") == {"name": text}
