# Targets, a line each: `make` or `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-$(shell cat requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/group_hygiene/__init__.py)
# A test of the operator that needs a run of Spark: with those of the pipeline.
WITH_SPARK := tests/e2e/test_evidence.py::test_the_idle_goes_and_who_commits_the_same_again_stays
LOCKING := --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
XDG_CACHE_HOME ?= $(HOME)/.cache
export PIP_CACHE_DIR ?= $(XDG_CACHE_HOME)/kafka-group-hygiene/pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# No target is a file, but for the stamp of the virtual environment.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | column -t -s '|'

demo: $(STAMP) ## the main job on a real Kafka and a real API server, in two minutes (KEEP=1 leaves it up)
	@$(BIN)/python -m sandbox.demo $(if $(KEEP),--keep)

# By itself pytest-xdist starts the files with the fewest tests last: the demo's, the longest, would begin when all else is done.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore=tests/spark --ignore=tests/images --ignore=tests/node --deselect $(WITH_SPARK)

test: $(STAMP) ## the tests, on real parts, but for those of test-all
	@$(BIN)/python -m sandbox prepare
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: test test-slow test-spark images-check ## every test, about an hour

test-slow: $(STAMP) ## the tests of the demo, of old brokers, of what seldom breaks, and of the tooling, about 15 minutes
	@$(BIN)/python -m sandbox prepare --browser
	@$(PYTEST) -m slow $(PYTEST_ARGS)

test-spark: $(STAMP) ## the tests of the pipeline, on a real Spark and real brokers, about 25 minutes
	@$(BIN)/python -m sandbox prepare
	@$(BIN)/python -m pytest tests/spark $(WITH_SPARK) $(PYTEST_ARGS)

faults: $(STAMP) ## kill, freeze and cut off everything around a deletion, about 25 minutes (make faults FAULTS="--help")
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m faults $(FAULTS)

rbac-minimal: $(STAMP) ## take each right of the operator's roles away by itself: something must fail, about 8 minutes
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m faults.rbac_minimal $(RIGHTS)

kill-ingest: $(STAMP) ## kill -9 of the pipeline at 20 random points, about 8 minutes (make kill-ingest KILLS=5)
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m faults.ingest_kills --kills $(or $(KILLS),20)

smoke: $(STAMP) ## a short run of faults, rbac-minimal, kill-ingest and test-spark
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m faults --smoke
	@PYTHONPATH=operator:. $(BIN)/python -m faults.rbac_minimal "get secrets" "patch events" "list scaledobjects"
	@PYTHONPATH=operator:. $(BIN)/python -m faults.ingest_kills --kills 2
	@$(BIN)/python -m pytest tests/spark/test_exactness.py $(WITH_SPARK) $(PYTEST_ARGS)

check: format-check lint types imports test ## what CI runs

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only -q .

format-check: $(STAMP)
	@$(BIN)/ruff format --check -q . || { echo "run: make format"; exit 1; }

lint: $(STAMP) ## lint
	@$(BIN)/ruff check .

types: $(STAMP) ## check the types, strictly
	@$(BIN)/mypy operator/group_hygiene sandbox tests bench faults docsite

imports: $(STAMP) ## check that imports go one way
	@cd operator && ../$(BIN)/lint-imports --config ../.importlinter --no-cache > ../$(VENV)/imports.log || { cat ../$(VENV)/imports.log; exit 1; }

sandbox: $(STAMP) ## one real Kafka and one real API server in the foreground; source .sandbox/env in another shell
	@$(BIN)/python -m sandbox up

sandbox-node: $(STAMP) ## the same with a Kubernetes node that runs pods, and the operator's image on it: Linux, as root, after `make images`
	@$(BIN)/python -m sandbox up --node --image localhost/group-hygiene:$(VERSION)

bench-scan: $(STAMP) ## time scans of 100,000 groups beside Java, franz-go and others, about 15 minutes (make bench-scan GROUPS=2000)
	@$(BIN)/python -m bench.scan --groups $(or $(GROUPS),100000)

bench-purge: $(STAMP) ## purge 50,000 groups: memory, ledger, and what another client feels, about 20 minutes (make bench-purge GROUPS=2000)
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m bench.purge --groups $(or $(GROUPS),50000) $(PURGE)

bench-pipeline: $(STAMP) ## time the pipeline on 1,000,000 commits beside Spark's count and franz-go (make bench-pipeline RECORDS=100000)
	@PYTHONPATH=operator:. $(BIN)/python -m bench.pipeline --records $(or $(RECORDS),1000000)

