# make demo   train on scikit-learn's digits and release a model in runs/demo/release
# make test   run the tests; test-slow runs the ones that take minutes
# make mutants   plant faults in copies of the code, one by one, and fail if the tests let one pass; goes on where it stopped
# make audit-deps   known vulnerabilities of what is installed (needs a network); what could not be audited is no pass
# make sbom   write sbom.cdx.json, a CycloneDX list of what is installed
# make hashes   write requirements-hashed.txt anew, from setup.cfg and constraints.txt
# make docs   build the documentation site in site/
# make lint   style, types, packaging, figures of the docs against their rows, faults against the code; rewrites nothing
#
# PYTHON     the interpreter that makes .venv:             make test PYTHON=python3.12
# PIP_ARGS   added to every pip install (wheel source):    make test PIP_ARGS="--find-links wheels"
# DEMO_ARGS  added to the training command of the demo:    make demo DEMO_ARGS="--target_epsilon 1"
# TEST_ARGS  added to pytest:                              make test TEST_ARGS="-k ledger"
# JOBS       test processes, each on one thread:           make test JOBS=8
#            (one more than two cores: a third of their time, tests wait); what Python compiled is kept for all of them
# MUTANT_ARGS  added to the run of faults:                 make mutants MUTANT_ARGS="--only noise"

PYTHON ?= python3
PIP_ARGS ?=
DEMO_ARGS ?=
TEST_ARGS ?=
JOBS ?= 3
MUTANT_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
SUPPLY := .venv/.supply
DOCS := .venv/.docs
LINTS := tests/test_figures.py tests/test_mutants.py
# Every flag that `accelerate launch` would otherwise warn about choosing itself, and as many threads as torch would
# take on its own: left alone, `accelerate launch` runs a process on one thread.
LAUNCH = $(BIN)/accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
	--num_cpu_threads_per_process $$($(BIN)/python -c 'import torch; print(torch.get_num_threads())')

.PHONY: demo test test-slow mutants lint docs audit-deps sbom hashes

demo: $(STAMP)
	@if [ -e runs/demo ]; then mv runs/demo "runs/demo.$$(date +%s)" && echo "An earlier runs/demo, with its ledger, is now $$(ls -d runs/demo.* | tail -1)."; fi
	$(LAUNCH) training/train_feta_pro.py --output_dir runs/demo $(DEMO_ARGS)

test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(LINTS:%=--ignore=%) $(TEST_ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow $(TEST_ARGS)

mutants: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANT_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(LINTS)
	@$(BIN)/python -c 'import configparser, setuptools; \
	cfg = configparser.ConfigParser(); cfg.read("setup.cfg"); \
	named = set(cfg["options"]["packages"].split()); \
	found = {"diffusers_dp.pipelines", "diffusers_dp.training", *setuptools.find_packages(include=["diffusers_dp", "diffusers_dp.*"])}; \
	raise SystemExit(f"setup.cfg: [options] packages and the folders differ in {sorted(named ^ found)}" if named != found else 0)'

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

audit-deps: $(SUPPLY)
	$(BIN)/python .ci/audit_deps.py

sbom: $(SUPPLY)
	$(BIN)/cyclonedx-py environment --output-reproducible --output-format JSON --output-file sbom.cdx.json $(BIN)/python
	@sed -i.tmp 's|"file://[^"]*"|"."|' sbom.cdx.json && rm sbom.cdx.json.tmp  # the path of this clone stays in the house

hashes: $(SUPPLY)
	$(BIN)/uv pip compile setup.cfg --extra app --extra features --extra lora --extra medical --constraints constraints.txt --universal --python-version 3.10 \
	  --generate-hashes --no-annotate --custom-compile-command "make hashes" --quiet --output-file requirements-hashed.txt

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install -e ".[docs]" -c constraints.txt $(PIP_ARGS)
	@touch $@

$(SUPPLY): $(STAMP)
	$(BIN)/python -m pip install -e ".[supply]" -c constraints.txt $(PIP_ARGS)
	@touch $@

$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "diffusers_dp needs Python 3.10 or newer, and \"$(PYTHON)\" is not one: choose another with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install "torch==2.13.0" -c constraints.txt $(PIP_ARGS)
	$(BIN)/python -m pip install -e ".[dev]" -c constraints.txt $(PIP_ARGS)
	@touch $@
