"""Prove what contracts/proofs states, for all inputs: `make prove`.

    .venv-halmos/bin/python scripts/prove_contracts.py [arguments of halmos]

Runs in the virtual environment of halmos 0.3.3, with forge in PATH. SHA-256 is to halmos a function of which nothing is
known but that equal inputs have equal hashes, so what is proven holds for every hash function. Exit code 1 if anything
is not proven.
"""

from __future__ import annotations

import sys

import z3
from halmos import sevm
from halmos.__main__ import main

declared = sevm.Function


def function(name: str, *sorts: z3.SortRef) -> z3.FuncDeclRef:
    """halmos 0.3.3 declares SHA-256 of n bytes over n bits, so that z3 refuses every hash of anything."""
    if name.startswith("f_sha256_"):
        sorts = (z3.BitVecSort(8 * int(name.removeprefix("f_sha256_"))), *sorts[1:])
    return declared(name, *sorts)


sevm.Function = function

# Bounds of loops are those of the proofs' own tables, and no query may decide by running out of time.
DEFAULTS = ["--loop", "70", "--solver-timeout-assertion", "120000", "--forge-build-out", "contracts/out/proofs"]

if __name__ == "__main__":
    sys.argv[1:1] = DEFAULTS
    sys.exit(main())
