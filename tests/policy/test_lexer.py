import importlib.util
import io
import json
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.errors import ConfigError
from draftgate.policy.category import Category, category_table
from draftgate.policy.lexer import Lexer, classify
from draftgate.policy.syntax import State, language_names

# In each text, a mark says what the state is from here on: ‹ string, « comment, › code.
MARKS = {"‹": State.STRING, "«": State.COMMENT, "›": State.CODE}
CASES = {
    "python": [
        "x = '‹a'›  #« it's",
        'x = "‹\'"› #« "no"\n›y',
        "'''‹a'b\n\"\\'''c'''› + ''›",
        'r"‹\\"#"› + b"‹"›',
        's = "‹open\n›y = 1›',
        's = "‹joined\\\nline"›',
        "f'‹a {›b['‹k'›]:#x}‹ {{c'›",
        'f"""‹{› {\'‹a\'›: {}}}‹ "" \\N{BULLET}{{"""›',
        "rf'‹\\{›x}‹'›",
        '"""‹"\n"""› + "‹"›',
        "#« '''\n›'‹#'›",
    ],
    "javascript": [
        "x = `‹a${›b({c: `‹d`›})}‹e`›",
        "y = a / b; //« it's\n›'‹\\'//'›",
        "s.replace(/‹[/\"'`]/›g, '‹'›)",
        'x = /‹\\/"/›.test(y)',
        "a /*« * / ' */› / 2›",
        "x = 1 / 2; y = '‹/'›",
        "<Foo a={b} />; '‹c'›",
        "'‹open\n›ok›",
        "`‹$ {\\${ ${›`‹`›}‹`›",
        "//« `\n›`‹//\n`›",
    ],
    "typescript": [
        "const a: Map<string, '‹b'›> = `‹${›x as '‹y'›}‹`›",
        "type A = `‹a-${›B}‹`›; //« '",
        "let x = a! / b; '‹'›",
        "@D({a: '‹`'›}) class A<T> { /*« \" */› }›",
        "x.split(/‹'/›)",
        "`‹${›f({a: {b: `‹}`›}})}‹}`›",
        'a ? /‹"/› : b',
        'import x from "‹y\'"›',
    ],
    "java": [
        'String s = """‹\n a "quoted" \\""" // b\n"""›;',
        "char c = '‹\"'›; //« '\n›int x;›",
        "char c = '‹\\''›; a / b",
        'String s = "‹\\\\"›; /*« " */›',
        'String s = ""; x›',
        'x = "‹/* no */"›;',
        "/**« @see //' */› d",
        's = "‹open\n›;›',
    ],
    "go": [
        's := `‹raw \\`› + "‹`"›',
        "r := '‹\\''›; s := '‹\"'›",
        '//« "\n›s := "‹\\"//"›',
        "/*« // */› a",
        "`‹\n'\"//\n`› + x›",
        "a / b //« c",
        '"‹open\n›x›',
        '"‹`"› + `‹"`›',
    ],
    "rust": [
        "fn f<'a>(x: &'a str) -> &'static str { \"‹'\"› }",
        'let q = \'"\'; let s = "‹a"›;',
        "let q = '\\'‹'›; x›",
        'r#"‹a "b" \\"#› + r"‹\\"›',
        'br##"‹"#"##›',
        "/*« /* */« still */› code",
        'let s = "‹two\nlines \\" "›;',
        "//« it's\n›let e = 'é'; \"‹'\"›",
        "r#fn; '\\u‹{1F600}'›",
    ],
    "c": [
        '#include "‹a.h"› //« it\'s \\\n still\n›int x;›',
        "char q = '‹\"'›, r = '‹\\''›;",
        'char *s = "‹/* no */"›; /*« "yes" */›',
        "a = b / *p; /*« */›",
        's = "‹two\\\nlines"›;',
        "#error don'‹t\n›'‹x'›",
        "/*« **/› x›",
        'printf("‹%d\\n"›, 1 //« "\n›);›',
    ],
    "cpp": [
        "int n = 1'000'000; char c = '‹a'›;",
        'auto s = R"(‹a "b" \\)"› + "‹)"›;',
        "0xFF'FF / 2 //« '",
        "u8\"‹a\"› L'‹b'›",
        '"‹//"› /*« " */› x',
        "template<class T> '‹\\\\'›",
        "a //« \\\n b\n›c›",
        "\"‹'\"› '‹\"'›",
    ],
    "sql": [
        "select '‹it''s'› --« x",
        "select '' || '‹--'› --« '\n›from t",
        'select "‹a""b"› from t',
        "/*« -- ' */› select 1 - -1›",
        "'‹two\nlines'›",
        "'‹\\'› || x›",
        "a - b --« -",
        "''  ''›",
    ],
    "json": [
        '{"‹a"›: [1, "‹b\\"c"›]}',
        '"‹\\\\"›, ""›',
        '{"‹it\'s // #"›: null}',
        '["‹open\n›]',
        '"‹{}[],:"›',
        '{"‹a"›:"‹b"›}',
        '"‹\\u0022"› 1',
        '"‹é"›',
    ],
    "xml": [
        '<a b="‹it\'s"› c=\'‹">\'›>it\'s "text"</a>›',
        '<a><!--« <b c="d"> - -- -->›text</a>',
        "<a><![CDATA[‹ <b> ]] ' ]]>›x</a>",
        "a < b and 'c' > \"d\"›",
        '<?xml version="‹1.0"›?>it\'s›',
        "<a b='‹two\nlines'›/>'›",
        "<!DOCTYPE a SYSTEM \"‹b'\"›>'›",
        "<!--«-->› '›",
    ],
    "html": [
        "<p class='‹a'›>don't</p>›",
        "<script>var a = '‹<b>'›; //« it's\n›</script>don't›",
        "<style>/*« ' */›a{b:\"‹c\"›}</style>it's›",
        '<script src="‹//x"›>`‹${›a}‹`›</script>',
        "<!--« <script> -->›'›",
        '<br/>"›<i title="‹\'"›>',
        "<p>1 < 2</p>'›",
        "<script>x = {a: '‹b'›}</script><b c='‹d'›>",
    ],
    "yaml": [
        "a: it's #« 'x'\n›b: c#d›",
        "a: '‹it''s'›",
        'a: "‹x \\" # y"› #« z',
        "- '‹a\n  b'›\n- c",
        '{"‹a"›:"‹b"›, \'‹c\'›: d}',
        "a: don't say 'never' to me›",
        '\n "‹a"›: [\'‹b\'›,"‹c"›]',
        "#« it's\n›'‹a'›: b",
    ],
    "shell": [
        "echo $# ${#a} a#b #« it's\n›x",
        "echo '‹\\'› \"‹'\"›",
        'echo "‹a $(›b "‹c"› (d) \'‹)\'›)‹ e"›',
        "echo \\' \\\" '‹x'›",
        'a;#« "\n›b',
        "$'‹it\\'s'›",
        'x="‹\\"#"›',
        'echo "‹$(›date)‹"› #« x',
        "echo '‹two\nlines'›",
    ],
    "markdown": [
        "it's `‹code`› and \\` more›",
        "```‹py\nx = '`'\n```›\ntext›",
        "a ``‹b ` c``› d",
        "<!--« `x` -->›y",
        "~~~‹\n```\n~~~›x",
        "`‹open\n\n›text",
        "# not a comment›",
        "`‹<!--`› <!--« `",
    ],
    "prose": ["It's \"fine\" # not /* code */ `at all`\n// '›"],
}


