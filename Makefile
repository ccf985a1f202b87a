# Two commands do everything on a fresh machine with Python >= 3.11 and git:
#   make perf    environment, install, the main job; ends with the result table
#   make test    environment, install, all tests
# And the studies of the model lab, in less than ten minutes: make studies
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL ?= small
# What does not fit into so many seconds is skipped, with what it would need.
SECONDS ?= 155

.PHONY: perf predict studies kernels test correctness check format clean

perf: $(INSTALLED)
	$(BIN)/pytest -m perf --model=$(MODEL) --perf-total-budget=$(SECONDS) --ignore=tests/perf/test_kernels_compiled.py --ignore=tests/perf/studies

# What the models need on a GPU that is not here, against the saved predictions; nothing is run.
predict: $(INSTALLED)
	$(BIN)/pytest -m perf --perf-predict --model=small,2.7B tests/perf/test_transformer.py

# What each optimisation is worth here: precision, compilation, memory, every switch of the lab's model.
studies: $(INSTALLED)
	$(BIN)/pytest -m perf --model=$(MODEL) tests/perf/studies

# Every Triton kernel compiled for every GPU architecture; without a GPU, minutes the first time and seconds after.
kernels: $(INSTALLED)
	$(BIN)/perflab kernels

test: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal tests/harness tests/plugin tests/correctness

correctness: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal -m correctness

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installs again only when what is to be installed has changed.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "perflab needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .perflab
