"""One CPU is several machines: fresh processes under other instruction sets, other BLAS code paths, other thread
counts. FP64 bits differ between them, every one stays within its bound, and after certified rounding all are equal."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.engine.operators import kernel_profile
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.direct import DIRECT
from tests.engine.oracle.inexact import INEXACT, Real

pytestmark = pytest.mark.slow

PROFILES: dict[str, tuple[dict[str, str], int]] = {
    "native": ({}, 1),
    "native, two threads": ({}, 2),
    "native, compatible BLAS": ({"MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Nehalem"}, 1),
    "AVX2": ({"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}, 2),
    "no vectors": (
        {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_CORETYPE": "Prescott"},
        1,
    ),
}

Results = dict[str, dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All arrays that the process of every profile wrote."""
    folder = tmp_path_factory.mktemp("profiles")
    script = Path(kernel_profile.__file__)
    decided = ("ATEN_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")
    clean = {key: text for key, text in os.environ.items() if not key.startswith(decided)}
    running = {}
    for number, (name, (environment, threads)) in enumerate(PROFILES.items()):
        path = folder / f"{number}.npz"
        command = [sys.executable, str(script), str(path), str(threads)]
        whole = {**clean, **environment, "OMP_NUM_THREADS": str(threads)}
        running[name] = path, subprocess.Popen(command, env=whole, stderr=subprocess.PIPE, text=True)
    found = {}
    for name, (path, process) in running.items():
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, f"{name}: {errors}"
        with np.load(path) as file:
            found[name] = {key: file[key] for key in file.files}
    return found


@pytest.fixture(scope="module")
def reals() -> dict[str, list[Real]]:
    """The oracle's values of every inexact entry of the profiles, by label."""
    return {
        label: INEXACT[name]([from_torch(x) for x in inputs], attributes)[1]
        for label, name, inputs, attributes in kernel_profile.inexact()
    }


def _labels(results: Results, kind: str) -> list[str]:
    return [key for key in results["native"] if key.endswith(kind)]


def test_the_profiles_really_differ_in_the_bits_of_fp64(results: Results) -> None:
    differing, of_panels = (
        {
            label.removesuffix(suffix)
            for label in _labels(results, suffix)
            if len({found[label].tobytes() for found in results.values()}) > 1
        }
        for suffix in (".y", ".p")
    )
    # If this fails, the machine has only one code path, and the tests below say nothing about it.
    assert differing
    if platform.machine() == "x86_64":
        for some in (differing, of_panels):
            assert some & {"matmul", "matmul batched", "conv2d", "conv2d_grad_weight"}, some
        assert differing & {"exp", "expm1", "tanh", "erf", "log", "log1p"}, differing


def test_every_profile_stays_within_its_bounds(results: Results, reals: dict[str, list[Real]]) -> None:
    for label, expected in reals.items():
        for profile, found in results.items():
            y, d = found[f"{label}.y"].reshape(-1), found[f"{label}.d"].reshape(-1)
            for i, (value, bound, real) in enumerate(zip(y.tolist(), d.tolist(), expected, strict=True)):
                assert abs(Fraction(value) - real.value) <= Fraction(bound), (profile, label, i)


def test_after_certified_rounding_every_profile_has_the_oracles_bits(
    results: Results, reals: dict[str, list[Real]]
) -> None:
    for label, exact in reals.items():
        expected = np.array([real.rounded for real in exact], dtype=np.uint32)
        for profile, found in results.items():
            assert found[f"{label}.r"].reshape(-1).view(np.uint32).tobytes() == expected.tobytes(), (profile, label)


def test_exact_operators_give_the_same_bits_in_every_profile(results: Results) -> None:
    for label in _labels(results, ".v"):
        for profile, found in results.items():
            assert found[label].tobytes() == results["native"][label].tobytes(), (profile, label)


def test_exact_operators_give_the_oracles_bits_in_a_fresh_process(results: Results) -> None:
    for label, name, inputs, attributes in kernel_profile.exact():
        # A thousand elements of the long ones; the other profiles have the same bits.
        long = all(x.ndim <= 1 for x in inputs) and name != "sum_i64"
        some = [x[-1000:] if long and x.ndim else x for x in inputs]
        expected = DIRECT[name]([from_torch(x) for x in some], attributes)
        value = results["native"][f"{label}.v"]
        assert _items(value[-1000:] if long else value) == expected.items, label


def _items(value: np.ndarray) -> tuple[int, ...]:
    flat = value.reshape(-1)
    return tuple((flat.view(np.uint32) if flat.dtype == np.float32 else flat.astype(np.int64)).tolist())
