import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError
from draftgate.policy.category import GROUPS, ByteClass, Category, category_table, class_bits
from draftgate.policy.syntax import language_names

PIECES = st.lists(st.binary(max_size=6), max_size=30)


def names(pieces: list[bytes], language: str | None) -> list[str]:
    return [Category(value).name for value in category_table(pieces, language)]


@given(pieces=PIECES)
def test_bits_of_a_piece_are_those_of_its_bytes(pieces: list[bytes]) -> None:
    single = class_bits([bytes([b]) for b in range(256)])
    expected = [np.bitwise_or.reduce(single[list(piece)], initial=0) for piece in pieces]
    assert class_bits(pieces).tolist() == expected


def test_every_byte_has_exactly_one_class() -> None:
    single = class_bits([bytes([b]) for b in range(256)])
    assert all(int(bits).bit_count() == 1 for bits in single)
    assert single[ord("_")] == ByteClass.LETTER
    assert single[0] == ByteClass.CONTROL
    assert single[0xFF] == ByteClass.HIGH


@pytest.mark.parametrize(
    ("language", "piece", "expected"),
    [
        ("python", b" name", "WORD"),
        ("python", b"_x1", "WORD"),
        ("python", " naïve".encode(), "WORD"),
        ("python", b" return", "KEYWORD"),
        ("python", b"returns", "WORD"),
        ("python", b"123", "NUMBER"),
        ("python", b" +=", "OPERATOR"),
        ("python", b".join", "OPERATOR"),
        ("python", b"):", "STRUCTURAL"),
        ("python", b" foo(", "STRUCTURAL"),
        ("python", b"return(", "STRUCTURAL"),
        ("python", b"\n        ", "SPACE"),
        ("python", b"\t", "SPACE"),
        ("python", b" #", "COMMENT"),
        ("python", b" //", "OPERATOR"),
        ("python", b"function", "WORD"),
        ("python", b"", "OTHER"),
        ("python", b"a\x00", "OTHER"),
        ("python", b" \xe2\x80", "OTHER"),
        ("python", b"\xff(", "STRUCTURAL"),
        ("javascript", b"function", "KEYWORD"),
        ("javascript", b" {\n", "STRUCTURAL"),
        ("javascript", b"`", "STRUCTURAL"),
        ("javascript", b" //", "COMMENT"),
        ("javascript", b" */\n", "COMMENT"),
        ("javascript", b"#", "OPERATOR"),
        ("typescript", b" interface", "KEYWORD"),
        ("cpp", b" typename", "KEYWORD"),
        ("cpp", b">", "OPERATOR"),
        ("sql", b" SELECT", "KEYWORD"),
        ("sql", b" --", "COMMENT"),
        ("json", b" true", "KEYWORD"),
        ("json", b'":', "STRUCTURAL"),
        ("html", b"</", "STRUCTURAL"),
        ("html", b"/>", "STRUCTURAL"),
        ("html", b",", "OPERATOR"),
        ("xml", b"<!--", "COMMENT"),
        ("yaml", b"\n  ", "STRUCTURAL"),
        ("yaml", b"  ", "STRUCTURAL"),
        ("yaml", b" key", "WORD"),
        ("yaml", b" -", "STRUCTURAL"),
        ("python", b" -", "OPERATOR"),
        ("markdown", b"##", "STRUCTURAL"),
        ("markdown", b"```", "STRUCTURAL"),
        ("markdown", b",", "OPERATOR"),
        ("shell", b" fi", "KEYWORD"),
        (None, b"'s", "OPERATOR"),
        (None, b"(", "STRUCTURAL"),
        (None, b"return", "WORD"),
        (None, b"#", "OPERATOR"),
    ],
)
def test_category_of_a_piece(language: str | None, piece: bytes, expected: str) -> None:
    assert names([piece], language) == [expected]


@pytest.mark.parametrize("language", language_names())
@given(pieces=PIECES)
def test_a_token_has_its_category_whatever_its_neighbours(language: str, pieces: list[bytes]) -> None:
    table = category_table(pieces, language)
    assert table.shape == (len(pieces),)
    assert table.dtype == np.uint8
    assert table.tolist() == [int(category_table([piece], language)[0]) for piece in pieces]
    assert not np.isin(table, Category.STRING).any()  # only the text before a token makes it part of a string


def test_one_table_takes_any_spelling_of_the_language() -> None:
    assert names([b" def", b"`"], "py") == names([b" def", b"`"], "python")


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown language 'klingon'"):
        category_table([b"a"], "klingon")


def test_groups_cover_every_category() -> None:
    assert set(GROUPS) == set(Category)
    assert {group: [c.name for c in Category if GROUPS[c] == group] for group in ("safe", "structural")} == {
        "safe": ["SPACE", "COMMENT"],
        "structural": ["STRUCTURAL"],
    }


def test_category_values_are_those_in_traces() -> None:
    expected = ["WORD", "KEYWORD", "NUMBER", "OPERATOR", "STRUCTURAL", "SPACE", "STRING", "COMMENT", "OTHER"]
    assert [(c.name, c.value) for c in Category] == [(name, i) for i, name in enumerate(expected)]
