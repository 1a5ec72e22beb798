# Everything a contributor runs. `make help` lists it; `make quickstart` and `make test` are the two to know.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
VENV := .venv/.in-step-with-the-lock
ARGS ?=
export BASE ?=
# Every process that a test starts would compile all it imports, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV): requirements.lock pyproject.toml hack/bootstrap.sh
	@hack/bootstrap.sh
	@touch $@

.PHONY: venv
venv: $(VENV) ## Install the locked Python packages into .venv

.PHONY: control-plane
control-plane: ## Find or build etcd, kube-apiserver and kubectl (once per user)
	@hack/get-control-plane.sh >/dev/null

.PHONY: redis
redis: ## Find or install redis-server, for the tests of several servers
	@hack/get-redis.sh >/dev/null

.PHONY: mooncake
mooncake: $(VENV) ## Find or install the libraries of the Mooncake in .venv, for the tests of the KV cache pool
	@hack/get-mooncake.sh >/dev/null

.PHONY: quickstart
quickstart: $(VENV) control-plane ## Run the operator against a real API server and watch it wire an engine; Ctrl-C ends it (ARGS="--exit": end at once)
	@exec $(BIN)/inferencecache quickstart $(ARGS)

.PHONY: lint
lint: $(VENV) ## Style, types, import contracts, and generated files in step with the code
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python hack/generate.py --check

.PHONY: test
test: lint control-plane redis mooncake ## Everything CI holds: lint, then unit, recorded-case and integration tests (ARGS="-k name": some of them)
	@# In the order of their names: small files come last, where the default ends with long ones that hold one test.
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: format
format: $(VENV) ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: generate
generate: $(VENV) ## Write the CRDs, RBAC, webhook configurations and reference pages from the code
	@$(BIN)/python hack/generate.py

.PHONY: lock
lock: $(VENV) ## Resolve the dependencies of pyproject.toml anew into requirements.lock, and the image's part of it
	@$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--group pyproject.toml:dev pyproject.toml --output-file requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--extra tokenizer --extra tracing --constraint requirements.lock pyproject.toml --output-file requirements-image.lock

.PHONY: bench
bench: $(VENV) control-plane ## Run the benchmarks and print their ratios
	@exec $(BIN)/python -m bench $(ARGS)

.PHONY: image
image: ## Build the images with Docker, and print their size and start-up time (BASE=image: take Python from there)
	@hack/build-image.sh

.PHONY: sbom
sbom: $(VENV) ## Write what the image holds to dist/inferencecache.spdx.json (ARGS="--image name": of a built one, with its Debian packages)
	@mkdir -p dist && $(BIN)/python hack/sbom.py $(ARGS) >dist/inferencecache.spdx.json

.PHONY: plugin
plugin: $(VENV) ## Pack the command line as a kubectl plugin into dist (ARGS="--url URL": with its Krew manifest)
	@$(BIN)/python hack/plugin.py $(ARGS)

.PHONY: cluster
cluster: $(VENV) ## Start a one-node cluster on this machine, as root (hack/cluster down ends it)
	@hack/cluster up

.PHONY: e2e
e2e: $(VENV) ## Run the images and real stores on that cluster; starts and ends what is not there (ARGS="-k name": some of it)
	@exec $(BIN)/python -m hack.endtoend $(ARGS)

.PHONY: packaging
packaging: $(VENV) control-plane ## Prove the chart with helm and the alerts with promtool; builds both where they are missing, once per user
	@for tool in helm promtool; do hack/get-tool.sh $$tool >/dev/null; done
	@$(BIN)/pytest packaged $(ARGS)

.PHONY: clean
clean: ## Remove .venv and every cache of this checkout (the control-plane binaries of the user stay)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
