# `make demo` and `make test` each set up everything they need, in .venv, from the pinned constraints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/ready
	$(BIN)/discoseg demo --out demo

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,bench]"
	$(BIN)/python bench/cut.py

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,export,web]"
	touch $@

clean:
	rm -rf $(VENV) demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
