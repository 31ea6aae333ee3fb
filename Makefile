# Everything that a developer runs. On a fresh machine with Python 3.11+, pip and make: `make demo` and `make test`.

PYTHON ?= python3
ARGS ?=
# Marks of tests to choose, for `make test` and its like: MARKS='not any_torch'
export MARKS ?=
DAILY = not nightly$(if $(MARKS), and ($(MARKS)))
UV_VERSION := 0.13.8

VENV := .venv
NEWEST := .venv-newest
TRAINERS := .venv-trainers
DOCS := .venv-docs
NOTEBOOK := .venv-notebook
BENCH := .venv-bench
BENCH09 := .venv-bench09
PYTHONS ?= 3.12 3.13
EXAMPLES := examples/train_language_model.py examples/train_images.py examples/train_table.py examples/ray_decode.py
EXTRAS := xla,demo,test,check
EXTRAS_NEWEST := demo,test,check
EXTRAS_TRAINERS := test,trainers
EXTRAS_PYTHONS := xla,demo,test,check
# On a free-threaded Python (3.13t), for which many packages have no wheels: what does not need them.
EXTRAS_FREE_THREADED := test-threads
TESTS_FREE_THREADED := tests/data tests/device tests/test_two_threads.py tests/test_misuse.py tests/test_background.py \
	tests/test_staged.py tests/test_global_random.py
# XLA's CPU device, the same on every machine; tests that need several devices set it up in processes of their own.
export PJRT_DEVICE ?= CPU

.DEFAULT_GOAL := help
.PHONY: help demo examples test-quick test test-newest test-nightly test-pythons test-trainers test-browser test-notebook pairs soak bench audit bench-plot costs size core-alone core-alone-newest rings-newest check format stubs docs constraints clean
.DELETE_ON_ERROR:

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.12] [ARGS='extra arguments for the tool']"
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.stamp ## train on real digits with a crash and a resume (examples/train_digits.py)
	$(VENV)/bin/python examples/train_digits.py $(ARGS)

examples: $(VENV)/.stamp ## train on real data, be killed, go on exactly: each example in turn, under a minute each
	@for script in $(EXAMPLES); do echo "===== $$script ====="; $(VENV)/bin/python $$script $(ARGS) || exit 1; done

test-quick: $(VENV)/.stamp ## the least to run after a change: nodes, states, planning, a smoke of each law (two minutes)
	MARKS="quick" tools/run_tests.sh $(VENV) $(ARGS)

test: $(VENV)/.stamp ## all tests but the nightly ones, on torch 2.9 + torch_xla 2.9 (ten minutes)
	MARKS="$(DAILY)" tools/run_tests.sh $(VENV) $(ARGS)

test-newest: $(NEWEST)/.stamp ## the same but XLA's, on the newest torch
	MARKS="$(DAILY)" tools/run_tests.sh $(NEWEST) $(ARGS)

core-alone: $(VENV)/.stamp ## the core's tests, in a copy without the rings (torchpipe/rings.py)
	MARKS="$(DAILY)" tools/core_alone.sh $(VENV) $(ARGS)

core-alone-newest: $(NEWEST)/.stamp ## the same on the newest torch
	MARKS="$(DAILY)" tools/core_alone.sh $(NEWEST) $(ARGS)

rings-newest: $(NEWEST)/.stamp ## the rings' tests, on the newest torch
	MARKS="$(DAILY)" tools/run_tests.sh $(NEWEST) $$($(NEWEST)/bin/python -m tests.rings folders) $(ARGS)

test-nightly: $(VENV)/.stamp $(NEWEST)/.stamp ## everything, with fresh seeds: whole matrices, storms, soak, trainers, other Pythons (hours)
	@failed=; for part in "tests on torch 2.9" "tests on the newest torch" pairs soak test-trainers test-pythons examples; do \
		echo "===== $$part ====="; \
		case $$part in \
			"tests on torch 2.9") HYPOTHESIS_PROFILE=thorough MARKS= tools/run_tests.sh $(VENV);; \
			"tests on the newest torch") MARKS= tools/run_tests.sh $(NEWEST);; \
			*) $(MAKE) $$part;; \
		esac || failed="$$failed, $$part"; \
	done; \
	[ -z "$$failed" ] || { echo "failed$$failed"; exit 1; }

