# Two commands for a fresh machine: `make tune` runs the main job, `make test` runs the tests. Each does its own set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := draftgate.trace,draftgate.policy,draftgate.stats,draftgate.cost,draftgate.replay

.PHONY: tune test lint clean

tune: $(VENV)/.run
	$(BIN)/draftgate models pull smollm2-135m
	$(BIN)/draftgate tune --out runs/first

test: $(VENV)/.dev
	$(BIN)/draftgate models pull smollm2-135m smollm2-135m-draft24 smollm2-135m-draft8
	$(BIN)/python -m pytest --cov=draftgate --cov-report=
	$(BIN)/coverage report --include='$(shell echo $(CORE) | sed "s#draftgate\.#*/draftgate/#g; s#,#/*,#g")/*' --fail-under=95

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[llamacpp,tune]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
