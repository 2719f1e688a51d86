# Two commands for a fresh machine: `make tune` runs the main job, `make test` runs the tests. Each does its own set-up.
# `make test-vllm` runs the tests on a real vLLM, in an environment of 2.5 GB outside the checkout that it builds once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := draftgate.trace,draftgate.policy,draftgate.stats,draftgate.cost,draftgate.replay

.PHONY: tune test test-vllm lint sandbox prometheus clean

tune: $(VENV)/.run
	$(BIN)/draftgate models pull smollm2-135m
	$(BIN)/draftgate tune --out runs/first

test: $(VENV)/.dev sandbox prometheus
	$(BIN)/draftgate models pull smollm2-135m smollm2-135m-draft24 smollm2-135m-draft8
	$(BIN)/python -m pytest --cov=draftgate --cov-report=
	$(BIN)/coverage report --include='$(shell echo $(CORE) | sed "s#draftgate\.#*/draftgate/#g; s#,#/*,#g")/*' --fail-under=95

test-vllm: $(VENV)/.dev
	$(BIN)/draftgate models pull smollm2-135m
	env=$$($(BIN)/python tools/vllm_env.py) && "$$env"/bin/python -m pytest tests/vllm src/draftgate/engines/vllm

# Debian's bubblewrap is what generated code runs in; without it draftgate builds the same walls itself.
sandbox:
	@command -v bwrap >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get install -qq -y bubblewrap >/dev/null; } || echo "bubblewrap is not installed: using draftgate's own walls"

# Debian's Prometheus checks what is exported: promtool for names and rules, the server for scrapes and queries.
prometheus:
	@command -v promtool >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && { apt-get install -qq -y --no-install-recommends prometheus || { apt-get update -qq \
	  && apt-get install -qq -y --no-install-recommends prometheus; }; } >/dev/null; } \
	  || echo "promtool is not installed: tests of the exporter will fail; apt-get install prometheus"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[llamacpp,tune,quality]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
