# Everything runs from here; CI calls nothing else.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SECONDS ?= 600
WORKERS ?= 3# more than cores, since half of the time tests wait; with more, Spark's processes starve each other
.DEFAULT_GOAL := help
.PHONY: help install servers demo test test-fast soak check format bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/:.*?## /\t/' | expand -t 14

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PXRS needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -U 'pip>=25.1' -c constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e . --group dev
	@touch $@

install: .venv/.installed ## create .venv and install everything
	@$(BIN)/python -m compileall -q src # as pip does with a package that is not to be edited

demo: ## the main job on embedded parts, from an empty clone to its end
	@start=$$(date +%s); $(MAKE) -s install; echo "set-up took $$(( $$(date +%s) - start )) s"
	@$(BIN)/pxrs demo --engine spark

servers: install ## the servers for tests that no Python package carries
	@$(BIN)/python -m pxrs.testing.servers.install

test: servers ## all tests, as CI runs them; the slowest 40 are named at the end
	$(BIN)/python -m pytest -q -n 2 tests/rules --cov --cov-report=term
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --ignore=tests/rules --durations=40

test-fast: servers ## the tests for daily use, under 3 minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow"

soak: install ## the long forms: simulated histories, race rounds, fault campaigns (SECONDS=600)
	$(BIN)/python -m tests.tools.soak --seconds $(SECONDS)

check: install ## lint, types, architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install ## put the code into its standard form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: servers ## all benchmarks; table and pictures under benchmarks/results/
	$(BIN)/python -m benchmarks all

clean: ## remove what was made here
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
