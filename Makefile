# `make demo` and `make test` each set up everything they need, in .venv, from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench cluster fuzz lock audit web clean

demo: $(VENV)/ready
	$(BIN)/discoseg demo --out demo

test: lint  # files in their order: the longest test, of the demo, comes first and not last
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,bench]"
	$(BIN)/python bench/cut.py

cluster: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,export,web,cluster]"
	$(BIN)/python -m pytest tests/test_ray.py

fuzz: $(VENV)/ready
	$(BIN)/python bench/fuzz.py

web: src/discoseg/web/static/vendor/niivue.umd.js

src/discoseg/web/static/vendor/niivue.umd.js: web/package.json web/package-lock.json
	cd web && npm ci --ignore-scripts --no-audit --no-fund
	mkdir -p $(@D)
	(cat web/niivue-licence.txt; cd web/node_modules; for file in */[Ll][Ii][Cc]* @*/*/[Ll][Ii][Cc]*; do \
	    printf '\n%s, a part of it\n\n' "$$file"; cat "$$file"; done) > $(@D)/LICENSES.txt
	cp web/node_modules/@niivue/niivue/dist/niivue.umd.js $@

# No file but those whose hashes are in the lock. What torch's build for CUDA needs beyond it is pinned by torch itself.
# A build of torch in a folder that pip looks into (PIP_FIND_LINKS) comes before the index's.
$(VENV)/ready: pyproject.toml requirements.lock torch.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --no-index -r torch.lock 2>/dev/null || \
	    $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r torch.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check >/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip check
	touch $@

lock:  # after a change of constraints.txt or of the dependencies in pyproject.toml
	$(BIN)/python tools/lock.py

audit: $(VENV)/ready  # needs the package index
	$(BIN)/python tools/audit.py

clean:
	rm -rf $(VENV) demo build web/node_modules src/discoseg/web/static/vendor *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
