import random
from pathlib import Path

import pytest

from draftgate.errors import MissingExtraError
from draftgate.quality import syntax
from draftgate.quality.judgement import Finding, Status
from draftgate.quality.languages import GRAMMARS, Grammar, resolve

SNIPPETS = {
    {"cs": "csharp", "sh": "shell", "js": "javascript", "ts": "typescript", "rs": "rust"}.get(
        path.suffix[1:], resolve(path.suffix[1:]) or ""
    ): path.read_text("utf-8")
    for path in (Path(__file__).parent / "snippets").iterdir()
}


def test_every_language_has_a_snippet() -> None:
    assert SNIPPETS.keys() == GRAMMARS.keys() - {"php-page"}


@pytest.mark.parametrize("language", SNIPPETS)
def test_real_code_is_valid(language: str) -> None:
    assert syntax.parse(SNIPPETS[language], False, language).findings == ()


@pytest.mark.parametrize("language", SNIPPETS)
def test_every_beginning_of_real_code_is_sound(language: str) -> None:
    text = SNIPPETS[language]
    ends = range(0, len(text), 5)
    wrong = [end for end in ends if syntax.parse(text[:end], True, language).status is Status.INVALID]
    # Rust's nested comments and the like: a token that more than one closer is missing from.
    assert len(wrong) <= 0.005 * len(ends), [text[:end][-30:] for end in wrong]


# Marks that break any of the languages between two lines. HTML and shell take most marks for text.
BREAKS = {"html": "\n< / >\n", "shell": "\n) fi ;; done (\n", "css": "\n}}{{;)\n"}


@pytest.mark.parametrize("language", SNIPPETS)
def test_an_error_in_the_middle_stays_an_error_when_the_end_is_cut(language: str) -> None:
    lines = SNIPPETS[language].splitlines(keepends=True)
    half = sum(map(len, lines[: len(lines) // 2 + (language == "go")]))  # its middle is in a comment
    text = SNIPPETS[language]
    broken = text[:half] + BREAKS.get(language, "\n)]}) ]] @@ ((\n") + text[half:]
    assert syntax.parse(broken, False, language).status is Status.INVALID
    rng = random.Random(language)
    for end in rng.sample(range(half + 200, len(broken)), 5):
        reading = syntax.parse(broken[:end], True, language)
        assert reading.status is Status.INVALID, broken[:end][-60:]
        assert reading.findings


@pytest.mark.parametrize(
    ("language", "text", "finding"),
    [
        ("javascript", "let a = 1;\nlet \u00e9 = (2;\n", ("unexpected ';'", 2, 11)),
        ("java", "class A {\n  int f() { return 1 }\n}\n", ("unexpected '}'", 2, 22)),
        ("go", "package a\n\nfunc f() {\n", ("the text ends too early", 4, 1)),
        ("c", "int main(void) { return 0; }\n}\n", ("unexpected '}'", 2, 1)),
        ("sql", "SELECT a FROM t ORDER b;\n", ("unexpected 'b;'", 1, 23)),
    ],
)
def test_the_first_finding_is_where_parsing_fails(language: str, text: str, finding: tuple[str, int, int]) -> None:
    first, *_ = syntax.parse(text, False, language).findings
    assert first == Finding("syntax", *finding)


def test_missing_and_wrong_parts_are_told() -> None:
    found = syntax.parse("int f( { return 1 }\nint g() { return 2; }\n", False, "c").findings
    assert any(finding.message.startswith(("missing ", "does not parse: ")) for finding in found)
    assert len(found) <= syntax.MAX_FINDINGS


def test_grammars_of_one_language() -> None:
    assert syntax.parse("const a = <T>(x as unknown);\n", False, "typescript").status is Status.VALID
    assert syntax.parse("const a = <b c={1}>d</b>;\n", False, "typescript").status is Status.VALID
    assert syntax.parse("<p><?php if ($a): ?>b<?php endif; ?></p>\n", False, "php").status is Status.VALID
    assert syntax.parse("$a = [1, 2];\n", False, "php").status is Status.VALID
    assert syntax.parse("$a = [1, 2;\n", False, "php").status is Status.INVALID


def test_a_missing_grammar_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAMMARS, "nim", (Grammar("tree_sitter_not_there"),))  # type: ignore[misc]
    with pytest.raises(MissingExtraError, match="extra 'quality'"):
        syntax.parse("", False, "nim")
