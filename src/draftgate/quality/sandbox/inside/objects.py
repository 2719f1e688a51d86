"""What can be asked of an object that stays in the program, when a problem says that its tests need that.

The program then answers for its own objects, and a program that lies can pass: a stack that is asked for its length
says what it likes. Without this, only calls cross, and their results by value.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from draftgate.quality.sandbox.inside.wire import Remote

__all__ = ["OPERATIONS", "Object"]

_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_OTHERS = ("contains", "getitem", "setitem", "delitem", "neg", "eq", "ne", "lt", "le", "gt", "ge")

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "__getattr__": getattr,
    "__setattr__": setattr,
    "__len__": len,
    "__iter__": iter,
    "__next__": next,
    "__str__": str,
    "__repr__": repr,
    "__bool__": bool,
    "__hash__": hash,
    "__abs__": abs,
    "__int__": int,
    "__float__": float,
    "__round__": round,
    "__enter__": lambda value: value.__enter__(),
    "__exit__": lambda value, *_: value.__exit__(None, None, None),
    "__instancecheck__": lambda kind, value: isinstance(value, kind),
    **{f"__{name}__": getattr(operator, f"__{name}__") for name in _BINARY + _OTHERS},
    **{f"__r{name}__": (lambda do: lambda a, b: do(b, a))(getattr(operator, f"__{name}__")) for name in _BINARY},
}


class Object(Remote):
    """Stand-in that passes every operation on to the program."""


def _forward(name: str) -> Callable[..., Any]:
    def forwarded(self: Object, *args: Any) -> Any:
        return self.__dict__["_peer"].ask(name, self.__dict__["_ref"], *args)

    return forwarded


for _name in OPERATIONS:
    setattr(Object, _name, _forward(_name))
