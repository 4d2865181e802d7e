# Everything works on a machine that has Python 3.11 or newer and make: the first target that needs it makes .venv.
PYTHON ?= $(firstword $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info[:2] < (3, 11))' 2>/dev/null && echo $$p; done))
BIN := .venv/bin

.PHONY: install demo test check bench chaos

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "xmodal needs Python 3.11 or newer with venv (Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv: about 7 GB, of which torch is most; some minutes on a fast line."
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/bench-installed: .venv/installed
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --no-deps mosaicml-streaming
	@touch $@

demo: install
	$(BIN)/xmodal demo

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# make bench ONLY=engine; ANCHORS=DIR names a folder of public checkouts to compare with.
bench: .venv/bench-installed
	$(BIN)/python -m tests.benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(ANCHORS),--anchors $(ANCHORS))

# make chaos SCHEDULES=50: more kill schedules than make test runs.
SCHEDULES ?= 20
chaos: install
	$(BIN)/python -m tests.chaos.schedules $(SCHEDULES)
