from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest

# Shared machines pause: an example that took long says nothing about the code.
hypothesis.settings.register_profile("draftgate", deadline=None)
hypothesis.settings.load_profile("draftgate")

pytest.register_assert_rewrite("draftgate.testing.engine")

from draftgate.engines.llamacpp import models  # noqa: E402 (assertions are rewritten before the import)
from draftgate.engines.llamacpp.engine import LlamaCpp  # noqa: E402


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The default target, in the user's own model folder: pulled once, verified each session."""
    return models.pull("smollm2-135m")


@pytest.fixture(scope="session")
def llama(smollm: Path) -> Iterator[LlamaCpp]:
    """The real engine on one thread, with lookup drafts and room for two sequences."""
    with closing(LlamaCpp(smollm, n_ctx=512, threads=1, max_batch=2)) as engine:
        yield engine
