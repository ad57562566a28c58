"""The script that compares tensor cores with results of GPUs: what it counts, what it finds, and files of strangers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import compare_tensor_cores
import numpy as np
import numpy.typing as npt
import pytest
from compare_tensor_cores import PUBLISHED_NAMES
from make_tensor_core_vectors import Draws, ordinary
from roundlog.adjudication.tensor_core_groups import group
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "arithmetic.md"
CASES = 60

Arrays = dict[str, npt.NDArray[np.uint32]]


def measured() -> Path:
    """Results of real GPUs, which are not part of the repository."""
    for room in (ROOT / "shared", ROOT.parent / "shared"):
        if (path := room / "data" / "tensor-core" / "vectors.npz").is_file():
            return path
    pytest.skip("there are no results of GPUs")


def made(gpu: str, format: str, name: str) -> Arrays:
    """Results that a GPU of an arithmetic would give."""
    arithmetic, dtype = ARITHMETICS[name], PUBLISHED_NAMES.get(format, format)
    draws = Draws(f"{gpu} {format}")
    drawn = [ordinary(draws, OPERAND_FORMATS[dtype], arithmetic.terms[dtype], 0) for _ in range(CASES)]
    results = [group(arithmetic, dtype, *case) for case in drawn]
    columns = {"a": [a for _, a, _ in drawn], "b": [b for _, _, b in drawn], "c": [c for c, _, _ in drawn]}
    return {f"{gpu}|{format}|{key}": np.array(held, np.uint32) for key, held in {**columns, "d_fp32": results}.items()}


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    found = made("H100", "bf16", "hopper") | made("V100", "fp16", "volta") | made("A2", "fp16", "ampere")
    found["V100|fp16|d_fp16"] = found["V100|fp16|d_fp32"]
    return found | {f"Ada|E4M3|{part}": found["V100|fp16|a"] for part in ("a", "b")}


def compare(room: Path, arrays: Mapping[str, npt.NDArray[np.generic]], *options: str) -> int:
    np.savez(room / "vectors.npz", **arrays)  # type: ignore[arg-type]
    return compare_tensor_cores.main(["--vectors", str(room / "vectors.npz"), *options])


def test_equal_results_are_counted_and_others_named(
    tmp_path: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, arrays, "--controls") == 0
    table = capsys.readouterr().out.splitlines()
    head, _, a2, h100, v100, none, last = table
    assert head.startswith("| GPU | format | K | arithmetic | F | group | cases | equal | F - 1 | half groups |")
    assert a2.startswith("| A2 | f16 | 8 | not covered (hopper ") and ", ampere 60, volta " in a2
    assert h100.startswith("| H100 | bf16 | 16 | hopper | 25 | 16 | 60 | 60 | ")
    assert v100.startswith("| V100 | f16 | 4 | volta | 23 | 4 | 60 | 60 | ")
    assert all(0 < int(count) < 60 for row in (h100, v100) for count in row.split("|")[9:12])
    assert {row.count("|") for row in table[:5]} == {12}
    assert none == "No arithmetic: E4M3 (Ada), fp16 with sums in fp16 (V100)."
    assert last == "120 of 120 equal"
    assert compare(tmp_path, arrays, "--cases", "7") == 0
    assert capsys.readouterr().out.endswith("14 of 14 equal\n")


def test_a_bit_that_differs_is_found(tmp_path: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    altered = arrays["H100|bf16|d_fp32"].copy()
    altered[41] ^= 1
    assert compare(tmp_path, arrays | {"H100|bf16|d_fp32": altered}) == 1
    out = capsys.readouterr().out
    assert "| hopper | 25 | 16 | 60 | 59 |" in out and out.endswith("119 of 120 equal\n")


def test_a_hostile_file_gets_one_sentence(tmp_path: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(altered: Mapping[str, npt.NDArray[np.generic]], said: str) -> None:
        assert compare(tmp_path, altered) == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1, told

    a, wide = arrays["H100|bf16|a"], np.tile(arrays["H100|bf16|a"], (1, 2))
    refused({}, "holds no set of bf16, f16, tf32")
    refused({"H100|bf16|a": a}, "H100/bf16 has no b, c, d_fp32")
    refused(arrays | {"H100|bf16|b": a[:-1]}, "shapes that do not fit")
    refused(arrays | {"H100|bf16|b": wide}, "shapes that do not fit")
    refused(arrays | {"H100|bf16|a": a[:0], "H100|bf16|b": a[:0]}, "shapes that do not fit")
    refused(arrays | {"H100|bf16|c": a}, "shapes that do not fit")
    refused(arrays | {"H100|bf16|c": arrays["H100|bf16|c"].astype(np.uint64)}, "no array of uint32")
    refused(arrays | {"H100|bf16|c": arrays["H100|bf16|c"].astype(">u4")}, "no array of uint32")
    refused(arrays | {"H100|bf16|a": np.asfortranarray(a)}, "no array of uint32")
    refused(arrays | {"H100|bf16|a": a.reshape(2, 30, -1)}, "no array of uint32")
    refused(arrays | {"H100|bf16|a": np.array([{"an": "object"}])}, "no array of uint32")
    refused(arrays | {"H100|bf16|a": a | np.uint32(1)}, "is no number of bf16")


def test_a_hostile_archive_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vectors.npz"

    def refused(data: bytes | None) -> None:
        if data is not None:
            path.write_bytes(data)
        assert compare_tensor_cores.main(["--vectors", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    refused(None)
    refused(b"")
    refused(b"PK\x05\x06" + bytes(18))
    refused(b"\x93NUMPY")
    whole = io.BytesIO()
    np.savez_compressed(whole, **{"H100|bf16|a": np.arange(4096, dtype=np.uint32)})  # type: ignore[arg-type]
    refused(whole.getvalue()[:-30])
    broken = bytearray(whole.getvalue())
    broken[200:260] = bytes(60)
    refused(bytes(broken))
    for header in ("(4096, 1 << 40), }", "(-2, -2), }", "(10**9,), }", "(" * 4000):
        text = f"{{'descr': '<u4', 'fortran_order': False, 'shape': {header}".ljust(9000).encode() + b"\n"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("H100|bf16|a.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(16))
        refused(None)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("H100|bf16|a.npy", bytes(compare_tensor_cores.MOST_BYTES + 1))
    refused(None)


def test_the_reference_equals_real_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Where their results are: the first cases of each set, and the numbers that the page tells of all."""
    assert compare_tensor_cores.main(["--vectors", str(measured()), "--cases", "100"]) == 0
    assert capsys.readouterr().out.endswith("1,600 of 1,600 equal\n")
    assert compare_tensor_cores.main(["--vectors", str(measured()), "--shown"]) == 0
    assert capsys.readouterr().out in PAGE.read_text()


@pytest.mark.slow
def test_the_page_has_what_the_script_measures(tmp_path: Path) -> None:
    page = tmp_path / "arithmetic.md"
    page.write_text(PAGE.read_text())
    assert compare_tensor_cores.main(["--vectors", str(measured()), "--markdown", str(page)]) == 0
    assert page.read_text() == PAGE.read_text()
