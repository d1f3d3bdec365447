# Every target does its own set-up: a virtual environment in .venv, installed by pip (torch through constraints.txt).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.installed
# Runs a command where torch uses only instruction sets that work on this processor, and says so where that changes something.
WORKING := -m memfit.measure.instruction_sets

# Compiled files make every process that imports torch start seconds faster; `--no-compile` above leaves them to first use.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo readme docs page-assets browser postgres test types quick-tests gpu-torch test-gpu test-slow test-quiet bench check clean

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt src/memfit/version.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[torch,plot,dev]"
	touch $@

demo: $(STAMP)  ## measure a real training run and write a report to open
	$(BIN)/python $(WORKING) $(BIN)/python examples/demo.py

readme: $(STAMP)  ## run the commands that README.md and the examples show, and write their output there
	$(BIN)/python $(WORKING) $(BIN)/python examples/readme.py

docs: $(STAMP)  ## the documentation site in site/; fails on a broken link
	$(INSTALL) -r docs/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; to search in it: $(BIN)/python -m http.server --directory site"

page-assets:    ## bundle the chart libraries of the page anew (node and npm; versions in package.json)
	sh src/memfit/show/page/vendor/bundle.sh

browser:        ## chromium for the tests of the page, where apt-get can install it; they are skipped where not
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -q chromium </dev/null >/dev/null 2>&1; } || true

postgres:       ## PostgreSQL for the tests of its storage, where apt-get can install it; they are skipped where not
	@test -d /usr/lib/postgresql || { test "$$(id -u)" = 0 && DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -q postgresql </dev/null >/dev/null 2>&1; } || true

test: $(STAMP) postgres  ## all tests, lint and types (below ten minutes on two cores)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check --quiet src tests benchmarks examples
	@$(MAKE) --no-print-directory --jobs 2 types quick-tests

types: $(STAMP)
	$(BIN)/pyright --warnings

quick-tests: $(STAMP)
	$(BIN)/python $(WORKING) $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not quiet"

GPU_VENV := .venv-gpu
GPU_STAMP := $(GPU_VENV)/.installed

GPU_TORCH := $(GPU_VENV)/.torch-installed

$(GPU_TORCH):
	test -x $(GPU_VENV)/bin/python || $(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check torch==2.14.1
	touch $@

$(GPU_STAMP): $(GPU_TORCH) pyproject.toml
	$(GPU_VENV)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -e . pytest pytest-xdist pytest-timeout hypothesis
	touch $@

gpu-torch: $(GPU_TORCH)  ## only fetch that CUDA build

test-gpu: $(GPU_STAMP)  ## the phantom GPU on a CUDA build of torch (5 GB, no GPU needed)
	PYTHONPATH=. $(GPU_VENV)/bin/python $(WORKING) $(GPU_VENV)/bin/python -m pytest tests/phantom -n 2

test-slow: $(STAMP) browser  ## the tests that take longer; continuous integration runs them as well
	$(BIN)/python $(WORKING) $(BIN)/pytest -n 2 --dist worksteal -m slow

test-quiet: $(STAMP)  ## tests that a busy machine disturbs: the ledgers of ten real trainings
	$(BIN)/python $(WORKING) $(BIN)/pytest -m quiet

bench: $(STAMP) ## the benchmarks, with their peers installed beside
	$(INSTALL) -r benchmarks/overhead/requirements.txt -r benchmarks/plans/requirements.txt
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.accuracy.cpu
	$(BIN)/python -m benchmarks.speed.predict
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.study.listing
	$(BIN)/python -m benchmarks.study.figures
	$(BIN)/python -m benchmarks.study.overhead
	$(BIN)/python -m benchmarks.study.shim
	$(BIN)/python -m benchmarks.study.constraint_toy

check: $(STAMP) ## format and lint only
	$(BIN)/ruff check --fix src tests benchmarks examples
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/pyright

clean:          ## remove the virtual environment and caches
	rm -rf site $(VENV) $(GPU_VENV) .pytest_cache .ruff_cache .hypothesis build dist
