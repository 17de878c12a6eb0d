# Every target sets up what it needs; `make serve` and `make test` are all a newcomer has to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install serve test lint fmt type arch check unit parity e2e fault fuzz load chaos-store image bench models clean

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard processors/fast/*.[ch])
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the server and the test tools into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -q -e '.[server,dev]' -c constraints.txt
	@touch $(STAMP)

install: $(STAMP)  ## make .venv with everything the server and the tests need

serve: install  ## start the service with the embedded demo model
	$(BIN)/mmprep serve

test: install  ## the whole suite but the slow and fuzz runs
	$(BIN)/python -m pytest

unit: install  ## the quick part
	$(BIN)/python -m pytest tests/unit tests/property

parity: install  ## against the plain Hugging Face call, family by family
	$(BIN)/python -m pytest tests/parity

e2e: install  ## over a real socket
	$(BIN)/python -m pytest tests/e2e tests/interop

fault: install  ## kills, stalls, full stores
	$(BIN)/python -m pytest tests/fault

fuzz: install  ## bounded fuzzing of decoders and of the HTTP edge
	$(BIN)/python -m pytest -m fuzz --timeout 1800 tests/fuzz

load: install  ## two hundred 12-megapixel pictures at once
	$(BIN)/python -m pytest -m slow --timeout 1800 -s -k load tests/fault

chaos-store: install  ## ten thousand requests with workers and consumers killed at random
	$(BIN)/python -m pytest -m slow --timeout 1800 -s tests/fault/test_arena_chaos.py tests/fault/test_service_chaos.py

image: install  ## the image's own commands in a clean folder, as another user
	$(BIN)/python -m pytest -m slow --timeout 1800 tests/unit/test_deploy_image.py

bench: install  ## every speed goal as a ratio, in one run
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.report

models: install  ## docs/models.md, from the installed transformers
	$(BIN)/python -m tests.helpers.model_zoo build/zoo
	$(BIN)/python -m processors.survey build/zoo --out docs/models.md

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
