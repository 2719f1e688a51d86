"""Throw texts at every validator for a while: none may crash, hang, or come back without a judgement.

python benchmarks/fuzz_validators.py --seconds 1800 [--seed 0]

A text is a snippet with damage, a cut, or noise; a few marks over and over; several languages mixed; or plain bytes.
Counted are the judgements by status; "limit" is a text that was too large or whose parser was stopped. The exact
parsers must not be stopped by a text of up to 8,000 characters, and the grammars of tree-sitter by no more than one in
a thousand: a few damaged texts take them longer than anybody waits. A broken promise is printed, and the exit code is
1.
"""

import argparse
import random
import runpy
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from draftgate.quality.judge import judge
from draftgate.quality.judgement import Judgement, Status, Task
from draftgate.quality.languages import EXACT, checkable

HERE = Path(__file__).parent
SNIPPETS = [path.read_text("utf-8") for path in sorted((HERE.parent / "tests" / "quality" / "snippets").iterdir())]
MUTANTS = runpy.run_path(str(HERE / "validators.py"))["mutants"]
MARKS = [
    *"()[]{}<>\"'`\\/#*-+=:;,.|&%$@!?~^1x\n\té\ufeff",
    # Of more than one character: comments, quotes, expansions, operators, words, YAML and XML.
    *("/*", "*/", "//", "<!--", "-->", '"""', "'''", "```", "<<A", "${", "#{", "%w(", "->", "=>", "&&"),
    *("  ", "\r\n", "if ", "else", "def f", "class A", "for", "return ", "1e9", "&a ", "*a", "<a>", "</a>", "- "),
]
SMALL = 8_000  # characters; the most an engine writes in a few thousand tokens
SCHEMA = {"type": ["object", "array"], "properties": {"a": {"type": "string", "pattern": "^(a|b)*$"}}}


def damaged(rng: random.Random) -> str:
    text = rng.choice(SNIPPETS)
    return list(MUTANTS(text, 2, seed=rng.random()))[1][: rng.randrange(1, len(text) + 1)]


def repeated(rng: random.Random) -> str:
    marks = rng.sample(MARKS, rng.randrange(1, 4))
    size = rng.choice((100, 1000, SMALL, 60_000 if rng.random() < 0.02 else 1000))
    return "".join(rng.choice(marks) for _ in range(size))[:size]


def mixed(rng: random.Random) -> str:
    pieces = [rng.choice(SNIPPETS)[rng.randrange(400) :][: rng.randrange(600)] for _ in range(rng.randrange(1, 5))]
    fences = [rng.choice(("", "```\n", "```python\n", "~~~json\n", "<think>", "</think>")) for _ in pieces]
    return "".join(fence + piece + "\n" for fence, piece in zip(fences, pieces, strict=True))


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(300))


KINDS: tuple[Callable[[random.Random], str | bytes], ...] = (damaged, damaged, repeated, mixed, noise)


def stopped(judgement: Judgement, output: str | bytes) -> bool:
    """Whether a parser was stopped by a small text."""
    return len(output) <= SMALL and any(finding.kind == "limit" for finding in judgement.findings)


def broken_promise(judgement: Judgement, output: str | bytes, language: str) -> str | None:
    kinds = {finding.kind for finding in judgement.findings}
    if "crash" in kinds:
        return "a validator raised"
    if stopped(judgement, output) and language in EXACT:
        return "a small text broke its parser"
    if judgement.status is Status.UNCHECKED and not kinds:
        return "nothing was checked"
    if (judgement.status is Status.INVALID) != bool(kinds - {"limit"}):
        return "findings and status disagree"
    return None


def fuzz(seconds: float, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Counts by status, and the promises that were broken."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    broken = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        language, output = rng.choice(checkable()), rng.choice(KINDS)(rng)
        schema = SCHEMA if language in ("json", "yaml", "toml") and rng.random() < 0.3 else None
        task = Task(language, schema, prefix=rng.choice(("", "", "def f(x):\n", "Write it.\n")))
        judgement = judge(task, output, rng.choice((None, "length")))
        counts[judgement.status] += 1
        counts["limit"] += any(finding.kind == "limit" for finding in judgement.findings)
        if stopped(judgement, output):
            counts["small and stopped"] += 1
        if promise := broken_promise(judgement, output, language):
            broken.append(f"{promise}: {task.language} {task.prefix!r} {output[:200]!r} ({len(output)}) {judgement}")
    if counts["small and stopped"] > 1 + counts.total() / 1000:
        broken.append("more than one small text in a thousand broke its parser")
    return counts, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    counts, broken = fuzz(a.seconds, a.seed)
    print(f"seed {a.seed}, {a.seconds:.0f} s:", ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    print("\n".join(broken) or "no promise broken")
    return bool(broken)


if __name__ == "__main__":
    raise SystemExit(main())
