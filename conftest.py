"""Modules that only a vLLM process can import are collected where vLLM is installed: `make test-vllm`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["src/draftgate/engines/vllm/*.py", "tests/vllm/*.py"]
