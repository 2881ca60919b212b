# Every target works from an empty clone: it creates .venv, installs, runs.
PYTHON ?= python3
BIN := .venv/bin
.PHONY: install dev quickstart test lint types unit bench docs dist install-check test-lowest test-newest clean

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

# Linear algebra on one thread: two workers on two cores with two threads each wait for one another. Files in their
# order, which ends with doctests: short ones, so that no worker is left with a long file.
unit: .venv/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: lint types unit

bench: .venv/.bench
	$(BIN)/python -m benchmarks.speed

.venv/.docs: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
	@touch $@

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "Open site/index.html"

.venv/.release: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,release]'
	@touch $@

# Releases: CONTRIBUTING.md says in which order.
dist: .venv/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -q tests/test_release.py

# README's commands from the wheel, without the repository, on every Python of this machine; FULL=--full does not shorten.
install-check: dist
	$(BIN)/python .ci/install_check.py dist/*.whl $(FULL)

# Tests that touch every dependency, each in a few seconds; TESTS=tests runs all of them.
TESTS ?= tests/test_public_api.py tests/checkpoint tests/data/test_frames.py tests/filtering/test_recursion.py \
	tests/inference/test_online.py tests/inference/test_stablehlo.py tests/report/test_figures.py tests/report/test_page.py \
	tests/training/test_gaussian_process.py tests/training/test_optimiser.py tests/foundation/test_incontext.py \
	tests/adapters tests/test_tables.py tests/cli/test_cli_about.py

# The lowest versions that pyproject.toml allows, of direct dependencies; and the newest there are. What old packages use
# of newer ones beneath them may be deprecated there.
test-lowest test-newest: .venv/.release
	rm -rf .venv/$@
	$(BIN)/uv venv --quiet --python $(PYTHON) .venv/$@
	$(BIN)/uv pip compile --quiet --extra dev --resolution $(if $(findstring lowest,$@),lowest-direct,highest) pyproject.toml -o .venv/$@/versions.txt
	$(BIN)/uv pip install --quiet --python .venv/$@/bin/python -r .venv/$@/versions.txt
	JAX_COMPILATION_CACHE_DIR=.venv/$@/jax .venv/$@/bin/python -m pytest -q $(if $(findstring lowest,$@),-W ignore::DeprecationWarning) $(TESTS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .jax_cache quickstart site dist
