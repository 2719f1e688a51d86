"""Calls between two processes that do not trust each other: one JSON object a line, over two pipes.

Plain data crosses by value and arrives as exactly the built-in type: an object that claims to equal everything arrives
as the number or list that it holds. What is no plain data stays where it is and crosses as a number, a `Remote` on the
other side. A list, dict or set that a call changed in place is changed on the caller's side as well; what lies nested
in it is replaced, not changed.
"""

import builtins
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

__all__ = ["MAX_MESSAGE_BYTES", "Peer", "Remote"]

MAX_MESSAGE_BYTES = 32 << 20
_SAFE_INT = 1 << 63
"""Larger ones cross in hexadecimal: decimal conversion is quadratic, and Python refuses it beyond 4,300 digits."""

_KINDS: Mapping[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tuple": (tuple, list, tuple),
    "set": (set, list, set),
    "frozenset": (frozenset, list, frozenset),
    "dict": (dict, lambda value: [list(item) for item in value.items()], dict),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
}
_TEXT_KINDS = ("decimal.Decimal", "fractions.Fraction")


class Remote:
    """A callable that lives on the other side; calling is all it can do, so nothing else can be answered falsely."""

    def __init__(self, peer: "Peer", ref: int) -> None:
        self.__dict__["_peer"], self.__dict__["_ref"] = peer, ref

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the other side call it."""
        return self.__dict__["_peer"].ask("call", self.__dict__["_ref"], *args, **kwargs)


class Peer:
    """One end of the wire; the two roles say what `lost`, `represent` and `keep` mean to them.

    Args:
        reader: where the other end writes.
        writer: where the other end reads.
        operations: what the other end may ask for, as name -> function. With the number of a kept object that object is
            the first argument.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, operations: Mapping[str, Callable[..., Any]]) -> None:
        self._reader, self._writer, self._operations = reader, writer, operations
        self._kept: dict[int, Any] = {}
        self._remotes: dict[int, Remote] = {}

    def lost(self, reason: str) -> NoReturn:
        """The other end is gone or speaks no sense: there is nobody to go on with."""
        raise NotImplementedError

    def represent(self, ref: int, kind: str, can_call: bool) -> Remote:
        """Stand-in for an object of the other end, which says of what kind it is and whether it can be called."""
        return Remote(self, ref)

    def keep(self, value: object) -> int:
        """The number by which the other end may name this object; the object then lives as long as this end."""
        self._kept[id(value)] = value
        return id(value)

    def ask(self, operation: str, ref: int | None, *args: Any, **kwargs: Any) -> Any:
        """Have the other end do something; meanwhile it may ask back. Raises what it raised, if that was built in."""
        self._send({"ask": operation, "of": ref, "given": self._pack([args, kwargs])})
        while "ask" in (message := self._receive()):
            self._answer(message)
        try:
            if "raised" in message:
                name, about = message["raised"]
                error = _exception(name, self._unpack(about))
            else:
                value, error = self._unpack(message["value"]), None
                if "given" in message:
                    new_args, new_kwargs = self._unpack(message["given"])
                    _refresh([*args, *kwargs.values()], [*new_args, *new_kwargs.values()])
        # Whatever is wrong with the message, the other end sent it.
        except Exception as broken:
            self.lost(f"sent a message that makes no sense ({type(broken).__name__}: {broken})")
        if error is not None:
            raise error
        return value

    def serve(self) -> NoReturn:
        """Answer until the other end is gone."""
        while True:
            self._answer(self._receive())

    def _answer(self, message: dict[str, Any]) -> None:
        try:
            args, kwargs = given = self._unpack(message["given"])
            operation, ref = self._operations[message["ask"]], message["of"]
            value = operation(*args, **kwargs) if ref is None else operation(self._kept[ref], *args, **kwargs)
            reply = {"value": self._pack(value)}
            after = self._pack(given)
            if after != message["given"]:
                reply["given"] = after
        # The edge of a process: what the callee raises belongs to the caller.
        except Exception as error:
            reply = {"raised": [type(error).__name__, self._about(error)]}
        self._send(reply)

    def _about(self, error: Exception) -> Any:
        try:
            return self._pack(error.args)
        except (ValueError, RecursionError):
            return [str(error)]

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            self._writer.flush()
        except OSError:
            self.lost("ended")

    def _receive(self) -> dict[str, Any]:
        line = self._reader.readline(MAX_MESSAGE_BYTES)
        if not line:
            self.lost("ended")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as broken:
            self.lost(f"sent what is no message ({broken})")
        if not isinstance(message, dict):
            self.lost("sent what is no message")
        return message

    def _pack(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, str, float)):
            return value
        if isinstance(value, int):
            return value if -_SAFE_INT < value < _SAFE_INT else {"int": hex(value)}
        if isinstance(value, list):
            return [self._pack(item) for item in value]
        for name, (kind, take, _) in _KINDS.items():
            if isinstance(value, kind):
                taken = take(value)
                return {name: self._pack(taken) if isinstance(taken, list) else taken}
        return self._pack_other(value)

    def _pack_other(self, value: Any) -> Any:
        if isinstance(value, Remote) and value.__dict__["_peer"] is self:
            return {"yours": value.__dict__["_ref"]}
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if name in _TEXT_KINDS:
            return {name: str(value)}
        if isinstance(value, ModuleType):
            return {"module": value.__name__}
        return {"mine": [self.keep(value), name, callable(value)]}

    def _unpack(self, packed: Any) -> Any:
        if isinstance(packed, list):
            return [self._unpack(item) for item in packed]
        if not isinstance(packed, dict):
            return packed
        ((name, held),) = packed.items()
        if name in _KINDS:
            return _KINDS[name][2](self._unpack(held))
        return self._unpack_other(name, held)

    def _unpack_other(self, name: str, held: Any) -> Any:
        if name == "int":
            return int(held, 16)
        if name == "yours":
            return self._kept[held]
        if name in _TEXT_KINDS:
            module, _, kind = name.partition(".")
            return getattr(importlib.import_module(module), kind)(held)
        if name == "module":
            if held not in sys.stdlib_module_names:
                raise ValueError(f"{held!r} is not a module of the standard library")
            return importlib.import_module(held)
        ref, kind, can_call = held
        if ref not in self._remotes:
            self._remotes[ref] = self.represent(int(ref), str(kind), bool(can_call))
        return self._remotes[ref]


def _exception(name: str, args: list[Any]) -> Exception:
    """The built-in exception of that name, else one made for it; never one that ends a process, such as SystemExit."""
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (Exception,), {})
    try:
        error: Exception = kind(*args)
    except TypeError:
        return Exception(f"{name}: {args}")
    return error


def _refresh(given: list[Any], left: list[Any]) -> None:
    """Make the caller's own lists, dicts and sets hold what the call left in its copies of them."""
    for own, new in zip(given, left, strict=True):
        if isinstance(own, (list, bytearray)):
            own[:] = new
        elif isinstance(own, (dict, set)):
            own.clear()
            own.update(new)
