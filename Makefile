# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo serve test lint types check bench attack clean

help: ## Show what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(VENV)/.installed ## Prepare .venv alone

# torch comes first and through the constraint: a free choice would bring gigabytes of GPU packages along.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,bench]'
	@touch $@

demo: setup ## Run the main job end to end on a synthetic hospital
	$(BIN)/python -m patients_like_me.demo

serve: setup ## Serve the run of the demo on this machine: open the printed address, stop with Ctrl-C
	@test -f demo/runs/vem/run.json || { echo "run 'make demo' first: it trains the run that is served"; exit 1; }
	$(BIN)/plm serve demo/runs/vem --cohort demo/cohort

# The types are checked beside the tests: both together take less time than one after the other.
test: setup lint ## Run all checks
	@$(MAKE) --no-print-directory -j2 types check

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Two workers of one thread each: more threads than cores would wait for each other. tests/conftest.py puts the longest
# modules first; xdist would begin with those of most tests.
check: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

bench: setup ## Run every benchmark at full size
	@set -e; for benchmark in benchmarks/[a-z]*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark; done; \
	for form in meds omop fhir; do echo "== benchmarks/ingest.py --form $$form"; $(BIN)/python benchmarks/ingest.py --form $$form; done

MINUTES ?= 60
attack: setup ## Draw tables, settings, kills, damage, leaks and injections for MINUTES=60, and count what goes wrong
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m attack --minutes $(MINUTES)

clean: ## Remove the virtual environment and everything generated
	rm -rf $(VENV) demo .mypy_cache .pytest_cache .ruff_cache
