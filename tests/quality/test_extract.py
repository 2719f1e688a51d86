import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.extract import extract


def texts(answer: str, language: str = "python") -> tuple[str, list[str]]:
    form, blocks = extract(answer, language)
    return form, [block.text for block in blocks]


@pytest.mark.parametrize(
    ("answer", "form", "found"),
    [
        ("x = 1\n", "bare", ["x = 1\n"]),
        ("```python\nx = 1\n```", "fenced", ["x = 1\n"]),
        ("Sure:\n\n~~~py\nx = 1\n~~~\nDone.", "fenced", ["x = 1\n"]),
        ("```\nx = 1\n```\n```python\ny = 2\n```\n```js\nz\n```", "fenced", ["y = 2\n"]),
        ("```python\na\n```\ntext\n```Python3\nb\n```", "fenced", ["a\n", "b\n"]),
        ("```text\nout\n```\n```\nx = 1\n```", "fenced", ["x = 1\n"]),
        ("```js\na\n```\n```go\nb\n```", "fenced", ["a\n"]),
        ("````python\n```\nx\n```\n````", "fenced", ["```\nx\n```\n"]),
        ("~~~python\n```\n~~~", "fenced", ["```\n"]),
        ("1. So:\n   ```python\n   if a:\n       b\n   ```", "fenced", ["if a:\n    b\n"]),
        ("```python\nx = 1", "fenced", ["x = 1"]),
        ("```python\nx = 1\n``", "fenced", ["x = 1\n"]),
        ("```pyth", "fenced", [""]),
        ("```python title=a.py\nx\n```", "fenced", ["x\n"]),
        ("``` {.python}\nx\n```", "fenced", ["x\n"]),
        ("use ```x``` here", "bare", ["use ```x``` here"]),
        ("    x = 1\n    if x:\n        y\n", "bare", ["x = 1\nif x:\n    y\n"]),
        ("<think>```python\nno\n```</think>\n```python\nyes\n```", "fenced", ["yes\n"]),
        ("<think>never ends", "bare", [""]),
        ("", "bare", [""]),
    ],
)
def test_what_is_found(answer: str, form: str, found: list[str]) -> None:
    assert texts(answer) == (form, found)


@given(st.lists(st.sampled_from(["```", "~~~", "```py\n", "\n", "  ", "x = 1", "`", "````", "<think>", "</think>"])))
def test_a_block_is_part_of_the_answer_at_its_line(parts: list[str]) -> None:
    answer = "".join(parts)
    for block in extract(answer, "python")[1]:
        lines = answer.split("\n")[block.line :]
        for mine, theirs in zip(block.text.split("\n"), lines, strict=False):
            assert theirs.strip().endswith(mine.strip()) or mine.strip() == ""
        assert block.ended is False or "```" in answer or "~~~" in answer


def test_only_the_last_block_can_be_cut() -> None:
    _, blocks = extract("```py\na\n```\n```py\nb", "python")
    assert [block.ended for block in blocks] == [True, False]
