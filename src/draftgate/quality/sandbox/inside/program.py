"""The untrusted side: run a program from beginning to end, or load it and serve what it defines to its tests."""

import builtins
import os
import sys
from types import ModuleType
from typing import Any, NoReturn

from draftgate.quality.sandbox.inside.wire import Peer

__all__ = ["run", "serve"]


def run(job: dict[str, Any]) -> None:
    """Run `job["source"]` as a script would be."""
    _load(job["source"])


def serve(job: dict[str, Any]) -> None:
    """Load `job["source"]` as a script would be, then answer calls until the tests are over."""
    objects = sys.modules.get("draftgate.quality.sandbox.inside.objects")
    reader, writer = os.fdopen(job["reader"], "rb"), os.fdopen(job["writer"], "wb")
    names = _load(job["source"])

    def look(wanted: list[str]) -> dict[str, Any]:
        return {name: names[name] for name in wanted if name in names}

    operations = {"look": look, "call": lambda function, *args, **kwargs: function(*args, **kwargs)}
    _Server(reader, writer, operations | dict(objects.OPERATIONS if objects else {})).serve()


class _Server(Peer):
    def lost(self, reason: str) -> NoReturn:
        sys.stdout.flush()
        os._exit(0)


def _load(source: str) -> dict[str, Any]:
    """Run a script; what it raises is printed without the frames of this package."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), main.__dict__)
    except Exception as error:
        import linecache
        import traceback

        linecache.cache["<program>"] = (len(source), None, source.splitlines(keepends=True), "<program>")
        traceback.print_exception(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        sys.exit(1)
    return main.__dict__
