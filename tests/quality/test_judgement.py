import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import WorkloadError
from draftgate.quality.judgement import Task, place


@given(st.text("ab\n"), st.data())
def test_a_place_leads_back_to_its_offset(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    line, column = place(text, offset)
    assert sum(len(before) + 1 for before in text.split("\n")[: line - 1]) + column - 1 == offset


def test_an_unknown_check_is_refused_with_a_suggestion() -> None:
    with pytest.raises(WorkloadError, match="unknown check 'pyton'; did you mean 'python'"):
        Task(check="pyton")
