# `make` or `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-$(shell cat deploy/requirements.lock pyproject.toml | cksum | cut -d' ' -f1)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/group_hygiene/__init__.py)
# This test of the operator needs Spark: it runs with those of the pipeline.
WITH_SPARK := tests/e2e/test_evidence.py::test_the_idle_goes_and_who_commits_the_same_again_stays
LOCKING := --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
XDG_CACHE_HOME ?= $(HOME)/.cache
export PIP_CACHE_DIR ?= $(XDG_CACHE_HOME)/kafka-group-hygiene/pip
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Without cached bytecode each test worker and each operator of a test compiles the same files again.
unexport PYTHONDONTWRITEBYTECODE

# URL of the published site of docs/, like https://example.com/group-hygiene: the site's own address, and the home of the
# released chart with its links to the runbook (release.yml). Empty = not published.
export HOME_URL ?=

# No target is a file except the stamp of the virtual environment.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | column -t -s '|'

demo: $(STAMP) ## run the demo on a real Kafka and a real API server, about 4 minutes (KEEP=1 leaves them running)
	@$(BIN)/python -m testing.sandbox.demo $(if $(KEEP),--keep)

# Which files run in one worker, and in which order: see tests/conftest.py. More workers than cores, as tests wait, too.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --ignore=tests/spark --ignore=tests/images --ignore=tests/node --deselect $(WITH_SPARK)

test: $(STAMP) ## run the tests on Kafka and an API server, about 6 minutes on two cores
	@$(BIN)/python -m testing.sandbox prepare
	@ONLY_BASIC=1 $(PYTEST) -m "not slow and not extra" $(PYTEST_ARGS)

test-extra: $(STAMP) ## run what `make test` leaves out and CI runs: tests with further programs, and long ones, about 15 minutes
	@$(BIN)/python -m testing.sandbox prepare --extra
	@$(PYTEST) -m "extra and not slow" $(PYTEST_ARGS)

test-all: $(STAMP) ## run every test but those of test-node: also the slow ones, test-spark and images-check, about 80 minutes
	@$(BIN)/python -m testing.sandbox prepare --extra --browser
	@THOROUGH=1 $(PYTEST) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-spark images-check

test-spark: $(STAMP) ## run the tests of the pipeline on a real Spark and real brokers, about 25 minutes
	@$(BIN)/python -m testing.sandbox prepare --extra
	@$(BIN)/python -m pytest tests/spark $(WITH_SPARK) $(PYTEST_ARGS)

faults: $(STAMP) ## kill, freeze and disconnect all components during deletions, about 30 minutes (make faults FAULTS="--help")
	@$(BIN)/python -m testing.sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults $(FAULTS)

worlds: $(STAMP) ## live the same life in some 150 clusters that differ in one setting each, about 80 minutes; a second call goes on (make worlds WORLDS="--help")
	@$(BIN)/python -m testing.sandbox prepare --extra
	@PYTHONPATH=operator:. $(BIN)/python -m testing.worlds $(WORLDS)

rbac-minimal: $(STAMP) ## remove each permission of the operator's roles in turn: a check must fail, about 8 minutes
	@$(BIN)/python -m testing.sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults.rbac_minimal $(RIGHTS)

kill-ingest: $(STAMP) ## kill the pipeline (kill -9) at 20 random points, about 8 minutes (make kill-ingest KILLS=5)
	@$(BIN)/python -m testing.sandbox prepare --extra
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults.ingest_kills --kills $(or $(KILLS),20)

overlap-ingest: $(STAMP) ## run two pipelines at once into an S3 store, and kill or freeze one, 20 times (make overlap-ingest ROUNDS=5)
	@$(BIN)/python -m testing.sandbox prepare --extra
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults.ingest_overlaps --rounds $(or $(ROUNDS),20)

smoke: $(STAMP) ## run a short version of faults, worlds, rbac-minimal, kill-ingest and test-spark
	@$(BIN)/python -m testing.sandbox prepare --extra
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults --smoke
	@PYTHONPATH=operator:. $(BIN)/python -m testing.worlds --smoke --jobs 3
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults.rbac_minimal "get secrets" "patch events" "list scaledobjects"
	@PYTHONPATH=operator:. $(BIN)/python -m testing.faults.ingest_kills --kills 2
	@$(BIN)/python -m pytest tests/spark/test_exactness.py $(WITH_SPARK) $(PYTEST_ARGS)

check: format-check lint types imports test ## format, lint, types, imports, and `make test`; CI runs more: see .ci/run

format: $(STAMP) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only -q .

format-check: $(STAMP)
	@$(BIN)/ruff format --check -q . || { echo "run: make format"; exit 1; }

