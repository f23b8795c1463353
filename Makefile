# Everything a contributor runs. `make setup` is implied by all the others and quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.millrace-setup

.PHONY: setup demo test thorough check torture bench mutants clean

setup: $(STAMP)

$(STAMP): pyproject.toml src/millrace_bench/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "millrace needs Python 3.11 or later, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install it (Debian, Ubuntu: apt install python3 python3-venv) or say make PYTHON=/path/to/python3.11"; exit 1; }
	@command -v java >/dev/null 2>&1 || { \
	  echo "millrace's demo and tests run Spark, which needs Java 17 or later, and there is no 'java'."; \
	  echo "Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)."; exit 1; }
	@java -version 2>&1 | $(PYTHON) -c 'import re, sys; t = sys.stdin.read(); v = re.search(r"version \"(\d+)", t); \
	  sys.exit(0 if v and int(v[1]) >= 17 else "millrace needs Java 17 or later; found: " + t.strip().splitlines()[0])'
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev,plot,tpch,spark]' -e src/millrace_bench; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,plot,tpch,spark]' -e src/millrace_bench; \
	fi
	@touch $@

demo: setup            ## a warehouse on Spark takes in orders: watch it, have it checked, compare it
	@$(BIN)/millrace demo

check: setup           ## style, types, layers: everything that does not run the code
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check            ## check, then tests, docstrings and examples
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not thorough and not torture'

thorough: setup        ## the tests that take longer, and every combination of types, algorithms and kinds of join
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'thorough and not torture'

torture: setup         ## long crash campaigns: queries killed over and over, every row checked
	$(BIN)/python -m pytest -m torture tests/spark tests/cli tests/millrace_bench/test_warehouse.py
	MILLRACE_EXAMPLES=10 $(BIN)/python -m pytest -n 2 tests/semistream/test_conformance.py

bench: setup           ## the papers' experiments in small, with a report; docs/how-to/run-the-experiments.md says how to run them large
	$(BIN)/millrace bench run --size small --fresh

COUNT ?= 200
SEED  ?= 0
mutants: setup         ## 200 small faults put into copies of the source, to see which of them no test finds; takes hours
	@test -f .mutants/recording.json || $(BIN)/python -m tools.mutants record --thorough
	$(BIN)/python -m tools.mutants run --count $(COUNT) --seed $(SEED)
	$(BIN)/python -m tools.mutants run --count $(COUNT) --seed $(SEED) --thorough

clean:
	rm -rf $(VENV) bench-data demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutants
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
