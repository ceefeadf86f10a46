# `make demo` and `make test` each set up everything they need, in .venv, from the pinned constraints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench cluster web clean

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

cluster: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,export,web,cluster]"
	$(BIN)/python -m pytest tests/test_ray.py

web: src/discoseg/web/static/vendor/niivue.umd.js

src/discoseg/web/static/vendor/niivue.umd.js: web/package.json web/package-lock.json
	cd web && npm ci --ignore-scripts --no-audit --no-fund
	mkdir -p $(@D)
	(cat web/niivue-licence.txt; cd web/node_modules; for file in */[Ll][Ii][Cc]* @*/*/[Ll][Ii][Cc]*; do \
	    printf '\n%s, a part of it\n\n' "$$file"; cat "$$file"; done) > $(@D)/LICENSES.txt
	cp web/node_modules/@niivue/niivue/dist/niivue.umd.js $@

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,export,web]"
	touch $@

clean:
	rm -rf $(VENV) demo build web/node_modules src/discoseg/web/static/vendor *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