test-pythons: $(PYTHONS:%=.venv-py%/.stamp) ## all tests, on each newer Python (they must be on the PATH)
	@failed=; for python in $(PYTHONS); do \
		echo "===== Python $$python ====="; \
		case $$python in \
			*t) PYTHON_GIL=0 tools/run_tests.sh .venv-py$$python $(or $(ARGS),$(TESTS_FREE_THREADED));; \
			*) tools/run_tests.sh .venv-py$$python $(ARGS);; \
		esac || failed="$$failed $$python"; \
	done; \
	[ -z "$$failed" ] || { echo "failed on Python$$failed"; exit 1; }

test-trainers: $(TRAINERS)/.stamp ## train, kill and resume inside Lightning, Accelerate, transformers and others (minutes)
	@# By file, since importing a trainer takes long; the process that has no more files waits for the other one.
	$(TRAINERS)/bin/python -m pytest -n 2 --dist loadfile tests/trainers $(ARGS)

test-browser: $(VENV)/.stamp ## look at reports in headless Chromium, which must be on the PATH (apt-get install chromium)
	TORCHPIPE_TEST_BROWSER=1 $(VENV)/bin/python -m pytest tests/browser $(ARGS)

test-notebook: $(VENV)/.stamp $(NOTEBOOK)/.stamp ## watch loaders in a real Jupyter kernel
	TORCHPIPE_TEST_NOTEBOOK=1 PYTHONPATH=$(NOTEBOOK) $(VENV)/bin/python -m pytest tests/notebook $(ARGS)

pairs: $(VENV)/.stamp ## look for pairs of options, and of nodes, that are not exact, with fresh seeds (10 minutes; ARGS="--minutes 60")
	$(VENV)/bin/python -m tests.pairs.hunt $(ARGS)

soak: $(VENV)/.stamp ## kill 210 processes at random moments, run the fault matrix, compare every item (minutes; JSON)
	$(VENV)/bin/python -m tests.soak.soak $(ARGS)

bench: $(VENV)/.stamp $(BENCH)/.stamp $(BENCH09)/.stamp ## measure beside other loaders (30 to 45 minutes)
	$(BENCH)/bin/python benchmarks/run.py --rounds 3 --seconds 1 --minutes 11 --out benchmarks/results.json $(ARGS)
	$(BENCH)/bin/python benchmarks/scaling.py --out benchmarks/results.json
	$(BENCH)/bin/python benchmarks/ranks.py --out benchmarks/results.json

audit: $(BENCH)/.stamp ## cut off, kill and resume the same pipelines under different loaders: the table of benchmarks/README.md, Audits (minutes)
	HF_HUB_OFFLINE=1 $(BENCH)/bin/python -m benchmarks.audit $(ARGS)

bench-plot: $(BENCH)/.stamp ## draw benchmarks/results.svg and write the READMEs' tables from that file
	$(BENCH)/bin/python benchmarks/plot.py

costs: $(VENV)/.stamp ## measure what tests cost, by which `make test` chooses among those that cost much: tests/costs.txt (40 minutes)
	rm -rf .costs
	@# So many seconds for each function that all variants run but those that are nightly by path or mark.
	-TORCHPIPE_TEST_SECONDS=1000 TORCHPIPE_TEST_COSTS=.costs MARKS="$(DAILY)" tools/run_tests.sh $(VENV) -p tests.costs $(ARGS)
	$(VENV)/bin/python -m tests.costs .costs

size: ## print how large everything is beside tools/size.tsv, and lower there what fell
	$(PYTHON) tools/size.py

