# `make demo` is all a newcomer needs; every target sets up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup demo test check prove wheel clean

help:
	@echo "make setup   .venv with renshu in it; then: . .venv/bin/activate"
	@echo "make demo    train the embedded agent and open its report (minutes, two CPU cores)"
	@echo "make test    all tests (minutes)"
	@echo "make check   style, types, folder order"
	@echo "make prove   the numbers that take longer: recipes over three seeds, divergence of the engine, kills"
	@echo "make wheel   wheel and sdist in dist/"
	@echo "make clean   remove .venv and caches"

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/renshu demo

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

prove: setup
	$(BIN)/python bench/seeds.py flights --seeds 0 1 2
	$(BIN)/python bench/seeds.py repairs --seeds 0 1 2
	$(BIN)/python bench/methods.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/pair_step.py
	$(BIN)/python bench/engine_divergence.py
	$(BIN)/python bench/kill_resume.py --kills 20
	$(BIN)/python bench/proxy_agent.py

wheel: setup
	$(BIN)/hatchling build -d dist

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
