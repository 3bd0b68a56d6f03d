# Every target does its own set-up in .venv and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pinned, and installed first: a range would let pip take a build with gigabytes of CUDA packages.
TORCH := torch==2.13.0
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format bench clean system

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (set PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[dev,selfplay]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[bench]'
	@touch $@

system:
	@scripts/system_packages.sh

demo: $(VENV)/.core system ## from "run forward fast" to a judged policy, its video and a report; needs no key
	$(BIN)/p2p run "run forward fast" --env HalfCheetah-v5 --model builtin

test: $(VENV)/.dev system ## run the tests
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

test-slow: $(VENV)/.dev system ## run the long tests too
	$(BIN)/pytest -n 2 --dist worksteal

check: $(VENV)/.dev ## lint, formatting, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code and mend what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.bench ## measure our claims against peers; writes benchmarks/results/
	$(BIN)/python benchmarks/jail_startup.py --write
	$(BIN)/python benchmarks/ppo_throughput.py --write
	$(BIN)/python benchmarks/ppo_returns.py --write
	$(BIN)/python benchmarks/selfplay_buffer.py --write

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
