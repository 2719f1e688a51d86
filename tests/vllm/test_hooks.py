import logging
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from draftgate.engines.vllm import control
from draftgate.engines.vllm.hooks import HOOKS, Faults, Hook, instead, observed, problem, wrap

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for an engine of another release."""
    module = ModuleType("some_engine")
    exec(
        "def rule(tokens, logits, extra=None): return tokens\nclass Runner:\n def step(self, batch): return batch",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "some_engine", module)
    return module


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    LOG.addHandler(handler)
    yield records
    LOG.removeHandler(handler)


LOG = logging.getLogger("test.draftgate")


@pytest.mark.parametrize("name", [*HOOKS, *control.HOOKS])
def test_installed_vllm_has_every_hook(name: str) -> None:
    hook = {**HOOKS, **control.HOOKS}[name]
    # A hook that is wrapped already shows the signature of what it wraps.
    assert problem(hook) is None


def test_fitting_function_is_no_problem(engine: ModuleType) -> None:
    assert problem(Hook("some_engine", "rule", ("tokens", "logits"), "rules")) is None
    assert problem(Hook("some_engine", "Runner.step", ("self", "batch"), "steps")) is None


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (Hook("some_engine", "ruling", ("tokens",), "rules"), "some_engine.ruling is not there"),
        (Hook("some_engine", "Walker.step", ("self",), "steps"), "some_engine.Walker.step is not there"),
        (Hook("another_engine", "rule", ("tokens",), "rules"), "another_engine.rule is not there"),
        (
            Hook("some_engine", "rule", ("draft", "logits"), "rules"),
            "takes (tokens, logits, extra), not (draft, logits)",
        ),
        (Hook("some_engine", "rule", ("logits", "tokens"), "rules"), "not (logits, tokens)"),
    ],
)
def test_what_was_renamed_or_moved_is_told(engine: ModuleType, hook: Hook, told: str) -> None:
    assert told in (problem(hook) or "")


def test_module_that_fails_to_import_is_a_problem_not_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "breaks_at_import.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "no driver" in (problem(Hook("breaks_at_import", "rule", (), "rules")) or "")


def test_wrapping_is_undone(engine: ModuleType) -> None:
    undo = wrap(Hook("some_engine", "Runner.step", ("self", "batch"), "steps"), lambda f: lambda self, batch: 2 * batch)
    assert engine.Runner().step(3) == 6
    undo()
    assert engine.Runner().step(3) == 3


def test_replacement_that_fails_gives_the_original_and_one_line(lines: list[logging.LogRecord]) -> None:
    faults = Faults(LOG)

    def fails(original: object, x: int) -> int:
        raise ZeroDivisionError("of all things")

    call = instead("rule", faults, fails)(lambda x: x + 1)
    assert [call(x) for x in range(5)] == [1, 2, 3, 4, 5]
    assert faults.counts == {"rule": 5}
    assert faults.first == {"rule": "ZeroDivisionError: of all things"}
    assert len(lines) == 1
    assert "of all things" in lines[0].getMessage()


def test_replacement_gets_the_original() -> None:
    call = instead("rule", Faults(LOG), lambda original, x, *, y: original(x, y=y) * 10)(lambda x, *, y: x + y)
    assert call(1, y=2) == 30


@pytest.mark.parametrize("failing", ["before", "after"])
def test_observers_cannot_disturb(failing: str, lines: list[logging.LogRecord]) -> None:
    faults, seen = Faults(LOG), []

    def before(x: int) -> int:
        if failing == "before":
            raise KeyError("gone")
        return x

    def after(result: int, token: int | None) -> None:
        if failing == "after":
            raise KeyError("gone")
        seen.append((result, token))

    call = observed("step", faults, before, after)(lambda x: x * 2)
    assert [call(1), call(2)] == [2, 4]
    assert seen == ([(2, None), (4, None)] if failing == "before" else [])
    assert faults.counts == {"step": 2}
    assert len(lines) == 1


def test_what_the_engine_raises_passes_an_observer() -> None:
    faults = Faults(LOG)

    def engine(x: int) -> int:
        raise RuntimeError("the engine's own")

    with pytest.raises(RuntimeError, match="own"):
        observed("step", faults, lambda x: x, lambda result, token: None)(engine)(1)
    assert not faults.counts


def test_what_the_engine_raises_passes_a_replacement() -> None:
    calls = []

    def engine(x: int) -> int:
        calls.append(x)
        raise RuntimeError("the engine's own")

    with pytest.raises(RuntimeError, match="own"):
        instead("rule", Faults(LOG), lambda original, x: original(x))(engine)(1)
