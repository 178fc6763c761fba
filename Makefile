# Targets, a line each: `make` or `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
XDG_CACHE_HOME ?= $(HOME)/.cache
export PIP_CACHE_DIR ?= $(XDG_CACHE_HOME)/kafka-group-hygiene/pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test check format format-check lint types imports sandbox bench-scan lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | column -t -s '|'

demo: $(STAMP) ## the main job on a real Kafka and a real API server, in a minute (KEEP=1 leaves it up)
	@$(BIN)/python -m sandbox.demo $(if $(KEEP),--keep)

test: $(STAMP) ## all tests, on real parts
	@$(BIN)/python -m sandbox prepare
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

check: format-check lint types imports test ## what CI runs

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only -q .

format-check: $(STAMP)
	@$(BIN)/ruff format --check -q . || { echo "run: make format"; exit 1; }

lint: $(STAMP) ## lint
	@$(BIN)/ruff check .

types: $(STAMP) ## check the types, strictly
	@$(BIN)/mypy operator/group_hygiene sandbox tests bench

imports: $(STAMP) ## check that imports go one way
	@cd operator && ../$(BIN)/lint-imports --config ../.importlinter --no-cache > ../$(VENV)/imports.log || { cat ../$(VENV)/imports.log; exit 1; }

sandbox: $(STAMP) ## one real Kafka and one real API server in the foreground; source .sandbox/env in another shell
	@$(BIN)/python -m sandbox up

bench-scan: $(STAMP) ## time scans of 100,000 groups beside Java, franz-go and others, about 15 minutes (make bench-scan GROUPS=2000)
	@$(BIN)/python -m bench.scan --groups $(or $(GROUPS),100000)

lock: ## pin all dependencies anew into requirements.lock
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install -q uv==0.13.8
	$(VENV)/lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --extra dev pyproject.toml -o requirements.lock

clean: ## remove the virtual environment and what tools left (the cache outside the checkout stays)
	rm -rf $(VENV) .sandbox build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis operator/*.egg-info

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: install Python 3.11 or newer (Debian: apt install python3 python3-venv; macOS: brew install python)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, this is $$($(PYTHON) -V): set PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV) (once)"
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --require-hashes -r requirements.lock
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@
