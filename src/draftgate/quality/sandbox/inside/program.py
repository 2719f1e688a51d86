"""The untrusted side of a trial: load a program and serve what it defines to its tests."""

import os
import sys
from typing import Any, NoReturn

from draftgate.quality.sandbox.inside.script import load
from draftgate.quality.sandbox.inside.wire import Peer

__all__ = ["serve"]


def serve(job: dict[str, Any]) -> NoReturn:
    """The role that loads `job["source"]`, then answers calls until the tests are over."""
    objects = sys.modules.get("draftgate.quality.sandbox.inside.objects")
    names = load(job["source"])

    def look(wanted: list[str]) -> dict[str, Any]:
        return {name: names[name] for name in wanted if name in names}

    operations = {"look": look, "call": lambda function, *args, **kwargs: function(*args, **kwargs)}
    reader, writer = os.fdopen(job["reader"], "rb"), os.fdopen(job["writer"], "wb")
    _Server(reader, writer, operations | dict(objects.OPERATIONS if objects else {})).serve()


class _Server(Peer):
    def lost(self, reason: str) -> NoReturn:
        os._exit(0)
