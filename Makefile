# make up      set up and run Headrace on this machine
# make test    every test          make test-deep   the same with larger numbers
# make check   style, types, layers, structure, and that what is generated is current
# make bench   Headrace and its peers, side by side
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup up test test-deep check bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Headrace needs Python 3.11 to 3.13")'
	@echo 'Setting up $(VENV): this takes a minute or two, once.'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

up: setup
	$(BIN)/headrace up

test: setup
	$(BIN)/python tools/run_tests.py

test-deep: setup
	HYPOTHESIS_PROFILE=deep $(BIN)/python tools/run_tests.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/structure.py
	$(BIN)/python tools/blocking_client.py --check
	$(BIN)/python tools/operators.py --check
	$(BIN)/python tools/route_tables.py --check

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
