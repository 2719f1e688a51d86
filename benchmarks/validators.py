"""Speed of the output checks as ratios against json.loads and ast.parse, and how far they agree with real parsers.

python benchmarks/validators.py                  # speed
python benchmarks/validators.py --agreement      # real parsers against damaged snippets; --cases 300 each

Speed is CPU time of this process, and of the child where there is one; both sides of a ratio run in turns. An agreement
is counted over texts: the snippets of tests/quality/snippets, most of them damaged by one or two token edits. The
references are the parsers that are installed, of: node, gcc, g++, javac, bash, rustc, ruby, php, luac, SQLite, and tsc
with --typescript DIR (a folder with node_modules/typescript). Errors that are no syntax (types, names) do not count.
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from draftgate.quality.examine import examine
from draftgate.quality.judge import judge
from draftgate.quality.judgement import Status, Task

SNIPPETS = Path(__file__).parents[1] / "tests" / "quality" / "snippets"
TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def snippet(suffix: str) -> str:
    (path,) = SNIPPETS.glob(f"*.{suffix}")
    return path.read_text("utf-8")


def mutants(text: str, n: int, seed: int = 0) -> Iterator[str]:
    """The text itself, then n - 1 copies with one or two tokens deleted, doubled, swapped or replaced by another."""
    rng = random.Random(seed)
    whole = TOKEN.findall(text)
    marks = sorted({token for token in whole if not token.isspace()} | set("()[]{}\"';:,"))
    yield text
    for _ in range(n - 1):
        tokens = list(whole)
        for _ in range(rng.choice((1, 1, 2))):
            _damage(tokens, marks, rng)
        yield "".join(tokens)


def _damage(tokens: list[str], marks: Sequence[str], rng: random.Random) -> None:
    if not tokens:
        return
    at, kind = rng.randrange(len(tokens)), rng.randrange(4)
    if kind == 0:
        del tokens[at]
    elif kind == 1:
        tokens.insert(at, tokens[at])
    elif kind == 2:
        other = rng.randrange(len(tokens))
        tokens[at], tokens[other] = tokens[other], tokens[at]
    else:
        tokens[at] = rng.choice(marks)


# Agreement. A reference says of each text whether it has no syntax error.

Reference = Callable[[Sequence[str]], list[bool]]


def each(suffix: str, *command: str, syntax: str | None = None) -> Reference:
    """Run a command on a file of each text: no error at all, or none that matches `syntax`."""

    def run(texts: Sequence[str]) -> list[bool]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"Text.{suffix}"
            return [_accepts(file, text) for text in texts]

    def _accepts(file: Path, text: str) -> bool:
        file.write_text(text, "utf-8")
        env = {**os.environ, "RUSTC_BOOTSTRAP": "1", "LC_ALL": "C"}
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, env=env, errors="replace")
        return done.returncode == 0 or (syntax is not None and not re.search(syntax, done.stderr))

    return run


def javac(texts: Sequence[str]) -> list[bool]:
    """All in one run, stopped after parsing."""
    with tempfile.TemporaryDirectory() as folder:
        for i, text in enumerate(texts):
            path = Path(folder) / str(i) / "Text.java"
            path.parent.mkdir()
            path.write_text(text, "utf-8")
        files = [f"{i}/Text.java" for i in range(len(texts))]
        command = ["javac", "-XDshould-stop.ifNoError=PARSE", "-Xmaxerrs", "100000", *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        broken = {int(found) for found in re.findall(r"^(\d+)/Text\.java:\d+: error:", done.stderr, re.MULTILINE)}
        return [i not in broken for i in range(len(texts))]


def sqlite(texts: Sequence[str]) -> list[bool]:
    return [all(map(_prepares, _statements(text))) for text in texts]


def _statements(text: str) -> list[str]:
    pieces, open_piece = [], ""
    for part in re.split(r"(?<=;)", text):
        open_piece += part
        if sqlite3.complete_statement(open_piece):
            pieces.append(open_piece)
            open_piece = ""
    return [piece for piece in (*pieces, open_piece) if piece.strip()]


def _prepares(statement: str) -> bool:
    try:
        sqlite3.connect(":memory:").execute("EXPLAIN " + statement.lstrip())
    except sqlite3.Error as error:
        return not re.search("syntax error|incomplete input|unrecognized token", str(error))
    return True


_TSC = """
const ts = require("typescript"), texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map(text =>
  ts.createSourceFile("a.ts", text, ts.ScriptTarget.Latest).parseDiagnostics.length === 0)));
