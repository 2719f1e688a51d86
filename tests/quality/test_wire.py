"""The wire by itself: what is packed is unpacked the same, and no message of the other side does more than answer."""

import contextlib
import io
import json
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgate.quality.sandbox.inside.wire import MAX_MESSAGE_BYTES, Peer, Remote

PLAIN = (
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary()
        | st.complex_numbers(allow_nan=False)
        | st.integers(-(10**40), 10**40),
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=20,
    )
    | st.sets(st.integers() | st.text())
    | st.frozensets(st.integers())
    | st.decimals(allow_nan=False)
    | st.fractions()
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 10)
    | st.sampled_from(["x", "tuple", "math", "SystemExit", "1e99999999"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "value",
                    "raised",
                    "given",
                    "ask",
                    "of",
                    "int",
                    "tuple",
                    "set",
                    "dict",
                    "bytes",
                    "range",
                    "complex",
                    "yours",
                    "mine",
                    "module",
                    "decimal.Decimal",
                    "fractions.Fraction",
                    "frozenset",
                    "x",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


class Lost(BaseException):
    """The peer gave up, as it should."""


class Alone(Peer):
    def __init__(self, incoming: bytes = b"") -> None:
        self.out = io.BytesIO()
        super().__init__(io.BytesIO(incoming), self.out, {"call": lambda function, *args: function(*args)})

    def lost(self, reason: str) -> NoReturn:
        raise Lost(reason)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    return bool(a == b)


@given(PLAIN)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    peer = Alone()
    assert same(peer._unpack(json.loads(json.dumps(peer._pack(value)))), value)


@given(st.lists(JSON | JSON.map(lambda value: {"value": value}) | JSON.map(lambda value: {"raised": ["E", value]})))
def test_no_message_does_more_than_answer(messages: list[Any]) -> None:
    """A value, an exception that tests can catch, or the end: never one that ends the tests' process well."""
    peer = Alone(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    with contextlib.suppress(Exception, Lost):
        peer.ask("call", 1, [1], {"a": 2})


@given(st.binary())
def test_no_bytes_do_more_than_answer(data: bytes) -> None:
    with pytest.raises(Lost):
        Alone(data + b"\n").ask("call", 1)


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "exit", "__import__"]
)
def test_nothing_that_ends_a_process_can_be_raised(name: str) -> None:
    with pytest.raises(Exception) as caught:
        Alone(json.dumps({"raised": [name, [0]]}).encode() + b"\n").ask("call", 1)
    assert type(caught.value) not in (SystemExit, KeyboardInterrupt)
    assert type(caught.value).__name__ == name


def test_reply_may_only_name_what_was_kept() -> None:
    peer = Alone(b'{"value": {"yours": 5}}\n')
    with pytest.raises(Lost, match="KeyError"):
        peer.ask("call", 1)


@pytest.mark.parametrize("module", ["os.path", "draftgate", "__main__", "no_such_module"])
def test_only_modules_of_the_standard_library_cross(module: str) -> None:
    with pytest.raises(Lost, match="standard library"):
        Alone(json.dumps({"value": {"module": module}}).encode() + b"\n").ask("call", 1)


def test_message_is_limited_in_size() -> None:
    with pytest.raises(Lost, match="no message"):
        Alone(b'{"value": "' + b"x" * MAX_MESSAGE_BYTES + b'"}\n').ask("call", 1)


def test_remote_can_only_be_called() -> None:
    remote = Remote(Alone(), 1)
    assert remote != 1
    for operation in (len, iter, int, float, abs, round):
        with pytest.raises(TypeError):
            operation(remote)
    with pytest.raises(AttributeError):
        _ = remote.startswith
