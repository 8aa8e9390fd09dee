# Two commands do everything: `make demo` and `make test`. Each makes .venv if it is missing and installs into it, once.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := demo

.venv/.run-installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "otherminds needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

.venv/.test-installed: .venv/.run-installed requirements-test.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-test.lock
	@touch $@

demo: .venv/.run-installed
	$(BIN)/otherminds demo

test: .venv/.test-installed
	$(BIN)/python -m pytest -n auto --dist loadgroup

check: .venv/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: .venv/.run-installed

.PHONY: demo test check install
