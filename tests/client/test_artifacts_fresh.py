"""The ABI and bytecode that the client ships are those of contracts/src."""

from __future__ import annotations

import json
from pathlib import Path

import compile_contracts
import pytest

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = {f"{name}.json" for name in compile_contracts.CONTRACTS}


def test_the_client_ships_an_artifact_of_every_contract_and_no_other() -> None:
    assert {path.name for path in compile_contracts.ARTIFACTS.glob("*.json")} == ARTIFACTS


def test_the_sources_have_not_changed_since_the_artifacts_were_made() -> None:
    stale = "contracts/src has changed: run `make contracts-build` and commit the artifacts"
    for name in ARTIFACTS:
        artifact = json.loads((compile_contracts.ARTIFACTS / name).read_text())
        assert artifact["sources"] == compile_contracts.source_hashes(), stale
        assert artifact["settings"] == compile_contracts.SETTINGS, stale


def test_forge_compiles_with_the_settings_of_the_artifacts() -> None:
    import tomllib

    forge = tomllib.loads((ROOT / "foundry.toml").read_text())["profile"]["default"]
    settings = compile_contracts.SETTINGS
    assert forge["evm_version"] == settings["evmVersion"]
    assert forge["optimizer"] == settings["optimizer"]["enabled"]
    assert forge["optimizer_runs"] == settings["optimizer"]["runs"]
    assert forge.get("via_ir", False) == settings.get("viaIR", False)
    assert ROOT / forge["solc"] == compile_contracts.COMPILER


@pytest.mark.slow
def test_a_fresh_compilation_gives_exactly_the_shipped_artifacts() -> None:
    compiler = compile_contracts.ROOT / "node_modules" / "solc"
    assert compiler.is_dir(), "the compiler is missing: run `make contracts-tools`"
    for file_name, artifact in compile_contracts.compile_all().items():
        assert compile_contracts.encode(artifact) == (compile_contracts.ARTIFACTS / file_name).read_text()
