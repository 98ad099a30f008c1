# The same few verbs for people and for CI. Each does all its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Of the modules of a large environment few are imported: these are compiled then, which is quicker than all of them now.
# It isn't quiet: some hundred megabytes take minutes, and who waits wants to see that something happens.
INSTALL := -m pip install --disable-pip-version-check --no-compile
PIP := $(BIN)/python $(INSTALL) --constraint constraints.txt
# Python 3.11 brings a pip that takes three times as long. Where no newer one is offered, the old one does.
NEW_PIP := -m pip install --disable-pip-version-check --quiet pip==26.3
# Where the environment says that Python shall write no bytecode, each of the suite's hundreds of processes would compile
# torch, pandas and all the rest again: half of its time.
export PYTHONDONTWRITEBYTECODE :=
RUN_DIR ?=
DEMO_STEPS ?=
MINUTES ?= 10
ROUNDS ?= 10
SEEDS ?= 5
# Two tests at a time, each worker with a stretch of the files. JOBS=0 runs one after the other, in one process.
JOBS ?= 2
WORKERS := -n $(JOBS) --dist worksteal
# pytest; what fails is run once more, alone. It ends with the tests that took longest.
TWICE := tests/twice.py --durations 40 --durations-min 10
QUICK := not slow and not browser and not multiprocess

.PHONY: demo environments check quick test thorough fuzz soak lint js js-check bench zoo mismatch noise lag-split dist docs notebook test-tensordict-010 test-transfer-queue test-verl test-trl test-trackers clean help

help:  ## what there is
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "probe needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/python $(NEW_PIP)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.notebook

# Execution of cells by the server replaces how every JupyterLab of an environment executes them. One test has it; so it
# lies beside the environment. What it needs is named one by one: pip would put a second JupyterLab there.
$(VENV)/server-side/.made: $(VENV)/.made Makefile
	$(BIN)/python $(INSTALL) --quiet --upgrade --no-deps --target $(VENV)/server-side \
		jupyter_server_nbmodel==0.2.9 jupyter_kernel_client==1.0.2 jupyter-mimetypes==0.2.0 jupyter-docprovider==3.0.4 \
		jupyter-server-ydoc==3.0.4 jupyter-ydoc==4.2.1 jupyter_server_fileid==0.10.0 pycrdt==0.14.13 \
		pycrdt-store==0.1.5 pycrdt-websocket==0.16.5 sqlite-anyio==0.2.10
	@touch $@

demo: $(VENV)/.demo  ## train a small policy under observation (about a minute)
	$(if $(SAID),COLUMNS=1200 )$(BIN)/probe demo $(if $(RUN_DIR),--run-dir $(RUN_DIR)) $(if $(DEMO_STEPS),--steps $(DEMO_STEPS)) $(if $(SAID),| tee $(SAID))

check: $(VENV)/.dev  ## lint, types and the quick tests, side by side: for hour-to-hour work
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(VENV)/.dev  ## the tests that need no browser, no farm of processes and no patience
	$(BIN)/python -m pytest $(WORKERS) -q -m "$(QUICK)"

test: $(VENV)/.dev $(VENV)/server-side/.made  ## the whole suite
	$(BIN)/python $(TWICE) $(WORKERS)

thorough: export PROBE_THOROUGH=1
thorough: $(VENV)/.dev $(VENV)/server-side/.made test-verl  ## the whole suite with every case: also those that are one more of what `make test` has
	$(BIN)/python $(TWICE) $(WORKERS)

fuzz: $(VENV)/.dev  ## the property tests with new seeds, for MINUTES=10
	$(BIN)/python tests/fuzz.py $(MINUTES)

soak: $(VENV)/.dev $(VENV)/server-side/.made  ## the tests that use a browser, processes or servers, ROUNDS=10 times beside busy loops
	$(BIN)/python -m tests.soak $(ROUNDS) $(WORKERS)

lint: $(VENV)/.dev  ## ruff, format, types, dependencies between the packages, docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/check_docstrings.py

node_modules/.made: package.json package-lock.json
	npm ci --no-audit --no-fund
	@touch $@

js: node_modules/.made  ## the panel's script and styles from static/src/ (needs node)
	node build.mjs
	cd probe/jupyter/lab && node ../../../node_modules/@jupyter/builder/lib/build-labextension.js --core-package-file core.package.json .

