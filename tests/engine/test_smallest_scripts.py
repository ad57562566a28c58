"""Every script of scripts/ runs: in its smallest form, in a copy of the repository, which it leaves as it was."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BY_HELP = {
    "bench_data": "its least data train for minutes",
    "bench_dispute": "a devnet with a game for every kind of lie: minutes; tests/client/game has them",
    "bench_distributed": "sets of ranks that wait for each other: minutes; tests/engine/ranks has the rest",
    "bench_evaluation": "needs lm-eval and a model; tests/client/test_evaluations.py has what it times",
    "compile_contracts": "compiles for half a minute, as tests/client/test_artifacts_fresh.py does",
    "compare_tensor_cores": "needs results of GPUs; tests/engine/arithmetic/test_compare_tensor_cores.py makes some",
    "matrix": "runs what tests/engine/running/test_bit_equality.py runs a sample of",
    "matrix_of_texts": "runs what tests/engine/test_matrix_of_texts.py runs a sample of",
    "measure_house": "walks the checkout that its environment is of, and this is a copy; `make lint` runs its gate",
    "other_architecture": "fetches an AArch64 Python; tests/engine/test_pages_of_results.py has the rest",
    "prove_contracts": "needs halmos, which has an environment of its own",
    "reckon_cards": "needs Triton, which has an environment of its own",
}
"""Scripts that are only asked for their help, and why."""

SMALLEST: dict[str, list[str]] = {
    "bench_generation": ["--shape", "tiny", "--tokens", "4", "--rounds", "1", "--rows", "2"],
    "bench_engine": ["--model", "logistic", "--rounds", "1"],
    "bench_sizes": ["--small", "--only", "135M, LoRA, 2 x 64", "--steps", "2"],
    "bench_products": ["--rounds", "1"],
    "compare_integer_products": ["--elements", "1"],
    "elementary_series": [],
    "make_arithmetic_vectors": [],
    "make_cli_docs": [],
    "make_code_docs": [],
    "make_conformance": [],
    "make_descriptor_vectors": [],
    "make_format_vectors": [],
    "make_operating_docs": [],
    "make_operator_docs": [],
    "make_script_docs": [],
    "make_tensor_core_vectors": [],
    "make_vectors": [],
    "matrix_of_ranks": ["--task", "logistic", "--ranks", "1", "--steps", "2"],
    "measure_mutants": ["--each", "1", "--only", "log/payload"],
    "on_a_device": [
        *("--device", "cpu", "--task", "logistic", "--task", "logistic_bf16", "--model", "logistic", "--rounds", "1")
    ],
    "paper_tables": ["--parts", ""],
    "pin_versions": [],
    "try_models": ["--only", "gpt2", "--rows", "{tmp}/rows.jsonl"],
}

NEEDS = {
    "bench_sizes": "transformers",
    "matrix_of_texts": "transformers",
    "prove_contracts": "z3",
    "reckon_cards": "triton",
    "try_models": "transformers",
}
"""Packages that a script needs beside those that tests are run with."""

MARKS = dict.fromkeys(("bench_engine", "bench_sizes", "matrix_of_ranks", "on_a_device", "try_models"), pytest.mark.long)

_PASSED_BY = (".git", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build")


def test_every_script_is_listed() -> None:
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert scripts == SMALLEST.keys() | BY_HELP.keys(), "a script that nobody runs breaks: list its smallest form here"


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_HELP)
def test_a_script_that_takes_minutes_tells_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
    assert "options:" in capsys.readouterr().out


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, where scripts may write."""
    target = tmp_path_factory.mktemp("scripts") / "repository"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*_PASSED_BY), symlinks=True)
    if (ROOT / "node_modules").is_dir():
        (target / "node_modules").symlink_to(ROOT / "node_modules")
    return target


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in SMALLEST])
def test_a_script_runs_in_its_smallest_form(name: str, copy: Path, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = subprocess.run(
        [sys.executable, f"scripts/{name}.py", *(part.format(tmp=tmp_path) for part in SMALLEST[name])],
        cwd=copy,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    changed = [
        path.relative_to(copy)
        for folder in ("docs", "conformance", "tests/vectors", "contracts/src", "client", "engine")
        for path in (copy / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not _same(path, ROOT / path.relative_to(copy))
    ]
    for path in changed:  # for the scripts after it
        (copy / path).unlink()
        if (ROOT / path).is_file():
            shutil.copyfile(ROOT / path, copy / path)
    assert not changed, f"{name} writes something else than stands in the repository: run it"


def _same(one: Path, two: Path) -> bool:
    return two.is_file() and one.read_bytes() == two.read_bytes()
