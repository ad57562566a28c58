"""The script that compares tensor cores with results of GPUs: what it counts, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import compare_tensor_cores
import numpy as np
import numpy.typing as npt
import pytest
from make_tensor_core_vectors import Draws, ordinary
from roundlog.adjudication.tensor_core_groups import group
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS

ROOT = Path(__file__).resolve().parents[3]
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
    arithmetic, draws = ARITHMETICS[name], Draws(f"{gpu} {format}")
    drawn = [ordinary(draws, OPERAND_FORMATS[format], arithmetic.terms[format], 0) for _ in range(CASES)]
    results = [group(arithmetic, format, *case) for case in drawn]
    columns = {"a": [a for _, a, _ in drawn], "b": [b for _, _, b in drawn], "c": [c for c, _, _ in drawn]}
    key = f"{gpu}|{compare_tensor_cores.PUBLISHED_NAMES.get(format, format)}"
    return {f"{key}|{part}": np.array(held, np.uint32) for part, held in {**columns, "d_fp32": results}.items()}


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return made("H100", "bf16", "hopper") | made("V100", "f16", "volta") | made("A2", "f16", "ampere")


def compare(room: Path, arrays: Mapping[str, npt.NDArray[np.generic]], *options: str) -> int:
    np.savez(room / "vectors.npz", **arrays)  # type: ignore[arg-type]
    return compare_tensor_cores.main([str(room / "vectors.npz"), *options])


def test_equal_results_of_covered_gpus_are_counted_and_a_bit_that_differs_is_found(
    tmp_path: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, arrays) == 0
    _, _, h100, v100, last = capsys.readouterr().out.splitlines()
    assert h100.startswith("| H100 | bf16 | 16 | hopper | 25 | 16 | 60 | 60 | ")
    assert v100.startswith("| V100 | f16 | 4 | volta | 23 | 4 | 60 | 60 | ")
    assert all(0 < int(count) < 60 for row in (h100, v100) for count in row.split("|")[9:12])
    assert last == "120 of 120 equal"
    altered = arrays["H100|bf16|d_fp32"].copy()
    altered[41] ^= 1
    assert compare(tmp_path, arrays | {"H100|bf16|d_fp32": altered}) == 1
    out = capsys.readouterr().out
    assert "| hopper | 25 | 16 | 60 | 59 |" in out and out.endswith("119 of 120 equal\n")


def test_results_that_show_nothing_do_not_pass(
    tmp_path: Path, arrays: Arrays, capsys: pytest.CaptureFixture[str]
) -> None:
    """All zeros: every model is right."""
    nothing = {key: np.zeros_like(held) for key, held in arrays.items() if key.startswith("H100")}
    assert compare(tmp_path, nothing) == 1
    assert "A wrong model equals a whole set." in capsys.readouterr().out
    others = {key: held for key, held in arrays.items() if key.startswith("A2")}
    assert compare(tmp_path, others) == 1
    assert capsys.readouterr().out.endswith("0 of 0 equal\n")


def test_the_reference_equals_real_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """Where their results are: the first cases of each set."""
    compare_tensor_cores.main([str(measured()), "--cases", "100"])
    assert capsys.readouterr().out.endswith("1,600 of 1,600 equal\n")
