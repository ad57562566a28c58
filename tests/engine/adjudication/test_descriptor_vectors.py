"""The vectors that Solidity is tested with say what Python says, and hold every operator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from roundlog.commitments import leaf_hash
from roundlog.descriptors import describe, encode_descriptor, program_root, program_tree
from roundlog.operators import REGISTRY, check
from roundlog.program import from_json

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "descriptors.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("of", ["arithmetic", "format", "tensor_core", "descriptor"])
def test_the_vectors_are_what_their_script_writes(of: str) -> None:
    check = [sys.executable, str(ROOT / "scripts" / f"make_{of}_vectors.py"), "--check"]
    run = subprocess.run(check, capture_output=True, text=True, check=False, env={"PYTHONPATH": ":".join(sys.path)})
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_vectors_hold_every_operator_of_the_registry() -> None:
    program = from_json(VECTORS["program"].encode())
    check(program)
    assert {node.op for node in program.nodes} == set(REGISTRY)


def test_the_program_of_the_vectors_gives_its_descriptors_leaves_and_root() -> None:
    program = from_json(VECTORS["program"].encode())
    tree = program_tree(program)
    assert len(VECTORS["operators"]) == tree.count == len(program.nodes)
    for index, vector in enumerate(VECTORS["operators"]):
        encoded = bytes.fromhex(vector["encoded"][2:])
        assert encode_descriptor(describe(program, index)) == encoded
        assert "0x" + leaf_hash(encoded).hex() == vector["leaf"]
        assert "0x" + tree.node(0, index).hex() == vector["leaf"]
    assert "0x" + program_root(program).hex() == VECTORS["programRoot"]
