# make alone explains the targets. TORCH chooses another PyTorch: make demo TORCH="torch==2.15.0", for example; without it
# a machine that has no NVIDIA driver gets the CPU build, if pip can get that.
# Everything is installed with hashes from the lock files; another torch than those in locks/ is not checked.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?=
INSTALL = -m pip install --quiet --quiet
DEMO := runs/demo
SHIPPED := $(VENV)/shipped# the wheel, unpacked: types and imports are checked on what ships
WORKERS ?= 4# more than cores: much of the time, tests wait for servers and clients
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
ANYWHERE := not docker and not federation and not soak and not browser
.DEFAULT_GOAL := help
.PHONY: help setup demo settings test test-failed test-slow test-federation test-latest-flower test-privacy test-onnx test-docker test-browser soak rehearse lint audit docs site package try-package publisher bench lock digests sbom clean

help: ## explain the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/ready ## make the virtual environment .venv with everything that is needed

$(VENV)/ready: pyproject.toml requirements.lock locks/build.lock locks/torch.lock locks/torch-cpu.lock
	$(PYTHON) -m venv $(VENV)
	@echo "Installing; PyTorch is large, this can take a few minutes the first time."
	$(BIN)/python $(INSTALL) --require-hashes --requirement locks/build.lock
	$(BIN)/python $(INSTALL) --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python locks/pytorch.py $(TORCH) > $(VENV)/torch.txt
	$(BIN)/python $(INSTALL) --requirement $(VENV)/torch.txt
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $@

demo: setup ## compare four methods on 20 clients, three of them with a camera mounted sideways
	$(BIN)/fairbloom compare --task digits --methods fedavg,qfedavg,fedmgdaplus,fedfv --seeds 10 --rounds 50 \
		--clients 20 --set partition=iid --set digits.rotated-clients=3 --set evaluate-every=10 --out $(DEMO)

settings: setup ## write what derives from the code, pyproject.toml's run config: after a new setting, method, task or file
	$(BIN)/python -m docs.run_config
	$(BIN)/python -m docs.compatibility
	$(BIN)/python -m docs.released

test: setup ## run the tests that are not slow; SLOW_WITHIN=20 adds those that can begin within twenty minutes
	$(PYTEST) $(if $(SLOW_WITHIN),-m "$(ANYWHERE)" --slow-within=$(SLOW_WITHIN))

test-failed: setup ## run only what failed in the last run of tests, one after the other
	$(BIN)/pytest -m "$(ANYWHERE)" --last-failed --last-failed-no-failures none

test-slow: setup ## run the slow tests: real processes, every page of the documentation, every method in every runtime
	$(PYTEST) -m "$(ANYWHERE) and slow"

test-federation: setup ## run the tests that start federations, or take a part of one away, for minutes; FILES chooses some
	$(BIN)/pytest -m federation $(FILES)

test-latest-flower: ## run the tests, those of real nodes too, on the newest Flower, or on FLOWER===1.39.0
	$(MAKE) setup VENV=.venv-latest
	.venv-latest/bin/python $(INSTALL) --upgrade "flwr[simulation]$(FLOWER)"
	.venv-latest/bin/pytest --numprocesses $(WORKERS) --dist loadfile --ignore tests/test_supply_chain.py
	.venv-latest/bin/pytest --numprocesses $(WORKERS) --dist loadfile -m "$(ANYWHERE) and slow" --ignore tests/test_supply_chain.py
	.venv-latest/bin/pytest -m federation tests/runtimes

