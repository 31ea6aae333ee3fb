# Everything that a developer runs. On a fresh machine with Python 3.11+, pip and make: `make demo` and `make test`.

PYTHON ?= python3
ARGS ?=
UV_VERSION := 0.13.8

VENV := .venv
NEWEST := .venv-newest
EXTRAS := xla,demo,test,check
EXTRAS_NEWEST := demo,test,check
# XLA's CPU device, the same on every machine; tests that need several devices set it up in processes of their own.
export PJRT_DEVICE ?= CPU
# XLA tests run by themselves, in one process: importing torch_xla takes seconds, and once its runtime lives in a process,
# forking that one is unsafe.
PYTEST := -m pytest -n 2 --dist loadgroup -m "not xla"

.DEFAULT_GOAL := help
.PHONY: help demo test test-newest soak check format stubs constraints clean
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS='extra arguments for the tool']"
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.stamp ## train on real digits with a crash and a resume (examples/train_digits.py)
	$(VENV)/bin/python examples/train_digits.py $(ARGS)

test: $(VENV)/.stamp ## all tests, on torch 2.9 + torch_xla 2.9
	$(VENV)/bin/python $(PYTEST) $(ARGS)
	$(VENV)/bin/python -m pytest -m xla $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS chose no XLA test

test-newest: $(NEWEST)/.stamp ## all tests but XLA's, on the newest torch
	$(NEWEST)/bin/python $(PYTEST) $(ARGS)

soak: $(VENV)/.stamp ## kill 210 processes at random moments, run the fault matrix, compare every item (minutes; JSON)
	$(VENV)/bin/python -m tests.soak.soak $(ARGS)

check: $(VENV)/.stamp ## formatting, lint, strict types, generated stub: changes nothing
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/generate_stubs.py --check

format: $(VENV)/.stamp ## format the code and fix what lint can fix
	$(VENV)/bin/ruff check --fix --exit-zero .
	$(VENV)/bin/ruff format .

stubs: $(VENV)/.stamp ## write torchpipe/functional_methods.pyi anew from the nodes
	$(VENV)/bin/python tools/generate_stubs.py

constraints: $(VENV)/.stamp ## pin the newest versions that fit, for both environments
	tools/pin.sh $(VENV)/bin/uv "$(EXTRAS)" "$(EXTRAS_NEWEST)"

clean: ## remove the environments and everything generated
	rm -rf $(VENV) $(NEWEST) build dist .demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.stamp: constraints.txt pyproject.toml tools/install.sh
	PYTHON=$(PYTHON) tools/install.sh $(VENV) constraints.txt "$(EXTRAS)" $(UV_VERSION)
	@touch $@

$(NEWEST)/.stamp: constraints-newest.txt pyproject.toml tools/install.sh
	PYTHON=$(PYTHON) tools/install.sh $(NEWEST) constraints-newest.txt "$(EXTRAS_NEWEST)" $(UV_VERSION)
	@touch $@
