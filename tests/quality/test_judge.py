import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.examine import MAX_CHARS, examine
from draftgate.quality.judge import judge
from draftgate.quality.judgement import Finding, Judgement, Status, Task
from draftgate.quality.languages import checkable

JSON = Task(language="json")


@pytest.mark.parametrize(
    ("output", "message", "place"),
    [
        (b'["\xff"]', "not UTF-8 at byte 2: invalid start byte", (1, 3)),
        (b'[1,\n"\xc3\xa9\xe2\x82', "not UTF-8 at byte 7: unexpected end of data", (2, 3)),
        ("[1,\n\0]", "a NUL character", (2, 1)),
        (b"\0", "a NUL character", (1, 1)),
        ('["\ud800"]', "half of a surrogate pair, which is no character", (1, 3)),
    ],
)
def test_encoding(output: str | bytes, message: str, place: tuple[int, int]) -> None:
    finding = Finding("encoding", message, *place)
    assert judge(JSON, output) == Judgement(Status.INVALID, ("encoding",), (finding,))


def test_the_token_limit_may_cut_a_character() -> None:
    assert judge(JSON, b'["\xe2\x82', "length").status is Status.TRUNCATED
    assert judge(JSON, b'["\xff', "length").status is Status.INVALID
    assert judge(JSON, b'["\xe2\x82').status is Status.INVALID


def test_bytes_are_text() -> None:
    assert judge(JSON, '["\u00e9"]'.encode()) == judge(JSON, '["\u00e9"]') == examine(JSON, '["\u00e9"]')


def test_more_than_is_ever_read() -> None:
    judgement = judge(JSON, "[" + "1," * (MAX_CHARS // 2))
    assert (judgement.status, judgement.findings[0].kind) == (Status.UNCHECKED, "limit")


@given(
    st.text(max_size=200) | st.text("(){}[]<>\"'`;:,=\\/#*-+ \n\tabif01", max_size=200),
    st.sampled_from(checkable()),
    st.sampled_from([None, "stop", "length"]),
    st.sampled_from(["", "x = ", "def f(:\n", "Write code.\n"]),
)
def test_any_text_gets_a_judgement(output: str, language: str, finish: str | None, prefix: str) -> None:
    judgement = judge(Task(language=language, prefix=prefix), output, finish)
    assert not {finding.kind for finding in judgement.findings} & {"crash", "limit"}
    assert judgement.status is not Status.UNCHECKED
    assert finish == "length" or judgement.status is not Status.TRUNCATED
    assert (judgement.status is Status.INVALID) == bool(judgement.findings)
    for finding in judgement.findings:
        assert len(finding.message) <= 200
        if finding.line is not None:
            lines = (prefix + output).count("\n") + 1
            assert 1 <= finding.line <= lines + 1
            assert finding.column is None or finding.column >= 1