"""


def tsc(folder: str) -> Reference:
    def run(texts: Sequence[str]) -> list[bool]:
        done = subprocess.run(["node", "-e", _TSC], cwd=folder, input=json.dumps(texts), capture_output=True, text=True)
        return list(map(bool, json.loads(done.stdout)))

    return run


GCC = r"error: .*(expected|stray|missing terminating|unterminated|without a previous)"
REFERENCES: dict[str, tuple[str, str, Reference]] = {  # language: suffix, program, reference
    "c": ("c", "gcc", each("c", "gcc", "-fsyntax-only", "-w", syntax=GCC)),
    "cpp": ("cpp", "g++", each("cpp", "g++", "-std=c++17", "-fsyntax-only", "-w", syntax=GCC)),
    "java": ("java", "javac", javac),
    "javascript": ("js", "node", each("mjs", "node", "--check")),
    "lua": ("lua", "luac", each("lua", "luac", "-p")),
    "php": ("php", "php", each("php", "php", "-l")),
    "ruby": ("rb", "ruby", each("rb", "ruby", "-c")),
    "rust": ("rs", "rustc", each("rs", "rustc", "-Zunpretty=normal", "-o", "/dev/null")),
    "shell": ("sh", "bash", each("sh", "bash", "-n")),
}


def agreement(cases: int, typescript: str | None) -> None:
    found = {name: (suffix, run) for name, (suffix, program, run) in REFERENCES.items() if shutil.which(program)}
    found["sql"] = ("sql", sqlite)
    if typescript is not None:
        found["typescript"] = ("ts", tsc(typescript))
    print(f"{'language':12}{'cases':>7}{'sound':>7}{'agree':>8}{'takes broken':>14}{'refuses sound':>15}")
    for language, (suffix, reference) in sorted(found.items()):
        texts = list(mutants(snippet(suffix), cases, seed=1))
        ours = [examine(Task(language=language), text).status is Status.VALID for text in texts]
        pairs = list(zip(ours, reference(texts), strict=True))
        same = sum(mine == real for mine, real in pairs) / len(pairs)
        print(
            f"{language:12}{len(pairs):7}{sum(real for _, real in pairs):7}{same:8.1%}"
            f"{sum(mine and not real for mine, real in pairs):14}{sum(real and not mine for mine, real in pairs):15}",
            flush=True,
        )


# Speed.


def cpu_s() -> float:
    """CPU time of this process and of its children, both those that ended and those that run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + _running_children_s()


def _running_children_s() -> float:
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def turns(rival: Callable[[], object], mine: Callable[[], object], at_least_s: float = 2.0) -> tuple[float, float]:
    """CPU seconds a call of each, in blocks that take turns until each has run for a while."""
    spent, calls = [0.0, 0.0], [0, 0]
    mine(), rival()  # the child has started, and modules are loaded
    while min(spent) < at_least_s:
        for i, call in enumerate((rival, mine)):
            begin, block_s = cpu_s(), time.perf_counter()
            while time.perf_counter() - block_s < 0.25:
                call()
                calls[i] += 1
            spent[i] += cpu_s() - begin
    return spent[0] / calls[0], spent[1] / calls[1]


def records(n: int) -> str:
    rng = random.Random(0)
    rows = [
        {"id": i, "name": f"user {i}", "tags": ["a", "bcd"], "score": round(rng.random(), 6), "ok": True, "note": None}
        for i in range(n)
    ]
    return json.dumps(rows)


def speed() -> None:
    print(f"{'what':26}{'chars':>9}{'texts/s':>10}{'MB/s':>8}  ratio of time, rival")
    big, small = records(40_000), records(8)
    python = Path(ast.__file__).read_text("utf-8")[:4096].rpartition("\n\n\n")[0] + "\n"
    rows: list[tuple[str, str, str, str, Callable[[str], object]]] = [
        ("json, 4 MB", "json", big, "json.loads", json.loads),
        ("json, 1 kB", "json", small, "json.loads", json.loads),
        ("python", "python", python, "ast.parse", ast.parse),
    ]
    rows += [
        (language, language, snippet(suffix), "ast.parse of the python text", lambda text: ast.parse(python))
        for language, suffix in (
            ("javascript", "js"),
            ("typescript", "ts"),
            ("java", "java"),
            ("cpp", "cpp"),
            ("sql", "sql"),
        )
    ]
    for name, language, text, rival, call in rows:
        task = Task(language=language)
        for way, check in (("", examine), (" (judge)", judge)):
            assert check(task, text).status is Status.VALID, (name, check(task, text))
            theirs_s, ours_s = turns(
                lambda text=text, call=call: call(text), lambda task=task, text=text, check=check: check(task, text)
            )
            rate = len(text.encode()) / ours_s / 1e6
            print(
                f"{name + way:26}{len(text):9}{1 / ours_s:10.0f}{rate:8.1f}  {ours_s / theirs_s:.2f} {rival}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--typescript", metavar="DIR")
    a = parser.parse_args()
    if a.agreement:
        agreement(a.cases, a.typescript)
    else:
        speed()


if __name__ == "__main__":
    main()