bench-backtest: $(STAMP) ## try a policy on 90 days of 100,000 groups, and compare what comes out (make bench-backtest GROUPS=1000 DAYS=30)
	@PYTHONPATH=operator:. $(BIN)/python -m bench.backtest --groups $(or $(GROUPS),100000) --days $(or $(DAYS),90)

site: $(STAMP) ## build the site of docs/ into build/site, without a warning
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs: $(STAMP) ## the generated pages of docs/ anew: of the CRDs and of the commands
	@PYTHONPATH=operator:. $(BIN)/python -m docsite

picture: $(STAMP) ## the pictures in the docs, drawn anew: of the report, and of kubectl in the tutorial
	@$(BIN)/python -m sandbox prepare --browser
	@PYTHONPATH=operator:. $(BIN)/python -m docsite.terminal docs/kubectl.png
	@PYTHONPATH=operator:. $(BIN)/python -m bench.picture docs/report.png

rules: chart ## deploy/prometheus/prometheusrule.yaml anew, of the rules in rules.yaml
	@cd deploy/prometheus && { sed '/^spec:/q' prometheusrule.yaml; sed -n '/^groups:/,$$p' rules.yaml | sed 's/^./  &/'; } > .new && mv .new prometheusrule.yaml

dist: $(STAMP) ## the wheel and the source distribution into dist/
	@rm -rf build dist && mkdir dist
	@$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist .
	@$(BIN)/python -c 'import setuptools.build_meta as backend; backend.build_sdist("dist")' > build/sdist.log
	@rm -rf build && ls dist

outside: $(STAMP) ## the demo's groups and checks on a Kafka and a Kubernetes that are there (make outside OUTSIDE="--help")
	@$(BIN)/python -m sandbox.outside $(OUTSIDE)

images: ## build both images by podman or docker, about 3 minutes (deploy/images/build.sh tells its options)
	@deploy/images/build.sh

chart: ## copy the kinds and the rules into the chart
	@cp crds/*.yaml deploy/helm/group-hygiene/files/crds/ && cp deploy/prometheus/rules.yaml deploy/helm/group-hygiene/files/

images-check: $(STAMP) ## the pipeline's image step by step in an empty folder, and what is run in kind, about 5 minutes
	@$(BIN)/python -m sandbox prepare
	@$(BIN)/python -m pytest tests/images $(PYTEST_ARGS)

# Only one of the command line: what KUBECONFIG is in the environment is for other uses.
GIVEN := $(if $(filter command line,$(origin KUBECONFIG)),$(abspath $(KUBECONFIG)))

test-node: $(STAMP) ## the images and the chart on a real Kubernetes node of this machine: Linux, as root, after `make images`
	@[ -z "$(GIVEN)" ] || [ -n "$(and $(ADDRESS),$(REPOSITORY))" ] || { echo "name REPOSITORY, where the cluster has the image from, and ADDRESS, under which its pods reach this machine"; exit 1; }
	@$(BIN)/python -m sandbox prepare $(if $(GIVEN),,--node)
	@NODE_KUBECONFIG=$(GIVEN) NODE_ADDRESS=$(ADDRESS) NODE_REPOSITORY=$(REPOSITORY) $(BIN)/python -m pytest tests/node $(PYTEST_ARGS)

release-fixtures: $(STAMP) ## tests/releases/<version>: the ledger and the tables that this version writes, anew
	@$(BIN)/python -m sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m tests.releases.make

argocd-fixtures: $(STAMP) ## deploy/argocd/fixtures: objects as an operator and an API server of today have them, anew
	@$(BIN)/python -m sandbox prepare
	@WRITE_FIXTURES=1 $(BIN)/python -m pytest tests/e2e/test_gitops_health.py $(PYTEST_ARGS)

lock: ## pin all dependencies anew, into requirements.lock and those of the images
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install -q uv==0.13.8
	$(VENV)/lock/bin/uv pip compile -q $(LOCKING) --extra dev --extra docs --extra pipeline --extra tracing pyproject.toml -o requirements.lock
	for image in operator:tracing pipeline:pipeline; do $(VENV)/lock/bin/uv pip compile -q $(LOCKING) -c requirements.lock --extra $${image#*:} pyproject.toml -o deploy/images/$${image%:*}.lock; done
	echo 'setuptools>=77' | $(VENV)/lock/bin/uv pip compile -q $(LOCKING) -c requirements.lock - -o deploy/images/build.lock

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
