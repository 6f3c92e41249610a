# Two commands for people:
#
#   make demo    a private PostgreSQL, some documents, some questions
#   make test    everything that CI runs
#
# PYTHON (3.11 or newer) makes the environment .venv when there is none.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input

# sentence-transformers asks for torch, and the torch that pip finds by itself may be a build for GPUs of several
# gigabytes. So torch is installed first, alone, and only if it brings no GPU packages. Where pip offers no CPU build,
# say where one is, or that you want the large one:
#   make demo PIP_TORCH_ARGS="--index-url INDEX_OF_CPU_WHEELS"
#   make demo TORCH_GPU=yes
TORCH ?= torch==2.13.0
PIP_TORCH_ARGS ?=
TORCH_GPU ?= no

.DELETE_ON_ERROR:
.PHONY: demo test venv

demo: .venv/installed-all
	$(BIN)/cayu-pg demo

test: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest

# --- what those two need; the stamp files say what is installed, so that a second run is quick

venv: .venv/installed-dev

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/installed-torch: | .venv/bin/python
	$(PIP) install --dry-run --report .venv/torch.json $(PIP_TORCH_ARGS) '$(TORCH)'
	@if grep -q '"name": "nvidia-' .venv/torch.json && [ '$(TORCH_GPU)' != yes ]; then \
	  echo 'pip would install a GPU build of torch, several gigabytes: see the top of the Makefile' >&2; exit 1; fi
	$(PIP) install $(PIP_TORCH_ARGS) '$(TORCH)'
	touch $@

# The development tools include everything that the demo needs.
.venv/installed-dev: pyproject.toml .venv/installed-torch
	$(PIP) install --editable '.[dev]'
	touch $@ .venv/installed-all

.venv/installed-all: pyproject.toml .venv/installed-torch
	$(PIP) install --editable '.[all]'
	touch $@