.venv-vision/ready: pyproject.toml requirements.lock locks/build.lock
	$(PYTHON) -m venv .venv-vision
	.venv-vision/bin/python $(INSTALL) --require-hashes --requirement locks/build.lock
	.venv-vision/bin/python $(INSTALL) --no-deps --require-hashes --requirement requirements.lock
	.venv-vision/bin/python $(INSTALL) torch torchvision
	.venv-vision/bin/python $(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

test-vision: .venv-vision/ready ## run the tests of torchvision's models in .venv-vision, with PyTorch's default build: 6 GB
	.venv-vision/bin/pytest --numprocesses $(WORKERS) -m vision tests/vision

test-privacy: setup ## compare the budgets of privacy accounts with dp-accounting, in .venv-privacy
	$(PYTHON) -m venv .venv-privacy
	.venv-privacy/bin/python $(INSTALL) dp-accounting==0.6.0
	DP_ACCOUNTING_PYTHON=.venv-privacy/bin/python $(BIN)/pytest tests/client/private/test_reference.py

test-onnx: setup ## compare the example that writes an ONNX file with fairbloom predict; its packages are in .venv/onnx
	$(BIN)/python $(INSTALL) --no-deps --upgrade --target $(VENV)/onnx \
		flatbuffers==25.12.19 ml-dtypes==0.6.0 onnx==1.23.2 onnx-ir==1.1.0 onnxruntime==1.31.1 onnxscript==0.7.2
	PYTHONPATH=$(CURDIR)/$(VENV)/onnx $(BIN)/pytest -m "" tests/docs/test_onnx.py

test-docker: setup ## build the images and run a federation of containers; needs a Docker engine
	$(BIN)/pytest -m docker -s tests/docker

test-browser: setup ## open reports in Chromium, where one is installed: errors, layout, accessibility, print
	$(BIN)/pytest -m browser tests/browser

soak: setup ## let 300 rounds train while one fault follows another: SOAK_ROUNDS, SOAK_SEED
	$(BIN)/pytest -m soak -s tests/soak

rehearse: setup ## install, try and remove Fairbloom as a stranger does, from each form and Python: ten minutes, 6 GB
	tests/install/rehearse.sh

lint: setup ## check style, types, the direction of imports and what is known to be unsafe
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(SHIPPED)
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --target $(SHIPPED) .
	cd $(SHIPPED) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache fairbloom $(CURDIR)/docker
	cd $(SHIPPED) && $(CURDIR)/$(BIN)/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

audit: ## look every locked package up in a database of vulnerabilities, where one can be reached
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python $(INSTALL) --require-hashes --requirement locks/audit.lock
	$(VENV)/audit/bin/python locks/audit.py requirements.lock locks/*.lock

$(VENV)/docs: $(VENV)/ready locks/docs.lock
	$(BIN)/python $(INSTALL) --require-hashes --requirement locks/docs.lock
	touch $@

docs: $(VENV)/docs ## build the documentation into docs/_build
	$(BIN)/sphinx-build --fail-on-warning --quiet docs docs/_build
	@echo "open docs/_build/index.html"

site: docs ## build the site into dist/site: dev/ is this commit, stable/ the newest release that has a tag
	.ci/site

package: setup ## build the wheel and the archive of sources into dist/package; TAG=v0.1.0 must be their version
	$(if $(TAG),test "$(TAG)" = "v$$($(BIN)/hatchling version)")
	rm -rf dist/package
	$(BIN)/hatchling build --directory dist/package
	$(BIN)/twine check --strict dist/package/*

try-package: ## install the wheel of dist/package into an empty environment, as a user would, and train for two rounds
	$(PYTHON) -m venv --clear .venv-empty
	.venv-empty/bin/python $(INSTALL) dist/package/*.whl
	cd .venv-empty && bin/fairbloom --version
	cd .venv-empty && bin/fairbloom run --clients 4 --rounds 2 --out run

publisher: ## install into .venv-publisher what signs and uploads a release; it sends nothing
	$(PYTHON) -m venv .venv-publisher
	.venv-publisher/bin/python $(INSTALL) --no-deps --require-hashes --requirement locks/publish.lock
	.venv-publisher/bin/python -m pip check

bench: setup ## measure simulated and deployed rounds against a plain loop and against Flower's own; takes an hour
	$(BIN)/python -m benchmarks.engines
	$(BIN)/python -m benchmarks.engines --ray --engines auto --workloads logistic mlp-step mlp-all
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.deployed

lock: setup ## write the lock files anew; UPGRADE=--upgrade takes the newest versions
	locks/renew.sh $(UPGRADE)

digests: ## write the digest that the registry has today for the base image; needs Docker and a network
	docker/digests.sh docker/Dockerfile

sbom: ## copy the lists of what is in the images, which must be built, to dist/
	mkdir -p dist
	for image in client server; do docker run --rm --network none --entrypoint cat fairbloom-$$image \
		/usr/share/sbom/fairbloom-$$image.cdx.json > dist/fairbloom-$$image.cdx.json || exit 1; done

clean: ## remove virtual environments, runs, caches and all that was built
	rm -rf $(VENV) .venv-latest .venv-empty .venv-publisher .venv-3.* runs dist docs/_build docs/methods docs/examples .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
