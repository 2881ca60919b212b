# Every target works from an empty clone: it creates .venv, installs, runs.
PYTHON ?= python3
BIN := .venv/bin
.PHONY: install dev quickstart test lint types unit bench docs clean

.venv/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch .venv/.installed $@

.venv/.bench: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@

install: .venv/.installed
dev: .venv/.dev

quickstart: .venv/.installed
	$(BIN)/kaffee quickstart -o quickstart

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: .venv/.dev
	$(BIN)/mypy

# Linear algebra on one thread: two workers on two cores with two threads each wait for one another.
unit: .venv/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

test: lint types unit

bench: .venv/.bench
	$(BIN)/python -m benchmarks.speed

.venv/.docs: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
	@touch $@

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "Open site/index.html"

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .jax_cache quickstart site
