# One verb for everything; people and CI call the same ones. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
SEED ?=
SEEDS ?= 200
WINE ?= wine
WINDOWS_TESTS := on_windows bundle capability cli client crash dataset dataset_fetch enrol install outbox exit_code \
  worker worker_health worker_state

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-failure test test-all explore check docs bench sim torture torture-inputs mutants engines windows wheel lock sbom screenshots record-sample clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## make .venv with everything for development

$(VENV)/.ready: pyproject.toml constraints.txt $(PY)
	@echo "Installing into $(VENV): the pinned versions of constraints.txt, 2.2 GB, with CUDA's PyTorch 6 GB (a few minutes the first time)"
	@$(PY) -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.trains $@

# What a receiver, a worker and trainers need, and nothing that tests need.
$(VENV)/.trains: pyproject.toml constraints.txt $(PY)
	@echo "Installing into $(VENV): the pinned versions of constraints.txt, 1.5 GB, with CUDA's PyTorch 5 GB (a few minutes the first time)"
	@$(PY) -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[receiver,worker,trainer]'
	@touch $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "python venv is missing; install it (Debian: apt-get install python3-venv) and repeat"; exit 2; }

demo: $(VENV)/.trains ## train every model of the demo's manifest on recorded telemetry, with two workers
	@$(PY) -m training.command demo

demo-failure: $(VENV)/.trains ## the same with a job that fails on purpose: see its error reach `cis490-jobs status`
	@$(PY) -m training.command demo --with-failure

# Three at once, on two cores too: many tests wait for other processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -q -n 3 --dist worksteal

test: setup ## some of every kind of test
	@$(PYTEST) -m 'not thorough' --hypothesis-profile=half

test-all: setup ## all tests (25 minutes)
	@$(PYTEST)

explore: setup ## all tests, their properties on examples that are drawn anew each time
	@$(PYTEST) --hypothesis-profile=explore

check: setup ## linters, formatter, strict types, known vulnerabilities
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) tools/supply_chain.py audit
	@cd tests/house && ../../$(PY) -c 'import house, pathlib; print("The longest modules (a report, no limit):", *house.longest(house.modules(pathlib.Path("../.."))), sep="\n")'

docs: setup ## the documentation as a web site with search, in build/docs/docs/index.html
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@$(PY) -m sphinx --builder html --quiet --fail-on-warning --conf-dir docs . build/docs
	@echo "Written: build/docs/docs/index.html"

bench: setup ## every benchmark, each beside a peer or a limit (minutes)
	@$(PY) -m bench

sim: setup ## the simulated fleet: SEED=88 replays one with its timeline, SEEDS=2000 runs many
	@$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

torture: setup ## the long runs (hours; RESUME=1 goes on, PART=kill runs one), recorded in docs/guarantees.md
	@s=0; $(PY) -m tests.torture --full --jobs 2 --out docs/guarantees.json $(if $(PART),--part $(PART)) $(if $(RESUME),--resume) || s=$$?; \
	  $(PY) -m tests.torture.page; exit $$s

torture-inputs: setup ## 100,000 made-up calls, and inputs to each parser up to 10,000,000 on record (hours; goes on)
	@$(PY) -m tests.api --calls 100000
	@for target in wire index unpack manifest renderer model; do \
	  $(PY) -m fuzz $$target --total 10000000 --record fuzz/record.json || exit 1; done

mutants: setup ## plant small bugs in the pure rules, see which tests notice (ONLY='training.fleet.scheduling.copies*': minutes)
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[mutants]'
	@$(PY) -m mutmut run --max-children 2 $(if $(ONLY),'$(ONLY)')
	@$(PY) -m mutmut results

engines: setup ## a real Dask, Ray and Slurm (apt-get install slurm-wlm), workers killed among it (minutes), recorded in docs/executors.md
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dask,ray,slurm]'
	@$(PY) -m tests.engines

windows: ## the worker's tests on Windows' own Python, under Wine 10 (minutes): WINDOWS_PYTHON=DIR/python.exe
	@test -n '$(WINDOWS_PYTHON)' || { \
	  echo "WINDOWS_PYTHON=DIR/python.exe is missing: the whole Python for Windows, as its NuGet package unpacks"; exit 2; }
	@$(WINE) '$(WINDOWS_PYTHON)' -m venv build/windows
	@$(WINE) build/windows/Scripts/python.exe -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[receiver,worker]' apsw hypothesis pytest pytest-timeout tree-sitter-powershell
	@$(WINE) build/windows/Scripts/python.exe -m pytest -q -p no:cacheprovider -o addopts= \
	  tests/house/test_streams.py $(foreach name,$(WINDOWS_TESTS),$(wildcard tests/*/test_fleet_$(name).py tests/fleet/*/test_fleet_$(name).py))

# A wheel of one commit has the same bytes each time: its files are as old as the commit.
wheel: $(PY) ## dist/: the wheel, the demo's sample and the pinned versions, to install without a clone
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@git archive --format=zip --output dist/cis490-telemetry-sample.zip HEAD examples/telemetry-sample
	@cp constraints.txt locks/receiver.txt locks/training-host.txt locks/watch.txt dist/ && ls -l dist

lock: setup ## the hash-pinned locks anew, after a change of pyproject.toml or constraints.txt
	@$(PY) tools/supply_chain.py lock

sbom: setup ## bills of materials (CycloneDX) of what a receiver and a training host install, into build/
	@$(PY) tools/supply_chain.py bill

screenshots: setup ## pictures of the dashboard into docs/images/ (Chromium)
	@$(PY) tools/screenshots.py

record-sample: setup ## record the telemetry sample of examples/ anew (40 minutes; Linux, as root)
	@$(PY) examples/record_sample.py --out examples/telemetry-sample

clean: ## remove what the demo and the tests made (not .venv)
	@rm -rf demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build
