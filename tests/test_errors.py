import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate import errors
from draftgate.errors import DraftgateError, EngineError, InputError, MissingExtraError, nearest, require

NAMES = st.text("abcdef", min_size=1, max_size=8)


@given(name=NAMES, valid=st.sets(NAMES, min_size=1, max_size=6))
def test_nearest_names_only_what_is_valid(name: str, valid: set[str]) -> None:
    hint = nearest(name, valid)
    if hint.startswith("did you mean"):
        assert hint.split("'")[1] in valid
    else:
        assert hint == f"valid: {', '.join(sorted(valid))}"


@given(valid=st.sets(NAMES, min_size=1, max_size=6), data=st.data())
def test_nearest_of_a_valid_name_is_itself(valid: set[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(valid)))
    assert nearest(name, valid) == f"did you mean '{name}'?"


def test_nearest_takes_any_iterable() -> None:
    assert nearest("tua", iter(["tau", "rule"])) == "did you mean 'tau'?"


def test_require_gives_the_module() -> None:
    assert require("math", "tune") is math


@pytest.mark.parametrize("module", ["draftgate_no_such_module", "draftgate_no_such_module.inner"])
def test_require_names_the_extra(module: str) -> None:
    with pytest.raises(MissingExtraError, match=rf"^{module} is not installed.*pip install 'draftgate\[tune\]'$"):
        require(module, "tune")


def test_require_does_not_hide_a_wrong_name_inside_an_installed_package() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        require("json.nothing", "tune")


def test_require_does_not_hide_what_an_installed_package_itself_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draftgate_half_installed.py").write_text("import draftgate_no_such_module\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ModuleNotFoundError, match="draftgate_no_such_module"):
        require("draftgate_half_installed", "tune")


def test_exit_codes_tell_input_from_failure() -> None:
    tree = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert all(issubclass(error, DraftgateError) for error in tree)
    assert {error.exit_code for error in tree if issubclass(error, InputError)} == {2}
    assert {error.exit_code for error in tree if not issubclass(error, InputError)} == {1}
    assert EngineError.exit_code == 1


def test_the_docstring_shows_every_error() -> None:
    tree = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert [name for name in tree if f"{name} " not in (errors.__doc__ or "")] == []