js-check: node_modules/.made  ## types, eslint and unit tests of the JavaScript (needs node)
	node_modules/.bin/tsc --project tsconfig.json
	node_modules/.bin/eslint .
	node --test tests/js/*.test.js

bench: $(VENV)/.dev  ## every benchmark, as ratios, into docs/benchmarks.md
	$(BIN)/python -m benchmarks --full --write

zoo: $(VENV)/.dev  ## plant every fault at three strengths, SEEDS=5 times each, and write how often it was named
	$(BIN)/python docs/make_zoo.py $(SEEDS)

mismatch: $(VENV)/.dev  ## plant every fault between rollout and training, SEEDS=5 times each, and write how often it was named
	$(BIN)/python docs/make_mismatch.py $(SEEDS)

noise: $(VENV)/.dev  ## draw pairs of runs with known changes, and write how often probe check is wrong
	$(BIN)/python docs/make_noise.py

lag-split: $(VENV)/.dev  ## plant staleness and a temperature at several lags, and write how the split told them apart
	$(BIN)/python docs/make_lag_split.py

dist: $(VENV)/.dev  ## the wheel and the source distribution, into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

docs: $(VENV)/.dev  ## the documentation, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(VENV)/.notebook: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[demo,notebook]'
	@touch $@

notebook: $(VENV)/.notebook  ## JupyterLab on the first notebook
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/01_first_look.ipynb

# verl as installed, with what it imports and doesn't ask for (TransferQueue, cachetools, fastapi, orjson, pyzmq, uvicorn);
# of TRL only the configurations are read. An older verl, torchtitan and
# OpenRLHF lie beside it, to be imported and not to train.
$(VENV)-verl/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)-verl
	-$(VENV)-verl/bin/python $(NEW_PIP)
	$(VENV)-verl/bin/python $(INSTALL) \
		torch==2.13.0 tensordict==0.10.0 verl==0.9.1 transformers==5.10.4 ray==2.60.0 TransferQueue==0.1.11 \
		cachetools==8.0.1 fastapi==0.165.0 orjson==3.13.0 pyzmq==27.3.0 uvicorn==0.54.0 --editable '.[views,data]' \
		hypothesis pytest pytest-reportlog pytest-timeout
	$(VENV)-verl/bin/python $(INSTALL) --no-deps trl==1.16.0
	$(VENV)-verl/bin/python -m pip check
	$(VENV)-verl/bin/python $(INSTALL) --no-deps --target $(VENV)-verl/verl-0.7.1 verl==0.7.1
	$(VENV)-verl/bin/python $(INSTALL) --no-deps --target $(VENV)-verl/others torchtitan==0.3.0 openrlhf==0.11.2
	@touch $@

test-verl: $(VENV)-verl/.made  ## verl as installed: its functions beside ours, and its trainers with probe beside them
	$(VENV)-verl/bin/python $(TWICE) -- tests/frameworks/test_verl_drop_in.py tests/frameworks/test_verl_drop_in_checkpoints.py \
		tests/frameworks/test_verl_secrets.py tests/frameworks/test_verl_rule.py tests/frameworks/test_verl_adapter.py \
		tests/frameworks/test_verl_batches.py tests/frameworks/test_verl_metrics.py tests/frameworks/test_verl_agent_loops.py \
		tests/frameworks/test_verl_training.py tests/frameworks/test_verl_sft.py
	PYTHONPATH=$(VENV)-verl/others $(VENV)-verl/bin/python $(TWICE) -W ignore -- \
		tests/adapters/test_others.py tests/adapters/test_nemo_rl.py  # their warnings are theirs

# verl 0.9 needs tensordict below 0.10.1: the parts that touch it pass there too. File systems, checkpoints and packers
# don't touch it.
test-tensordict-010: $(VENV)-verl/.made  ## the core again, on the oldest tensordict that verl uses
	$(VENV)-verl/bin/python $(TWICE) -m "not multiprocess" \
		--ignore tests/core/fs --ignore tests/core/checkpoint --ignore tests/core/packing -- tests/core tests/recorders

# TRL, Transformers, Lightning, Ray, TransferQueue and the smaller trackers as installed, in one environment: swanlab
# wants an older protobuf and trackio an older pillow than the rest of the suite is tested with. torch comes first, so
# that its CPU build is taken where one is offered; pip says whether probe's own packages go with theirs.
$(VENV)-frameworks/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-frameworks
	-$(VENV)-frameworks/bin/python $(NEW_PIP)
	$(VENV)-frameworks/bin/python $(INSTALL) --constraint constraints.txt torch==2.13.0
	$(VENV)-frameworks/bin/python $(INSTALL) --constraint constraints.txt \
		torch==2.13.0 trl==1.16.0 transformers==5.10.4 lightning==2.6.6 accelerate==1.15.0 \
		TransferQueue==0.1.11 ray==2.60.0 --editable '.[views,tensorboard,mlflow,wandb,swanlab,trackio,otlp]' \
		hypothesis omegaconf pytest pytest-reportlog pytest-timeout
	$(VENV)-frameworks/bin/python -m pip check
	@touch $@

test-trl: $(VENV)-frameworks/.made  ## TRL's trainers, Transformers' and Lightning's under observation
	HF_HUB_OFFLINE=1 $(VENV)-frameworks/bin/python $(TWICE) -- tests/frameworks/test_trl.py tests/frameworks/test_trl_attaching.py \
		tests/frameworks/test_trl_rule.py tests/frameworks/test_trl_state.py tests/frameworks/test_lightning.py

test-transfer-queue: $(VENV)-frameworks/.made  ## the codec over a real wire, and a job on a real Ray
	RAY_AUTH_MODE=disabled $(VENV)-frameworks/bin/python $(TWICE) -- tests/frameworks/test_transfer_queue.py tests/frameworks/test_ray.py tests/frameworks/test_lake.py

test-trackers: $(VENV)-frameworks/.made  ## SwanLab and trackio, each as installed
	$(VENV)-frameworks/bin/python $(TWICE) -k "swanlab or trackio" -- tests/tracking tests/publishing

environments: $(VENV)/.dev $(VENV)/server-side/.made $(VENV)-verl/.made $(VENV)-frameworks/.made  ## all that tests need, installed

clean:  ## remove the environments
	rm -rf node_modules $(VENV) $(VENV)-verl $(VENV)-frameworks
