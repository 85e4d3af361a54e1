# make demo   sets everything up and runs the quickstart on a local cluster
# make test   sets everything up and passes the tests; make test-all: each of them over its whole matrix
# make check  the fast inner loop; make lab, make bench: see README.md

PYTHON ?= python3
BIN := .venv/bin
# Jupyter refuses to run as root without --allow-root; in a container root is often the only user.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# Runs layers of the suite and prints their times beside their budgets.
LAYERS := $(BIN)/python scripts/run_layer.py
# Byte code is kept, so that each of the many processes of the tests starts without compiling the project.
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all check check-types check-widget check-labextension check-doctests lab bench format lock clean chromium colab gpu

demo: .venv/demo.stamp
	$(BIN)/python scripts/demo.py

SETUP := .venv/test.stamp widget/node_modules/.package-lock.json labextension/node_modules/.package-lock.json

# Each behaviour once. test-all: over its whole matrix of strategies, transports and faults, too.
test: $(SETUP) chromium colab
	$(LAYERS) checks fast engines browser

test-all: $(SETUP) chromium colab
	$(LAYERS) --all checks fast engines browser

check: $(SETUP)
	$(LAYERS) checks fast

check-types:
	$(BIN)/ruff format --check nbdist tests bench scripts
	$(BIN)/ruff check nbdist tests bench scripts
	$(BIN)/mypy

check-widget check-labextension: check-%:
	cd $* && npm run --silent check && npm test --silent

check-doctests:
	$(BIN)/python -m pytest -q nbdist --doctest-modules

lab: .venv/demo.stamp
	$(BIN)/jupyter lab $(AS_ROOT) --KernelManager.transport_encryption=auto notebooks/01_quickstart.ipynb

bench: .venv/bench.stamp
	$(BIN)/python -m bench all

format: .venv/test.stamp
	$(BIN)/ruff format nbdist tests bench scripts
	$(BIN)/ruff check --fix nbdist tests bench scripts

# Pins the versions of all Python packages that the extras demo and test need today.
lock:
	$(PYTHON) scripts/lock.py

chromium: .venv/test.stamp
	$(BIN)/python scripts/programs.py chromium ip sshd slurmctld slurmd qsub

# Another environment, with the versions of Google Colab, in which tests run notebooks.
colab: .venv/test.stamp
	$(BIN)/python scripts/colab_environment.py

# On a machine with a GPU: installs, tests, checks and measures, and writes artifacts/gpu-report.txt.
# EXTRA=gpu12 for drivers of CUDA 12.
EXTRA := gpu
gpu: .venv/gpu.stamp
	$(BIN)/python scripts/gpu_check.py

clean:
	rm -rf .venv .venv-colab widget/node_modules labextension/node_modules labextension/lib labextension/built
	rm -rf nbdist/ui/static artifacts dist

# One stamp per set of extras: a stamp is newer than what it was made from, or it is made again.

PROJECT := pyproject.toml constraints.txt $(wildcard */package.json */package-lock.json) jupyter-config/nbdist.json
PAGES := $(shell find widget/src labextension/src labextension/style labextension/schema -type f)

.venv/pip.stamp:
	$(PYTHON) scripts/requirements.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	touch $@

.venv/demo.stamp: .venv/pip.stamp $(PROJECT) $(PAGES)
	rm -rf nbdist/ui/static/live.js labextension/built
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

.venv/test.stamp: .venv/demo.stamp
	$(BIN)/python scripts/programs.py g++
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

.venv/gpu.stamp: .venv/test.stamp
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(EXTRA),test]"
	touch $@

.venv/bench.stamp: .venv/demo.stamp
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	touch $@

%/node_modules/.package-lock.json: %/package.json %/package-lock.json
	cd $* && npm ci --silent --no-audit --no-fund
	touch $@
