from collections.abc import Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("draftgate.testing.engine")

from draftgate.engines.llamacpp import models  # noqa: E402 (assertions are rewritten before the import)


@pytest.fixture(scope="session")
def pulled() -> Callable[[str], Path]:
    """The file of a registered model; fetched or made in the user's model folder when it is not there."""

    def path(name: str) -> Path:
        pulled_now = {status.model.name: status for status in models.listing()}[name]
        return pulled_now.path if pulled_now.present else models.pull(name)

    return path
