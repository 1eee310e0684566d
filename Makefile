# make report    install into .venv and write report.html for the bundled model
# make test      install into .venv, then ruff, pyright, import-linter and the default tests
# make bench     what things cost beside the obvious script, into docs/benchmarks.md (a quarter of an hour)
# make processors  the default tests under other instruction sets and numbers of threads (about an hour and a half)
# make test-all  also the slow tests and the mutations, each of which must turn a test red

PY ?= python3
BIN := .venv/bin
# uv does not read pip's configuration; empty where pip has none, which uv accepts.
export UV_FIND_LINKS ?= $(shell $(PY) -m pip config get global.find-links 2>/dev/null)
WORKERS ?= 2

.PHONY: report test lint unit processors test-all bench train clean

.venv/.ok: pyproject.toml constraints.txt
	$(PY) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e ".[dev]"
	touch $@

report: .venv/.ok
	$(BIN)/squashlens report --out report.html

lint: .venv/.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

unit: .venv/.ok
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not cuda" -q -rs

test: lint unit

processors: .venv/.ok
	$(BIN)/python -m tests.processors

test-all: lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not cuda" -q -rs
	$(BIN)/python -m tests.mutations

bench: .venv/.ok
	$(BIN)/python -m tests.benchmarks

train: .venv/.ok
	$(BIN)/python -m squashlens.zoo.train --out runs/tiny-gemma

clean:
	rm -rf .venv report.html .pytest_cache .ruff_cache .hypothesis
