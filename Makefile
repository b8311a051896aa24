# `make` alone lists what can be made. Every target sets up what it needs, once, in .venv.

PYTHON ?= python3
SEED   ?= 7
# Half as many again as there are processors: clusters under test wait for elections half of the time.
JOBS   ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) * 3 / 2 )))

BIN    := .venv/bin
READY  := .venv/.ready
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with the locked packages; then .venv/bin/quorate is the command

demo: $(READY) ## a cluster, Spark counting, a leader killed, worlds of faults; KEEP=1 leaves it running
	$(BIN)/quorate demo

test: $(READY) ## a sample of everything, in about 15 minutes on two cores
	$(PYTEST) -n $(JOBS) -o faulthandler_timeout=600 --durations=40

proof: $(READY) ## every count that was promised (long)
	$(PYTEST) -n $(JOBS) -m proof --hypothesis-profile=proof --durations=40

verify: lint ## format, lint, types and the fast tests; changes nothing
	$(PYTEST) -n $(JOBS) -q -m "not proof and not cluster" --ignore=tests/simulation --ignore=tests/packaging --ignore=tests/spark

lint: $(READY) ## format, lint and types only; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

fix: $(READY) ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

sim: $(READY) ## one simulated world, told line by line: make sim SEED=7
	$(BIN)/quorate sim raft --seed $(SEED) --trace

bench: $(READY) ## the figures, as ratios to this machine's limits
	$(BIN)/quorate bench wal
	$(BIN)/quorate bench core
	$(BIN)/quorate bench sim
	$(BIN)/quorate bench table
	$(BIN)/quorate bench cluster
	$(BIN)/quorate bench kafka
	$(BIN)/quorate bench spark

behaviours: $(READY) ## write docs/BEHAVIOURS.md from docs/behaviours.toml and the tests
	$(BIN)/python tools/behaviours.py

lock: ## choose dependency versions anew: requirements/*.lock
	@$(CHECK_PYTHON)
	$(PYTHON) tools/lock.py

clean: ## remove .venv, caches and whatever was built
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests tools -type d -name __pycache__ -prune -exec rm -rf {} +

define CHECK_PYTHON
command -v $(PYTHON) >/dev/null 2>&1 \
	|| { echo "setup: $(PYTHON) is not installed; Quorate needs Python 3.11 to 3.14" >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	|| { echo "setup: Quorate needs Python 3.11 to 3.14, and $(PYTHON) is" \
	"$$($(PYTHON) -V 2>&1); name another: make setup PYTHON=python3.12" >&2; exit 1; }
endef

$(READY): requirements/dev.lock requirements/local.lock pyproject.toml tools/setup.py
	@$(CHECK_PYTHON)
	@$(PYTHON) tools/setup.py

# An environment copied along with the directory still points to the old place: make it anew.
ifneq ($(shell cat $(READY) 2>/dev/null),$(shell pwd -P))
.PHONY: $(READY)
endif

.PHONY: help setup demo test proof verify lint fix sim bench behaviours lock clean
