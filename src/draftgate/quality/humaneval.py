"""Problems that tests decide: HumanEval's format, and any JSONL of prompts and tests.

HumanEval: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), one object a line with `task_id`,
`prompt`, `entry_point`, `canonical_solution` and `test`. The same fields, also as `id` and `tests`, make a file of your
own.
"""

import ast
import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgate.errors import WorkloadError, nearest

__all__ = ["Problem", "load_problems", "parse_problems"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One task and the tests that decide whether a completion solves it.

    Attributes:
        task_id: unique within its file.
        prompt: what the model was given: Python code to go on with, or a text.
        tests: Python source. Top-level assertions, functions named `test...` without parameters, and HumanEval's
            `check(candidate)` are all run; they must call the program at least once.
        entry_point: the function under test. None: the last function or class of a prompt that is code.
        objects: the tests use objects that stay in the program, such as instances of its classes. The program answers
            for those, so a program that lies can pass; leave it off for functions on plain data.
        solution: a completion known to be right, if there is one.
    """

    task_id: str
    prompt: str
    tests: str
    entry_point: str | None = None
    objects: bool = False
    solution: str | None = None

    def program(self, completion: str) -> str:
        """Source to be tested: the prompt and what follows it, or the completion alone when the prompt is no code.

        A completion in a Markdown fence is taken out of it.

        >>> Problem("a", "Write a function that adds.", "").program("Here:\\n```python\\nadd = sum\\n```")
        'add = sum\\n'
        """
        fenced = _FENCE.search(completion)
        code = fenced[1] if fenced else completion
        return self.prompt + code if self.own_code() else code

    def own_code(self) -> str:
        """The prompt as a module that can be run, with a body for a function that it leaves open; "" if it is no code.

        >>> Problem("a", "def add(a, b):\\n", "").own_code()
        'def add(a, b):\\n\\n    pass\\n'
        """
        return next((text for text in (self.prompt, f"{self.prompt}\n    pass\n") if _statements(text)), "")

    def tested(self) -> str | None:
        """`entry_point`, or what stands for it."""
        defined = [node.name for node in _statements(self.own_code()) if isinstance(node, _DEFINITIONS)]
        return self.entry_point or (defined[-1] if defined else None)


def load_problems(path: str | Path) -> tuple[Problem, ...]:
    """Read a JSONL file of problems, gzip'ed or not; blank lines are skipped.

    Raises:
        WorkloadError: the file cannot be read, or a line is wrong; names the file and the line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: cannot read the problems: {error}") from error
    return parse_problems(data, str(path))


def parse_problems(data: bytes, where: str) -> tuple[Problem, ...]:
    """Parse the bytes of a JSONL file; `where` opens every error message.

    >>> parse_problems(b'{"id": "1", "prompt": "Add.", "tests": "assert add(1, 2) == 3"}', "mine.jsonl")[0].task_id
    '1'

    Raises:
        WorkloadError: as `load_problems`.
    """
    problems: dict[str, Problem] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            problem = _problem(json.loads(line))
            if problem.task_id in problems:
                raise WorkloadError(f"{problem.task_id!r} is used twice; give every problem its own id")
        except WorkloadError as error:
            raise WorkloadError(f"{where}:{number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{where}:{number}: not valid JSON ({error}); write one JSON object a line") from error
        problems[problem.task_id] = problem
    if not problems:
        raise WorkloadError(f"{where}: no problems; write one JSON object a line")
    return tuple(problems.values())


_FIELDS: Mapping[str, tuple[str, type]] = {
    "task_id": ("task_id", str),
    "id": ("task_id", str),
    "prompt": ("prompt", str),
    "test": ("tests", str),
    "tests": ("tests", str),
    "entry_point": ("entry_point", str),
    "objects": ("objects", bool),
    "canonical_solution": ("solution", str),
}
_WORKLOAD_ONLY = ("check", "language", "max_tokens", "workload")
"""Keys of a workload file that say nothing about tests, so that one file can serve both."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FENCE = re.compile(r"^```[\w+-]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def _problem(record: Any) -> Problem:
    if not isinstance(record, dict):
        raise WorkloadError(f"must be a JSON object but got {type(record).__name__}")
    values: dict[str, Any] = {}
    for key, value in record.items():
        if key in _WORKLOAD_ONLY or value is None:
            continue
        if key not in _FIELDS:
            raise WorkloadError(f"unknown key {key!r}; {nearest(key, _FIELDS)}")
        name, kind = _FIELDS[key]
        if type(value) is not kind:
            raise WorkloadError(f"{key} must be a {kind.__name__} but got {value!r}")
        if name in values:
            raise WorkloadError(f"{key!r} says {name} a second time; keep one of them")
        values[name] = value
    if missing := [name for name in ("task_id", "prompt", "tests") if not values.get(name)]:
        raise WorkloadError(f"needs {', '.join(missing)}")
    return Problem(**values)


def _statements(source: str) -> list[ast.stmt]:
    """Of a module that parses, all but bare expressions: a text such as "Sort" is no code, and has none."""
    try:
        return [node for node in ast.parse(source).body if not isinstance(node, ast.Expr)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
