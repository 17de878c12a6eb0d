# Every target sets up what it needs; `make serve` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install serve test lint fmt type arch check parity e2e fault fuzz bench docs clean

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the server and the test tools into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -e '.[server,dev]' -c constraints.txt
	@touch $(STAMP)

install: $(STAMP)  ## make .venv with everything the server and the tests need

serve: install  ## start the service with the embedded demo model
	$(BIN)/mmprep serve

test: install  ## the whole suite but the slow and fuzz runs
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

fmt: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

type: install
	$(BIN)/mypy

arch: install
	$(BIN)/lint-imports

check: lint type arch test

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
