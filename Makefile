# `make demo` runs the service with simulated users, `make test` runs all tests. Both start with `make setup`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Extras to install; `make setup EXTRA=cuda` or `EXTRA=macos` resolves versions instead of taking the CPU lock.
EXTRA ?= cpu
# Further arguments of `make demo` and `make test`, e.g. make demo ARGS=--quick
ARGS ?=
# Only asked when the wheel of torch's CPU build is found nowhere else.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
STAMP := $(VENV)/.setup-$(EXTRA)-$(shell cat requirements.lock pyproject.toml 2>/dev/null | sha256sum | cut -c1-16)

.PHONY: help setup demo test check format clean

help: ## Show this help
	grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1|\2/' | column -t -s '|'

setup: $(STAMP) ## Create .venv, install the pinned packages, prepare the default model (safe to run again)
	$(BIN)/python -m online_rl.service.base_model

$(STAMP): requirements.lock pyproject.toml
	python=""
	for candidate in $${PYTHON:-} python3 python3.13 python3.12 python3.11; do
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$candidate"; break; fi
	done
	if [ -z "$$python" ]; then
	  echo "error: no Python 3.11 or newer found (python3 is $$(python3 --version 2>&1 || true))." >&2
	  echo "       Install one (Debian, Ubuntu: apt install python3 python3-venv) or set PYTHON=/path/to/python3." >&2
	  exit 1
	fi
	if [ ! -x $(BIN)/pip ]; then
	  echo "setup 1/3: creating $(VENV) with $$("$$python" --version)"
	  "$$python" -m venv --clear $(VENV) || {
	    echo "error: python cannot create a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	else
	  echo "setup 1/3: $(VENV) is there"
	fi
	export PIP_DISABLE_PIP_VERSION_CHECK=1
	case "$(EXTRA)" in
	cpu)
	  echo "setup 2/3: installing $$(grep -c == requirements.lock) pinned packages (about 1 GB to download the first time)"
	  torch=$$(grep '^torch==' requirements.lock)
	  $(BIN)/pip install --no-deps "$$torch" 2>/dev/null || {
	    echo "torch's CPU build is not in the configured indexes; taking it from the PyTorch index"
	    $(BIN)/pip install --no-deps --retries 2 --extra-index-url $(TORCH_INDEX) "$$torch"
	  }
	  $(BIN)/pip install --no-deps --no-compile -r requirements.lock
	  # In parallel, where pip would compile one file after the other. A service starts a dozen processes, and where
	  # bytecode may not be written (PYTHONDONTWRITEBYTECODE, a read-only image) each of them would compile what it imports.
	  echo "setup 2/3: compiling the packages to bytecode"
	  # Some packages carry files that are templates or of another Python; those are left as they are.
	  $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > $(VENV)/compile.log || true
	  # One that an earlier build left in the checkout would hide the entry points of this one.
	  rm -rf ./*.egg-info
	  $(BIN)/pip install --no-deps --no-build-isolation -q -e .
	  ;;
	cuda|macos)
	  echo "setup 2/3: resolving and installing the extras $(EXTRA) and dev"
	  $(BIN)/pip install -e '.[$(EXTRA),dev]'
	  ;;
	*) echo "error: EXTRA is cpu, cuda or macos, not $(EXTRA)" >&2; exit 1 ;;
	esac
	rm -f $(VENV)/.setup-*
	touch $@
	echo "setup 3/3: preparing the default model"

demo: setup ## Run the service with simulated users who change their taste (ARGS=--quick for the short one)
	$(BIN)/online-rl demo $(ARGS)

# What starts an engine, a service or a browser takes the machine for itself; the rest shares the cores.
ALONE := engine or service or browser

test: setup ## Run all tests, or those that ARGS names
ifeq ($(strip $(ARGS)),)
	status=0
	$(BIN)/python -m pytest -q --durations=25 -n logical -m "not ($(ALONE))" --must-pass postgres,kcat || status=1
	$(BIN)/python -m pytest -q --durations=25 -m "$(ALONE)" --must-pass engine,service,browser || status=1
	exit $$status
else
	$(BIN)/python -m pytest -q --durations=25 $(ARGS)
endif

check: setup ## Lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	bash -n .ci/run

format: setup ## Format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what setup made (.venv, prepared models, caches); the service's data stays
	rm -rf $(VENV) .online_rl/models .pytest_cache .ruff_cache .hypothesis .import_linter_cache ./*.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