@pytest.mark.parametrize(("language", "marked"), [(name, text) for name, texts in CASES.items() for text in texts])
def test_state_is_what_each_mark_says(language: str, marked: str) -> None:
    lexer, seen, expected = Lexer(language), [], []
    for text, mark in re.findall(r"([^‹«›]*)([‹«›])", marked):
        lexer.feed(text.encode())
        seen.append((text, lexer.state))
        expected.append((text, MARKS[mark]))
    assert seen == expected


def test_every_language_has_cases() -> None:
    assert set(CASES) == set(language_names())


FRAGMENTS = st.sampled_from(
    [bytes([b]) for b in b"\"'`#/*\\\n -<>![]{}$()frRa1:~|=;"]
    + [b'"""', b"'''", b"/*", b"*/", b"//", b"--", b"${", b"]]>", b"<![CDATA[", b"<script", b"</script", "é".encode()]
)


@pytest.mark.parametrize("language", language_names())
@given(fragments=st.lists(FRAGMENTS, max_size=25), data=st.data())
def test_state_does_not_depend_on_how_the_text_was_cut(language: str, fragments: list[bytes], data: Any) -> None:
    text = b"".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = Lexer(language)
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces.feed(text[start:end])
        whole = Lexer(language)
        whole.feed(text[:end])
        assert pieces.mark() == whole.mark()


def state_after(lexer: Lexer, text: bytes) -> State:
    lexer.feed(text)
    return lexer.state


