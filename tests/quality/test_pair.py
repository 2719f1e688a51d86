"""Verdicts: what crosses between a program and its tests, and that no program can make its own verdict.

The programs in attacks/verdict/ try. Those that say "Naive: passes" succeed, as shown here, where tests share the
program's process and its exit status is the verdict.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from draftgate.quality.passk import Problem, run_tests
from draftgate.quality.sandbox import Limits, Sandbox, find, find_sandbox
from draftgate.quality.sandbox.bubblewrap import Bubblewrap
from draftgate.quality.sandbox.landlock import Landlock
from draftgate.quality.sandbox.native import Native

FORGERIES = sorted((Path(__file__).parent / "attacks" / "verdict").glob("*.py.txt"))
NAIVE = [path for path in FORGERIES if "# Naive: passes" in path.read_text()]
WALLS = [walls for walls in (Bubblewrap(), Native(), Landlock()) if find.obstacle(walls) is None]
QUICK = Limits(wall_s=3, memory_bytes=256 << 20)


def name(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.fixture(params=WALLS, ids=lambda walls: walls.name)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox(request.param)


SUM = """
def check(candidate):
    assert candidate([1, 2]) == 6, "doubled"
    assert candidate([]) == 0
    assert candidate([-4]) == -8
"""
DOUBLE_SUM = Problem("sum", "Write f(xs), twice the sum of a list.", SUM, "f")


@pytest.mark.parametrize("path", FORGERIES, ids=name)
def test_forged_verdict_is_no_pass(path: Path, sandbox: Sandbox) -> None:
    (attempt,) = run_tests(DOUBLE_SUM, [path.read_text()], sandbox, QUICK)
    assert not attempt.passed
    assert attempt.outcome != "untested"
    assert attempt.detail


@pytest.mark.parametrize("path", NAIVE, ids=name)
def test_forgery_fools_one_process(path: Path) -> None:
    """What this design is for: with tests in the program's own process, and its status as the verdict, these pass."""
    source = f"{path.read_text()}\n{SUM}\ncheck(f)\n"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60).returncode == 0


def test_right_answer_passes(sandbox: Sandbox) -> None:
    (attempt,) = run_tests(DOUBLE_SUM, ["def f(xs):\n    return 2 * sum(xs)\n"], sandbox)
    assert (attempt.passed, attempt.outcome, attempt.detail) == (True, "passed", "")


LYING_NAMES = """
def f(xs):
    return 0


def abs(number):
    return 0.0


def isclose(a, b):
    return True


def near(a, b):
    return True
"""


@pytest.mark.parametrize(
    "tests", ["assert abs(f([3]) - 6) < 1e-6", "from math import isclose\nassert isclose(f([3]), 6)"]
)
def test_names_of_tests_are_not_taken_from_the_program(tests: str) -> None:
    assert not run_tests(Problem("near", "", tests, "f"), [LYING_NAMES], find_sandbox())[0].passed


def test_names_of_the_prompt_are_not_taken_from_the_program() -> None:
    prompt = "def near(a, b):\n    return abs(a - b) < 1e-6\n\n\ndef f(xs):\n"
    problem = Problem("near", prompt, "assert near(f([3]), 6)")
    lying, right = "    return 0\n" + LYING_NAMES, "    return 6.0000001\n"
    assert [a.passed for a in run_tests(problem, [lying, right], find_sandbox())] == [False, True]


def outcome(tests: str, program: str, **fields: bool) -> tuple[str, str]:
    (attempt,) = run_tests(Problem("one", "", tests, **fields), [program], find_sandbox(), QUICK)
    return attempt.outcome, attempt.detail


@pytest.mark.parametrize(
    "value",
    [
        *(
            "None",
            "True",
            "'a\\u00e9\\ud800'",
            "b'\\x00\\xff'",
            "1 << 9000",
            "-(1 << 63)",
            "1e-320",
            "float('inf')",
            "2j",
        ),
        *(
            "[1, [2, (3, {4})]]",
            "{(1, 2): {'a': [None]}, 1: frozenset({2})}",
            "range(1, 9, 2)",
            "bytearray(b'x')",
            "()",
        ),
        *("Decimal('1.10')", "Fraction(1, 3)"),
    ],
)
def test_plain_data_crosses_as_it_is(value: str) -> None:
    imports = "from decimal import Decimal\nfrom fractions import Fraction\n"
    tests = f"{imports}value = {value}\ngot = f(value)\nassert got == value and type(got) is type(value)"
    assert outcome(tests, "def f(x):\n    return x\n") == ("passed", "")


