# Two commands are enough: `make demo` and `make test`. Each sets up its own environment.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := test

.venv: pyproject.toml uv.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
	$(BIN)/uv sync --quiet --frozen --inexact $(EXTRAS)
	touch .venv

# Adapters need their frameworks only where they are tested: `make test-frameworks`.
EXTRAS := $(foreach extra,anthropic openai otel postgres s3 web,--extra $(extra))
AGENT_FRAMEWORKS := agent_framework claude_sdk google_adk langgraph openai_agents pydantic_ai strands

.PHONY: demo test test-fast test-frameworks test-pythons test-postgres coverage check format bench torture test-ui test-claude test-codex test-gemini clean

demo: .venv
	$(BIN)/backtrail demo

test: .venv check
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Pure functions and the contracts of stores on this machine: what to run after every change.
FAST := tests/test_conventions.py tests/test_errors.py tests/test_maps.py tests/test_public_paths.py \
	tests/test_events.py tests/test_history.py tests/test_views.py tests/test_types.py \
	tests/formats/test_messages.py tests/formats/test_repair.py tests/stores/test_contract.py \
	tests/files/test_names.py tests/files/test_trees.py tests/files/test_textdiff.py

test-fast: .venv
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(FAST) -k "not Postgres"

# Every supported Python that uv finds (pyenv's too) or can fetch; those it has not are named.
PYTHONS ?= 3.11 3.12 3.13 3.14
PYTHON_TESTS ?= tests

test-pythons: .venv
	@PATH="$$PATH:$$(echo $(HOME)/.pyenv/versions/3.*/bin | tr ' ' ':')"; \
	ran= absent= failed=; for version in $(PYTHONS); do \
	  if UV_PROJECT_ENVIRONMENT=.pythons/$$version $(BIN)/uv sync --quiet --frozen $(EXTRAS) --python $$version; then \
	    if .pythons/$$version/bin/python -m pytest -q -n 2 --dist worksteal $(PYTHON_TESTS); \
	    then ran="$$ran $$version"; else failed="$$failed $$version"; fi; \
	  else absent="$$absent $$version"; fi; \
	done; echo "passed:$${ran:- none}; failed:$${failed:- none}; not there:$${absent:- none}"; \
	test -z "$$failed" && test -n "$$ran"

# Debian's PostgreSQL (apt: postgresql pgbouncer), direct and through pgbouncer with a pool of two.
PG_BIN ?= $(lastword $(sort $(wildcard /usr/lib/postgresql/*/bin)))
PG_TESTS := tests/stores/test_contract.py tests/stores/test_model.py $(wildcard tests/stores/test_postgres_*.py) \
	tests/files/test_shared_contents.py tests/test_session.py tests/test_rewind.py tests/test_fork.py \
	tests/test_opening.py tests/test_follow.py
# These name a database of SQLite, and get one of PostgreSQL.
PG_SUITES := $(addprefix tests/files/test_,blame.py calls.py capture.py cleaning.py left_as_it_is.py lines.py \
	materializing.py moved.py moved_out.py recorded_once.py refused.py rewinding.py rules_in_force.py \
	subtracting.py turn_out.py unseen.py) $(addprefix tests/test_,own_turns.py previews.py uncaptured.py)

test-postgres: .venv
	test -x "$(PG_BIN)/postgres" || { echo "no PostgreSQL: apt install postgresql pgbouncer" >&2; exit 1; }
	BACKTRAIL_TEST_PG_BIN=$(PG_BIN) $(BIN)/python -m pytest -q -n 2 $(PG_TESTS) -k "ostgres or Cached"
	BACKTRAIL_TEST_PG_BIN=$(PG_BIN) BACKTRAIL_TEST_PGBOUNCER=$${PGBOUNCER:-pgbouncer} \
	  $(BIN)/python -m pytest -q -n 2 $(PG_TESTS) -k "(ostgres or Cached) and not test_postgres"
	BACKTRAIL_TEST_PG_BIN=$(PG_BIN) BACKTRAIL_TEST_STORE=postgresql $(BIN)/python -m pytest -q -n 2 $(PG_SUITES)
	BACKTRAIL_TEST_PG_BIN=$(PG_BIN) BACKTRAIL_TEST_STORE=postgresql \
	  BACKTRAIL_TEST_PGBOUNCER=$${PGBOUNCER:-pgbouncer} $(BIN)/python -m pytest -q -n 2 $(PG_SUITES)

# Lines and branches, of this process and of those that the tests start.
coverage: .venv
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 0 $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

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
	BACKTRAIL_TEST_CLAUDE=1 $(BIN)/python -m pytest -n 0 -rs tests/claude

.claude-venv: | .venv
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

# Adapters for agent frameworks, each in an environment of its own, with the framework's own tests
# of stores and its real runner.
FRAMEWORKS ?= $(AGENT_FRAMEWORKS)
FRAMEWORK_ENV = UV_PROJECT_ENVIRONMENT=.frameworks/$$name

test-frameworks: .venv
	@failed=; for name in $(FRAMEWORKS); do echo "== $$name"; \
	  $(FRAMEWORK_ENV) $(BIN)/uv sync --quiet --frozen --no-default-groups --extra postgres \
	    --extra $$name --group frameworks --group framework-$$name && \
	  .frameworks/$$name/bin/python -m mypy --cache-dir .frameworks/$$name/mypy \
	    src/backtrail/adapters/$$name* && \
	  BACKTRAIL_TEST_FRAMEWORK=$$name .frameworks/$$name/bin/python -m pytest -q -n 2 \
	    tests/frameworks/$$name $(FRAMEWORK_TESTS) || failed="$$failed $$name"; \
	done; BACKTRAIL_TEST_FRAMEWORK=all $(BIN)/python -m pytest -q tests/frameworks/test_one_store.py \
	  || failed="$$failed one-store"; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# The viewer in a real browser, with the checker of accessibility from npm; torture, too.
test-ui: .venv .ui-node/node_modules/axe-core/axe.min.js
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs -m "torture or not torture" tests/ui tests/cli/test_ui.py

.ui-node/node_modules/axe-core/axe.min.js:
	npm install --silent --no-audit --no-fund --prefix .ui-node axe-core@4.14.0

bench: .venv
	$(BIN)/python -m bench

clean:
	rm -rf .venv .pythons .claude-venv .codex-cli .gemini-cli .ui-node .frameworks .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build dist
