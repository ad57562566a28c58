"""The files of conformance/ are whole, small, and what the engine gives: they are never changed."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import make_conformance
import pytest
from roundlog.definitions import DEFINITIONS, FLOATS

CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
FOLDERS = ("jobs", "models", "receipts", "refused", "vectors")
FILES_OF_A_JOB = {
    *("spec.json", "program.json", "initial.safetensors"),
    *("schedule.safetensors", "data.safetensors", "data.blocks"),
}


def kept() -> dict[str, Path]:
    """Name in the manifest -> file, of all that are there."""
    found = [path for folder in FOLDERS for path in (CONFORMANCE / folder).rglob("*") if path.is_file()]
    return {path.relative_to(CONFORMANCE).as_posix(): path for path in found}


def test_the_manifest_has_every_file_and_its_digest() -> None:
    manifest = json.loads((CONFORMANCE / "manifest.json").read_text())["sha256"]
    assert manifest == {name: sha256(path.read_bytes()).hexdigest() for name, path in kept().items()}


def test_files_are_small() -> None:
    total = sum(path.stat().st_size for path in CONFORMANCE.rglob("*") if "__pycache__" not in path.parts)
    assert total < 2_000_000
    for job in (CONFORMANCE / "jobs").iterdir():
        assert {path.name for path in job.iterdir()} == FILES_OF_A_JOB
        assert sum(path.stat().st_size for path in job.iterdir()) <= 100_000


def test_every_job_has_a_receipt() -> None:
    receipts = {path.stem for path in (CONFORMANCE / "receipts").iterdir()}
    assert {path.name for path in (CONFORMANCE / "jobs").iterdir()} <= receipts


def test_every_operator_and_format_has_vectors() -> None:
    found = {path.stem: json.loads(path.read_text())["cases"] for path in (CONFORMANCE / "vectors").iterdir()}
    assert found.keys() == DEFINITIONS.keys() - {"state", "data", "schedule"}
    for name, definition in DEFINITIONS.items():
        for signature in definition.formats if name in found else ():
            wanted = {str(signature.output)} if signature.output else {str(dtype) for dtype in FLOATS}
            read = signature.inputs[0] if signature.inputs else None
            given = {
                case["output"]["dtype"]
                for case in found[name]
                if read is None or case["inputs"][0]["dtype"] == str(read)
            }
            assert wanted <= given, (name, signature)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["vectors", "receipts", "text_receipt"])
def test_the_engine_gives_what_is_kept(part: str) -> None:
    made = getattr(make_conformance, part)()
    assert made and {path: path.read_text() for path in made} == made
