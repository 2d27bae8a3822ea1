# Two commands are enough: `make demo` and `make test`. Each sets up its own environment.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := test

.venv: pyproject.toml uv.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/uv sync --quiet --frozen --inexact --all-extras
	touch .venv

.PHONY: demo test check format bench torture test-claude test-codex test-gemini clean

demo: .venv
	$(BIN)/backtrail demo

test: .venv check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

torture: .venv
	$(BIN)/python -m pytest -m torture -n 0 -rs --timeout 1800

# The real `claude`, which comes in a wheel of 90 MB, with a model on loopback.
test-claude: .venv .claude-venv
	BACKTRAIL_TEST_CLAUDE=1 $(BIN)/python -m pytest -n 0 -rs tests/claude tests/exchange/test_native_claude.py

.claude-venv: .venv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .claude-venv
	$(BIN)/uv pip install --quiet --python .claude-venv/bin/python claude-agent-sdk==0.2.182

# The real `codex` and `gemini`, from npm, each with a model on loopback.
test-codex: .venv .codex-cli/node_modules/.bin/codex
	BACKTRAIL_TEST_CODEX=1 $(BIN)/python -m pytest -n 0 -rs tests/codex

test-gemini: .venv .gemini-cli/node_modules/.bin/gemini
	BACKTRAIL_TEST_GEMINI=1 $(BIN)/python -m pytest -n 0 -rs tests/gemini

.codex-cli/node_modules/.bin/codex:
	npm install --silent --no-audit --no-fund --prefix .codex-cli @openai/codex@0.166.0

.gemini-cli/node_modules/.bin/gemini:
	npm install --silent --no-audit --no-fund --prefix .gemini-cli @google/gemini-cli@0.61.0

bench: .venv
	$(BIN)/python -m bench

clean:
	rm -rf .venv .claude-venv .codex-cli .gemini-cli .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