lint: $(STAMP) ## lint the code
	@$(BIN)/ruff check .

types: $(STAMP) ## check the types with mypy, strictly
	@$(BIN)/mypy operator/group_hygiene testing tests docsite

imports: $(STAMP) ## check the layers of imports
	@cd operator && ../$(BIN)/lint-imports --config ../.importlinter --no-cache > ../$(VENV)/imports.log || { cat ../$(VENV)/imports.log; exit 1; }

sandbox: $(STAMP) ## run a real Kafka and a real API server in the foreground; source .sandbox/env in another shell
	@$(BIN)/python -m testing.sandbox up

sandbox-node: $(STAMP) ## the same with a Kubernetes node that runs pods, with the operator's image: Linux, as root, after `make images`
	@$(BIN)/python -m testing.sandbox up --node --image localhost/group-hygiene:$(VERSION)

bench-scan: $(STAMP) ## time scans of 100,000 groups beside Java, franz-go and others, about 15 minutes (make bench-scan GROUPS=2000)
	@$(BIN)/python -m testing.bench.scan --groups $(or $(GROUPS),100000)

bench-purge: $(STAMP) ## purge 50,000 groups: memory, ledger, effect on another client, about 20 minutes (make bench-purge GROUPS=2000)
	@$(BIN)/python -m testing.sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.purge --groups $(or $(GROUPS),50000) $(PURGE)

bench-operator: $(STAMP) ## memory and time of the operator for 10,000 to 500,000 groups and 1 to 50 policies, about 2 hours (make bench-operator GROUPS="2000" POLICIES="1 3")
	@$(BIN)/python -m testing.sandbox prepare
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.operator $(if $(GROUPS),--groups $(GROUPS)) $(if $(POLICIES),--policies $(POLICIES)) $(if $(INTERVAL),--interval $(INTERVAL))

bench-broker: $(STAMP) ## measure what 10,000 to 500,000 unused groups cost a broker (make bench-broker GROUPS="10000 50000")
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.broker $(if $(GROUPS),--groups $(GROUPS))

bench-pipeline: $(STAMP) ## time the pipeline on three logs of 10,000,000 records beside franz-go, DuckDB and Spark's source (make bench-pipeline RECORDS=100000)
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.pipeline --records $(or $(RECORDS),10000000)

bench-backtest: $(STAMP) ## try a policy on 90 days of 100,000 groups, and compare the results (make bench-backtest GROUPS=1000 DAYS=30)
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.backtest --groups $(or $(GROUPS),100000) --days $(or $(DAYS),90)

bench-executors: $(STAMP) ## time the pipeline on 1, 2 and 4 executors, and compare the tables, about 4 minutes (make bench-executors RECORDS=100000)
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.executors --records $(or $(RECORDS),5000000)

site: $(STAMP) ## build the site of docs/ into build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs: $(STAMP) ## generate the rules of durations in crds/, and the pages of docs/ on CRDs, commands and reasons
	@PYTHONPATH=operator:. $(BIN)/python -m docsite

picture: $(STAMP) ## draw the pictures of the docs: the report, and kubectl and a plan in the tutorial
	@$(BIN)/python -m testing.sandbox prepare --extra --browser
	@PYTHONPATH=operator:. $(BIN)/python -m docsite.terminal policy docs/kubectl.png
	@PYTHONPATH=operator:. $(BIN)/python -m docsite.terminal plan docs/plan.png
	@PYTHONPATH=operator:. $(BIN)/python -m testing.bench.picture docs

rules: chart ## generate deploy/prometheus/prometheusrule.yaml from rules.yaml
	@cd deploy/prometheus && { sed '/^spec:/q' prometheusrule.yaml; sed -n '/^groups:/,$$p' rules.yaml | sed 's/^./  &/'; } > .new && mv .new prometheusrule.yaml

dist: $(STAMP) ## build the wheel and the source distribution into dist/
	@rm -rf build dist && mkdir dist
	@$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist .
	@$(BIN)/python -c 'import setuptools.build_meta as backend; backend.build_sdist("dist")' > build/sdist.log
	@rm -rf build && ls dist

