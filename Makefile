# `make` lists the commands. Needs Python 3.11 or newer with pip and venv, gcc, g++ and make;
# everything else comes from requirements.lock into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
BUILD  := build/editable
STRICT := build/strict
CPP_FILES = $(shell find cpp include examples -name '*.[ch]' -o -name '*.[ch]pp')

.DEFAULT_GOAL := help
.PHONY: help venv torch build fast demo test lint format bench docs lock clean

help:  ## List these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Polymux needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The lock file lists every package, so pip resolves nothing.
$(VENV)/.locked: requirements.lock | $(VENV)/.created
	@echo "Installing the packages of requirements.lock into $(VENV) (about a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements.lock
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.locked
	@echo "Building and installing Polymux"
	@PATH="$(abspath $(BIN)):$$PATH" $(PY) -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --editable .
	@touch $@

venv: $(VENV)/.installed  ## Make .venv with everything needed to run, test and benchmark

# What the extra `train` asks for, with the versions that were tested; pip finds the build for this machine.
TORCH := $(shell sed -n 's|^train = \["\(.*\)"\]$$|\1|p' pyproject.toml)
$(VENV)/.torch: requirements-torch.lock | venv
	@echo "Installing PyTorch (about a minute)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --constraint requirements.lock \
	  --constraint requirements-torch.lock "$(TORCH)"
	@touch $@

torch: $(VENV)/.torch  ## Install PyTorch, which polymux.training and its tests need

build: venv  ## Rebuild the C++ core where it has changed
	@flock build/.lock $(BIN)/cmake --build $(BUILD)

demo: build  ## Run the demo: real models and a numerical application on all devices
	$(BIN)/polymux demo

test: build  ## Run the tests; choose with ARGS="tests/unit -k queue"
	$(PY) -m pytest $(ARGS)

fast: build  ## Compile the modules that simulate and decide, which makes simulations about three times faster
	@$(PY) tools/compile_pure.py build/fast

lint: build  ## Check style, types, imports and C++ warnings
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	@$(BIN)/cmake -S . -B $(STRICT) -G Ninja -DPOLYMUX_STRICT=ON -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DPython_EXECUTABLE=$(abspath $(PY)) -DPOLYMUX_IN_PLACE=OFF > build/strict.log 2>&1 || { cat build/strict.log; exit 1; }
	$(BIN)/cmake --build $(STRICT)

format: venv  ## Bring Python and C++ sources into the project's style
	$(BIN)/ruff check --select I --fix --quiet
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP_FILES)

bench: fast  ## Run all benchmarks; one of them with NAME=issue
	$(BIN)/polymux bench $(or $(NAME),all)

docs: build  ## Check the documentation's links and run the commands in it
	$(PY) -m pytest tests/docs $(ARGS)

lock: | $(VENV)/.created  ## Renew requirements.lock from pyproject.toml
	$(PY) tools/lock.py requirements.lock

clean:  ## Delete everything that the other commands made
	rm -rf $(VENV) build dist demo-output bench-output src/polymux/lib src/polymux/bin src/polymux/include
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src tests -name __pycache__ -prune -exec rm -rf {} +
	find src -name '*.so' -delete
