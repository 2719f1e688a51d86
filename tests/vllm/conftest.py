"""Models for the tests on a real vLLM, which run in the environment that tools/vllm_env.py builds: `make test-vllm`."""

import hashlib
import os
from pathlib import Path

import platformdirs
import pytest

from draftgate.testing import hf

# Before vLLM is imported: one process, one thread, little memory, no network.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "NUMBA_NUM_THREADS": "1",  # the n-gram drafter's; else it sets OpenMP's threads too, whose barriers spin
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


collect_ignore = ["v2_on_cpu.py"]  # a program that a test runs


def pytest_configure(config: pytest.Config) -> None:
    """What vLLM and torch say about each other's old names is theirs; warnings from our code stay errors."""
    config.addinivalue_line("filterwarnings", r"ignore:::(torch|vllm|transformers|importlib|numba)\b")


def cached(name: str) -> Path:
    """Where a model of this name is kept; elsewhere once the recipe changes."""
    recipe = hashlib.sha256(Path(hf.__file__).read_bytes()).hexdigest()[:12]
    return platformdirs.user_cache_path("draftgate") / "hf" / f"{name}-{recipe}"


@pytest.fixture(scope="session")
def smollm2_dir(smollm: Path) -> Path:
    """SmolLM2-135M Instruct; its weights are those of the registered GGUF."""
    return hf.smollm2_hf(smollm, cached("smollm2-135m"))


@pytest.fixture(scope="session")
def tiny_dir(smollm: Path) -> Path:
    """A tiny target with SmolLM2's tokenizer."""
    return hf.tiny_hf(smollm, cached("tiny"))


@pytest.fixture(scope="session")
def tiny_draft_dir(smollm: Path) -> Path:
    """A draft for `tiny_dir` that it agrees with on some three tokens of four."""
    return hf.tiny_hf(smollm, cached("tiny-draft"), noise=0.1)


@pytest.fixture(scope="session")
def toy_dir() -> Path:
    """A target of 32 tokens."""
    return hf.toy_hf(cached("toy"))


@pytest.fixture(scope="session")
def toy_draft_dir() -> Path:
    """A draft for `toy_dir`."""
    return hf.toy_hf(cached("toy-draft"), noise=0.3)