check: $(VENV)/.stamp ## formatting, lint, strict types, generated stub: changes nothing
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python tools/generate_stubs.py --check

format: $(VENV)/.stamp ## format the code and fix what lint can fix
	$(VENV)/bin/ruff check --fix --exit-zero .
	$(VENV)/bin/ruff format .

stubs: $(VENV)/.stamp ## write torchpipe/node/functional_methods.pyi anew from the nodes
	$(VENV)/bin/python tools/generate_stubs.py

docs: $(DOCS)/.stamp ## build the documentation site in site/, with a reference of every public name (under a minute)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict $(ARGS)
	@echo "open site/index.html"

constraints: $(VENV)/.stamp ## pin the newest versions that fit, for each environment
	tools/pin.sh $(VENV)/bin/uv "$(EXTRAS)" "$(EXTRAS_NEWEST)" "$(EXTRAS_TRAINERS)"

clean: ## remove the environments and everything generated
	rm -rf $(VENV) $(NEWEST) $(TRAINERS) $(DOCS) $(NOTEBOOK) .venv-py* $(BENCH) $(BENCH09) build dist site .bench .costs .demo
	rm -rf *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.stamp: constraints.txt pyproject.toml tools/install.sh Makefile
	PYTHON=$(PYTHON) tools/install.sh $(VENV) constraints.txt "$(EXTRAS)" $(UV_VERSION)
	@touch $@

$(NEWEST)/.stamp: constraints-newest.txt pyproject.toml tools/install.sh Makefile
	PYTHON=$(PYTHON) tools/install.sh $(NEWEST) constraints-newest.txt "$(EXTRAS_NEWEST)" $(UV_VERSION)
	@touch $@

$(TRAINERS)/.stamp: constraints-trainers.txt pyproject.toml tools/install.sh Makefile
	PYTHON=$(PYTHON) tools/install.sh $(TRAINERS) constraints-trainers.txt "$(EXTRAS_TRAINERS)" $(UV_VERSION)
	@touch $@

# No script: nothing but pinned wheels, of which none is of this project.
$(DOCS)/.stamp: constraints-docs.txt pyproject.toml Makefile
	[ -x $(DOCS)/bin/python ] || $(PYTHON) -m venv $(DOCS)
	[ -x $(DOCS)/bin/uv ] || $(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	VIRTUAL_ENV=$(DOCS) $(DOCS)/bin/uv pip install --quiet --compile-bytecode -c constraints-docs.txt --group docs
	@touch $@

# A folder of packages to be put before those of $(VENV): nothing of the project, nor torch.
$(NOTEBOOK)/.stamp: constraints-notebook.txt pyproject.toml $(VENV)/.stamp Makefile
	$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --target $(NOTEBOOK) -c constraints-notebook.txt --group notebook
	@touch $@

.venv-py%/.stamp: constraints.txt pyproject.toml tools/install.sh Makefile
	PYTHON=python$* tools/install.sh .venv-py$* constraints.txt "$(EXTRAS_PYTHONS)" $(UV_VERSION)
	@touch $@

.venv-py%t/.stamp: tools/constraints-free-threaded.txt pyproject.toml tools/install.sh Makefile
	PYTHON=python$*t tools/install.sh .venv-py$*t $< "$(EXTRAS_FREE_THREADED)" $(UV_VERSION)
	@touch $@

$(BENCH)/.stamp: benchmarks/requirements-peers.txt benchmarks/constraints-peers.txt tools/install_bench.sh Makefile
	PYTHON=$(PYTHON) tools/install_bench.sh $(BENCH) $(wordlist 1,2,$^) $(UV_VERSION)
	@touch $@

$(BENCH09)/.stamp: benchmarks/requirements-torchdata09.txt benchmarks/constraints-peers.txt tools/install_bench.sh Makefile
	PYTHON=$(PYTHON) tools/install_bench.sh $(BENCH09) $(wordlist 1,2,$^) $(UV_VERSION)
	@touch $@