def python_tokens(source: bytes) -> Iterator[tuple[State, int, int]]:
    """State inside, start and end (byte offsets) of each token by the standard tokenizer; an f-string is one."""
    lines = source.decode().splitlines(keepends=True)
    starts = np.cumsum([0, *(len(line.encode()) for line in lines)])
    depth, begin = 0, 0
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        name, text = tokenize.tok_name[token.type], token.string
        if not text.strip() or name == "ENCODING":
            continue
        start, end = (
            int(starts[row - 1]) + len(lines[row - 1][:col].encode()) for row, col in (token.start, token.end)
        )
        if name == "FSTRING_START":
            depth, begin = depth + 1, begin if depth else start
        elif name == "FSTRING_END":
            depth -= 1
            if depth == 0:
                yield State.STRING, begin, end
        elif depth == 0:
            yield {"STRING": State.STRING, "COMMENT": State.COMMENT}.get(name, State.CODE), start, end


@pytest.mark.parametrize(
    "module", ["argparse", "csv", "inspect", "json.decoder", "shlex", "textwrap", "tokenize", "typing"]
)
def test_python_agrees_with_the_standard_tokenizer(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source, lexer, at = Path(spec.origin).read_bytes().replace(b"\r\n", b"\n"), Lexer("python"), 0
    for inside, start, end in python_tokens(source):
        before, within, after = (state_after(lexer, source[i:j]) for i, j in pairwise([at, start, end - 1, end]))
        expected = State.COMMENT if inside is State.COMMENT else State.CODE
        assert (before, after) == (State.CODE, expected), source[at : end + 20]
        assert within is inside or end - start == 1, source[start : end + 20]
        at = end
    assert at > 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_json_agrees_with_the_standard_scanner(value: Any, ascii_only: bool, indent: int | None) -> None:
    text, at, lexer = json.dumps(value, ensure_ascii=ascii_only, indent=indent), 0, Lexer("json")
    while at < len(text):
        quoted = text[at] == '"'
        end = json.decoder.scanstring(text, at + 1)[1] if quoted else at + 1  # type: ignore[attr-defined]
        within, after = (state_after(lexer, text[i:j].encode()) for i, j in pairwise([at, end - 1, end]))
        assert (within, after) == (State.STRING if quoted else State.CODE, State.CODE)
        at = end


def test_a_fork_leaves_its_origin_alone() -> None:
    lexer = Lexer("python")
    lexer.feed(b'x = ""')
    ahead = lexer.fork()
    ahead.feed(b'" docstring')
    assert (lexer.state, ahead.state) == (State.CODE, State.STRING)
    lexer.feed(b" # done")
    assert (lexer.state, ahead.state) == (State.COMMENT, State.STRING)


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown language 'pyhton'"):
        Lexer("pyhton")


def classes(language: str, committed: bytes, draft: list[bytes]) -> list[str]:
    lexer = Lexer(language)
    lexer.feed(committed)
    before = lexer.mark()
    result = classify(lexer, range(len(draft)), draft, category_table(draft, language))
    assert lexer.mark() == before
    assert result.dtype == np.uint8
    return [Category(value).name for value in result]


@pytest.mark.parametrize(
    ("language", "committed", "draft", "expected"),
    [
        ("python", b"x = ", [b"f", b"(", b"1", b")"], "WORD STRUCTURAL NUMBER STRUCTURAL"),
        ("python", b"x = 'a", [b"b", b" if", b"','", b"'", b" if"], "STRING STRING STRUCTURAL STRUCTURAL KEYWORD"),
        ("python", b"x", [b" #", b" if", b" (", b"\n", b"if"], "COMMENT COMMENT COMMENT SPACE KEYWORD"),
        ("python", b"x = ", [b'"', b'""', b"a", b'"""', b"a"], "STRUCTURAL STRUCTURAL STRING STRUCTURAL WORD"),
        ("python", b"x = f'", [b"a", b"{", b"b", b"}", b"c"], "STRING STRUCTURAL WORD STRUCTURAL STRING"),
        ("python", b"'a", [b"", b"b"], "OTHER STRING"),
        ("python", b"a ", [b"//", b" b"], "OPERATOR WORD"),
        ("javascript", b"a ", [b"//", b" b"], "COMMENT COMMENT"),
        ("javascript", b"a /", [b"*", b" b", b" */", b" b"], "OPERATOR COMMENT COMMENT WORD"),
        ("json", b'{"', [b"key", b'":', b' "', b"{,", b'"}'], "STRING STRUCTURAL STRUCTURAL STRING STRUCTURAL"),
        ("prose", b"it's ", [b"fine", b"'", b"s"], "WORD OPERATOR WORD"),
    ],
)
def test_classify(language: str, committed: bytes, draft: list[bytes], expected: str) -> None:
    assert classes(language, committed, draft) == expected.split()


def test_classify_an_empty_draft() -> None:
    assert classify(Lexer("c"), [], [], np.zeros(0, np.uint8)).shape == (0,)
