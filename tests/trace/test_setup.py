from dataclasses import asdict, replace

import pytest

from draftgate.errors import TraceError
from draftgate.trace.setup import Setup


@pytest.mark.parametrize("field", Setup.__dataclass_fields__)
def test_every_field_is_part_of_the_key_and_of_the_comparison(setup, field):
    other = replace(setup, **{field: 3 if field == "threads" else "other"})
    assert other.key() != setup.key()
    with pytest.raises(
        TraceError, match=f"^run: was recorded with {field} .*, but this is .*; use a new run directory"
    ):
        setup.require_same(other, "run")


def test_the_same_setup_is_the_same(setup):
    setup.require_same(Setup.from_mapping(asdict(setup)), "run")
    assert Setup.from_mapping(asdict(setup)).key() == setup.key()


@pytest.mark.parametrize("broken", [{}, {"engine": "x"}, {"colour": "red"}, [], "text"])
def test_other_fields_are_refused(setup, broken):
    data = asdict(setup) | broken if isinstance(broken, dict) and "colour" in broken else broken
    with pytest.raises(TraceError, match="written by another version"):
        Setup.from_mapping(data)
