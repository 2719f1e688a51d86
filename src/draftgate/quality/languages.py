"""Which parser reads which language, by any of its common names.

`EXACT` languages have a parser that decides as the reference parser does. Those with a tree-sitter grammar are judged
by a grammar that was made for editors: mostly what a compiler's parser accepts, and no more than its syntax.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from draftgate.errors import ConfigError
from draftgate.policy.syntax import canonical

__all__ = ["EXACT", "GRAMMARS", "Grammar", "checkable", "resolve"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's package on the index is `tree-sitter-NAME`; `function` in its module gives the language."""

    module: str
    function: str = "language"


# A text is valid when one of the grammars of its language accepts it.
GRAMMARS: Mapping[str, tuple[Grammar, ...]] = {
    "c": (Grammar("tree_sitter_c"),),
    "cpp": (Grammar("tree_sitter_cpp"),),
    "csharp": (Grammar("tree_sitter_c_sharp"),),
    "css": (Grammar("tree_sitter_css"),),
    "go": (Grammar("tree_sitter_go"),),
    "html": (Grammar("tree_sitter_html"),),
    "java": (Grammar("tree_sitter_java"),),
    "javascript": (Grammar("tree_sitter_javascript"),),
    "kotlin": (Grammar("tree_sitter_kotlin"),),
    "lua": (Grammar("tree_sitter_lua"),),
    # Text outside of <?php is output, so that grammar takes everything for PHP; it is used where the tag stands.
    "php": (Grammar("tree_sitter_php", "language_php_only"),),
    "php-page": (Grammar("tree_sitter_php", "language_php"),),
    "ruby": (Grammar("tree_sitter_ruby"),),
    "rust": (Grammar("tree_sitter_rust"),),
    "scala": (Grammar("tree_sitter_scala"),),
    "shell": (Grammar("tree_sitter_bash"),),
    "sql": (Grammar("tree_sitter_sql"),),
    "swift": (Grammar("tree_sitter_swift"),),
    "typescript": (
        Grammar("tree_sitter_typescript", "language_typescript"),
        Grammar("tree_sitter_typescript", "language_tsx"),
    ),
}
EXACT = frozenset({"json", "jsonl", "python", "toml", "xml", "yaml"})
_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("c#", "c-sharp", "cs"), "csharp"),
    **dict.fromkeys(("jsonl", "jsonlines", "ndjson"), "jsonl"),
    **dict.fromkeys(("kt", "kts"), "kotlin"),
    "rb": "ruby",
}


def resolve(name: str | None) -> str | None:
    """The name used here for a language; None when it has no parser.

    >>> resolve("C#"), resolve("yml"), resolve("Klingon")
    ('csharp', 'yaml', None)
    """
    if name is None:
        return None
    name = name.strip().lower()
    name = _ALIASES.get(name, name)
    if name in EXACT or name in GRAMMARS:
        return name
    try:
        name = canonical(name)
    except ConfigError:  # the thresholds know other languages than the parsers
        return None
    return name if name in EXACT or name in GRAMMARS else None


def checkable() -> tuple[str, ...]:
    """The languages with a parser, sorted.

    >>> len(checkable()) >= 20
    True
    """
    return tuple(sorted(EXACT | (GRAMMARS.keys() - {"php-page"})))