def test_subclasses_cross_as_what_they_hold() -> None:
    program = (
        "from collections import Counter, namedtuple\ndef f(x):\n    return namedtuple('P', 'a b')(Counter(x), 1)\n"
    )
    assert outcome("assert f('aab') == ({'a': 2, 'b': 1}, 1)", program) == ("passed", "")


def test_changes_in_place_cross() -> None:
    tests = "a, b = [3, 1, 2], {'x': 1}\nassert f(a, more=b) is None\nassert (a, b) == ([1, 2, 3], {'x': 1, 'y': 2})"
    assert outcome(tests, "def f(a, more):\n    a.sort()\n    more['y'] = 2\n") == ("passed", "")


def test_functions_cross_both_ways() -> None:
    tests = "assert f(lambda x: x + 1)(2) == 6\nassert g()(1)(2) == 3"
    program = "def f(inner):\n    return lambda x: inner(x) * 2\ndef g():\n    return lambda a: lambda b: a + b\n"
    assert outcome(tests, program) == ("passed", "")


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "ZeroDivisionError", "StopIteration"])
def test_exceptions_cross(kind: str) -> None:
    tests = (
        f"try:\n    f()\nexcept {kind} as error:\n    assert error.args == ('no', 3)\nelse:\n    raise AssertionError"
    )
    assert outcome(tests, f"def f():\n    raise {kind}('no', 3)\n") == ("passed", "")


def test_failure_names_the_line_of_the_tests() -> None:
    said = outcome("x = 2\nassert f(x) == 5, 'five'", "def f(x):\n    return x\n")
    assert said == ("failed", "AssertionError: five in line 2 of the tests: assert f(x) == 5, 'five'")


@pytest.mark.parametrize(
    ("tests", "program", "kind", "detail"),
    [
        ("assert True", "def f(): pass", "untested", "never called"),
        ("assert f() == 1", "def f(: pass", "failed", "SyntaxError"),
        ("assert f() == 1", "def f(): return 1\nraise ValueError('at load')", "failed", "ValueError: at load"),
        ("assert f() == 1", "def g(): return 1", "failed", "NameError"),
        ("assert f().x == 1", "class f:\n    x = 1", "unsupported", "objects"),
        ("class A: pass\nf(A())", "def f(a): return 1", "unsupported", "cannot cross"),
        ("assert f() == 1", "def f():\n    while True: pass", "timeout", "timeout"),
        ("assert f() == 1", "def f():\n    import os\n    os.abort()", "killed", "ended"),
        ("assert f() == 1", "x = bytearray(1 << 30)\ndef f(): return 1", "memory", "MemoryError"),
        ("assert f() == 1", "def f():\n    while True: print('x' * 4096)", "output", "output"),
        ("f()\nraise SystemExit(0)", "def f(): return 1", "failed", "SystemExit"),
        ("f()\nimport os\nos._exit(0)", "def f(): return 1", "failed", "without a verdict"),
    ],
)
def test_what_a_program_ends_as(tests: str, program: str, kind: str, detail: str) -> None:
    found, told = outcome(tests, program)
    assert found == kind
    assert detail in told


def test_test_functions_are_called() -> None:
    tests = "def test_one():\n    assert f(1) == 1\ndef test_two():\n    assert f(2) == 1\n"
    assert outcome(tests, "def f(x):\n    return x\n")[0] == "failed"
    assert outcome(tests, "def f(x):\n    return 1\n")[0] == "passed"


STACK = """
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
    def __eq__(self, other):
        return self.items == other.items
    def __iter__(self):
        yield from self.items
"""


def test_objects_stay_in_the_program_where_a_problem_allows_it() -> None:
    tests = (
        "s = Stack()\nassert s.push(1).push(2) == Stack().push(1).push(2) and len(s) == 2 and list(s) == [1, 2]\n"
        "s.items = [7]\nassert s.items == [7] and isinstance(s, Stack) and not Stack()"
    )
    assert outcome(tests, STACK, objects=True) == ("passed", "")
    assert outcome(tests, STACK)[0] == "unsupported"
    assert outcome("assert len(Stack()) == 1", STACK, objects=True)[0] == "failed"
