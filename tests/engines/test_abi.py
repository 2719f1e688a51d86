from types import SimpleNamespace
from typing import Any

import pytest

from draftgate.engines.llamacpp import abi
from draftgate.engines.llamacpp.abi import failure, forget_failure, library, library_version
from draftgate.errors import EngineError


def defaults(layers: int = -1, **context: int) -> SimpleNamespace:
    """The library's functions for default parameters, with some values changed."""

    def changed() -> Any:
        params = library().context_default_params()
        for name, value in context.items():
            setattr(params, name, value)
        return params

    model = SimpleNamespace(n_gpu_layers=layers)
    return SimpleNamespace(context_default_params=changed, model_default_params=lambda: model)


@pytest.mark.parametrize(
    "values", [{"n_ctx": 0}, {"n_batch": 512}, {"n_seq_max": 2}, {"n_threads": 0}, {"n_threads_batch": 9999}]
)
def test_defaults_that_read_differently_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(
        EngineError, match=r"not laid out as expected .*install the version that draftgate pins"
    ) as error:
        abi._check_defaults(defaults(**values))
    assert str(next(iter(values.values()))) in str(error.value)
    assert library_version() in str(error.value)


def test_model_defaults_are_checked_too() -> None:
    with pytest.raises(EngineError, match="layers 123456"):
        abi._check_defaults(defaults(layers=123456))
    abi._check_defaults(defaults())
    abi._check_defaults(library())


def test_a_build_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "_library", None)
    monkeypatch.setitem(abi._SIGNATURES, "llama_no_such_function", (None,))
    with pytest.raises(EngineError, match="has no llama_no_such_function; install the version"):
        library()


def test_a_failure_has_the_first_error_line_logged_since_the_last_one() -> None:
    forget_failure()
    for level, text in ((2, b"loading\n"), (4, b"no such key\n"), (4, b"failed to load\n")):
        abi._log(level, text, None)
    assert failure() == "no such key"
    assert failure() == "it gives no reason"
    abi._log(4, b"of another call", None)
    forget_failure()
    assert failure() == "it gives no reason"