install-yaml: ## write dist/install.yaml, the CRDs and an operator of all namespaces (make install-yaml IMAGE=registry.example.com/group-hygiene:0.2.0)
	@[ -n "$(IMAGE)" ] || { echo "set IMAGE, the operator's image"; exit 1; }
	@mkdir -p dist && set -o pipefail && { \
	  echo "# kubectl apply --server-side --force-conflicts -f install.yaml: the CRDs, and an operator of all namespaces. It reads Secrets"; \
	  echo "# only where you bind the ClusterRole group-hygiene-secrets. kubectl delete -f install.yaml deletes the CRDs with all policies."; \
	  cat crds/*.yaml && echo --- && kubectl kustomize deploy/kustomize/overlays/cluster-wide; \
	} | sed 's|image: REPLACE-WITH-YOUR-REGISTRY/.*|image: $(IMAGE)|' > dist/install.yaml

schemas: $(STAMP) ## write a JSON Schema of each CRD into dist/schemas/, for editors and kubeconform
	@PYTHONPATH=operator:. $(BIN)/python -m docsite.json_schema dist/schemas

outside: $(STAMP) ## run the demo's checks on an existing Kafka and Kubernetes (make outside OUTSIDE="--help")
	@$(BIN)/python -m testing.sandbox.outside $(OUTSIDE)

images: ## build both images with podman or docker, about 3 minutes (options: see deploy/images/build.sh)
	@deploy/images/build.sh

chart: ## copy the CRDs, the rules and the dashboard into the chart
	@cp crds/*.yaml deploy/helm/group-hygiene/files/crds/ && cp deploy/prometheus/rules.yaml deploy/grafana/dashboard.json deploy/helm/group-hygiene/files/

images-check: $(STAMP) ## test the pipeline's image step by step in an empty folder, and the files for kind, about 5 minutes
	@$(BIN)/python -m testing.sandbox prepare --extra
	@$(BIN)/python -m pytest tests/images $(PYTEST_ARGS)

# Only a KUBECONFIG of the command line counts: the variable of the environment has other uses.
GIVEN := $(if $(filter command line,$(origin KUBECONFIG)),$(abspath $(KUBECONFIG)))

test-node: $(STAMP) ## test the images and the chart on a real Kubernetes node of this machine: Linux, as root, after `make images`
	@[ -z "$(GIVEN)" ] || [ -n "$(and $(ADDRESS),$(REPOSITORY))" ] || { echo "set REPOSITORY, from which the cluster pulls the image, and ADDRESS, at which its pods reach this machine"; exit 1; }
	@$(BIN)/python -m testing.sandbox prepare --extra $(if $(GIVEN),,--node)
	@NODE_KUBECONFIG=$(GIVEN) NODE_ADDRESS=$(ADDRESS) NODE_REPOSITORY=$(REPOSITORY) $(BIN)/python -m pytest tests/node $(PYTEST_ARGS)

argocd-fixtures: $(STAMP) ## regenerate deploy/argocd/fixtures: objects of the current operator and API server
	@$(BIN)/python -m testing.sandbox prepare --extra
	@WRITE_FIXTURES=1 $(BIN)/python -m pytest tests/e2e/test_gitops_health.py $(PYTEST_ARGS)

lock: ## update the pins of all dependencies, in deploy/requirements.lock and in those of the images
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install -q uv==0.13.8
	$(VENV)/lock/bin/uv pip compile -q $(LOCKING) --extra aws --extra dev --extra docs --extra pipeline pyproject.toml -o deploy/requirements.lock
	for image in operator:aws pipeline:aws,pipeline; do $(VENV)/lock/bin/uv pip compile -q $(LOCKING) -c deploy/requirements.lock $$(printf -- '--extra %s ' $$(echo $${image#*:} | tr , ' ')) pyproject.toml -o deploy/images/$${image%:*}.lock; done
	cd "$$($(PYTHON) -c 'from testing.sandbox.spark.jars import jars_of_the_image as jars; print(jars())')" && LC_ALL=C sha256sum *.jar > $(CURDIR)/deploy/images/jars.lock
	echo 'setuptools>=77' | $(VENV)/lock/bin/uv pip compile -q $(LOCKING) -c deploy/requirements.lock - -o deploy/images/build.lock

clean: ## remove the virtual environment and the files that tools created (the cache outside the checkout stays)
	rm -rf $(VENV) .sandbox .worlds build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis operator/*.egg-info

# A dot per package, as pip prints hundreds of lines. Its errors go to stderr.
PACKAGES = $(shell grep -c '^[a-z]' deploy/requirements.lock)
PROGRESS = while read -r word _; do case $$word in Collecting) printf .;; Installing) printf '\n%s\n' 'installing them';; esac; done

$(STAMP): deploy/requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "python3 is missing: install Python 3.11 or newer (Debian: apt install python3 python3-venv; macOS: brew install python)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, this is $$($(PYTHON) -V): set PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV) (once, some minutes): $(PACKAGES) packages"
	@[ "$$($(BIN)/python -V 2>&1)" = "$$($(PYTHON) -V)" ] || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@set -o pipefail; $(BIN)/pip install --require-hashes -r deploy/requirements.lock | $(PROGRESS)
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@touch $@
