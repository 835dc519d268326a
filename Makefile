# make alone explains the targets. TORCH chooses another torch build: make demo TORCH="torch==2.15.0+cpu", for example.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= $(shell grep '^torch==' requirements.lock)
DEMO := runs/demo
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-runtimes test-latest-flower test-docker lint docs bench lock clean

help: ## explain the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/ready ## make the virtual environment .venv with everything that is needed

$(VENV)/ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	@echo "Installing; PyTorch is large, this can take a few minutes the first time."
	grep -v '^torch==' requirements.lock > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --quiet --constraint $(VENV)/constraints.txt --editable . --group dev
	touch $@

demo: setup ## compare four methods on 20 clients, three of them with a camera mounted sideways
	$(BIN)/fairbloom compare --task digits --methods fedavg,qfedavg,fedmgdaplus,fedfv --seeds 10 --rounds 50 \
		--clients 20 --set partition=iid --set rotated-clients=3 --set evaluate-every=10 --out $(DEMO)

test: setup ## run the tests
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup

test-runtimes: setup ## run only the tests that start Ray or real server and client processes
	$(BIN)/pytest -m "runtimes or federation"

test-latest-flower: ## run the tests on the newest Flower that can be installed; warm clients need the pinned one
	$(PYTHON) -m venv .venv-latest
	.venv-latest/bin/python -m pip install --quiet --quiet --upgrade "pip>=25.1"
	.venv-latest/bin/python -m pip install --quiet --quiet "$(TORCH)"
	.venv-latest/bin/python -m pip install --quiet --quiet --editable . --group dev
	.venv-latest/bin/python -m pip install --quiet --quiet --upgrade "flwr[simulation]"
	.venv-latest/bin/python -c 'import importlib.metadata as m; print("Flower", m.version("flwr"))'
	.venv-latest/bin/pytest --numprocesses $(WORKERS) -m "not docker and not runtimes" --ignore tests/deploy/test_warm.py

test-docker: setup ## build the images and run a federation of containers; needs a Docker engine
	$(BIN)/pytest -m docker -s tests/docker

lint: setup ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: setup ## build the documentation into docs/_build
	$(BIN)/python -m pip install --quiet --quiet --constraint $(VENV)/constraints.txt --group docs
	$(BIN)/sphinx-build --fail-on-warning --quiet docs docs/_build
	@echo "open docs/_build/index.html"

bench: setup ## measure simulated and deployed rounds against a plain loop and against Flower's own
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.deployed

lock: setup ## write the versions that are installed now into requirements.lock
	@grep '^#' requirements.lock > $(VENV)/lock
	$(BIN)/pip freeze --exclude-editable >> $(VENV)/lock
	mv $(VENV)/lock requirements.lock

clean: ## remove the virtual environment, caches and runs
	rm -rf $(VENV) .venv-latest runs dist docs/_build docs/methods .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
