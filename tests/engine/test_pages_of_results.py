"""Pages with measured results: each has the form that its script writes, and says what it has to prove."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matrix
import other_architecture
import pytest
from machines.process import Outcome
from machines.profiles import MACHINES
from machines.tasks import MORE_TEXTS, SMALL, SMALL_IN_BF16, SMALL_STEPS, TEXTS
from matrix import Result
from other_architecture import HERE, PAGE, THERE, recorded, wrong

ROOT = Path(__file__).parents[2]
BIT_EQUALITY = (ROOT / "docs" / "bit-equality.md").read_text()
RESULT: dict[str, Any] = json.loads((ROOT / "scripts" / "papers" / "result.json").read_text())
MEASURED = [RESULT["parts"][model][size] for model in ("resnet", "gpt2") for size in RESULT["parts"][model]]


def test_plain_training_drifted_apart_and_no_method_did() -> None:
    """Equality is the claim: not one bit of a weight may differ, and the auditor has the trainer's root."""
    methods = {"hardware A and B, threshold", "hardware A and B, certified"}
    for part in MEASURED:
        found = part["divergence"]["apart"]
        assert all((one["weights"] == 0) == (name in methods) for name, one in found.items() if "rounded" not in name)
        assert {row["policy"] for row in part["corrections"]} == {"certified", "threshold"}
        assert all(row["same"] and not row["findings"] for row in part["corrections"])


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose head starts with `heading`."""
    lines = BIT_EQUALITY[BIT_EQUALITY.index(f"| {heading} ") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_is_about_the_matrix_that_the_script_runs() -> None:
    assert BIT_EQUALITY.startswith(matrix._PAGE)
    assert [row[0] for row in rows("task")] == list(SMALL)
    cpus = [name for name, machine in MACHINES.items() if machine.device == "cpu"]
    assert set(cpus) <= {row[0] for row in rows("machine")} <= set(MACHINES)


def test_the_page_of_models_is_what_its_rows_make(tmp_path: Path) -> None:
    """A row that was cut off is left out, and roots that differ do not count as captured."""
    pytest.importorskip("transformers")
    from try_models import counts, markdown, read

    rows = read(ROOT / "scripts" / "models" / "rows.jsonl")
    assert (ROOT / "docs" / "models.md").read_text() == markdown(rows.values())
    captured, tried = counts(rows.values())
    assert captured >= 210 and tried - captured <= 20
    assert all(row["outcome"] == "captured" or row["why"] for row in rows.values())
    (tmp_path / "rows.jsonl").write_text('{"name": "a", "outcome": "refused"}\n{"name": "b", "outc')
    assert list(read(tmp_path / "rows.jsonl")) == ["a"]
    row = {"name": "a", "outcome": "captured", "root": "01", "other root": "02"}
    assert counts([row, {**row, "other root": "01"}, {"outcome": "not tried"}]) == (1, 2)


# An emulated AArch64, as far as it needs no emulator.

RIGHT = Outcome("aa" * 32, "aa" * 32, "aa" * 32, 0, 0, "", "", 1.0)
KERNELS = {HERE: "11" * 32, THERE: "22" * 32}
RECORDED = {"digits": "aa" * 8}


def result(there: Outcome = RIGHT, here: Outcome = RIGHT, task: str = "digits") -> Result:
    return Result(KERNELS, {HERE: {task: here}, THERE: {task: there}})


def test_one_root_on_both_machines_is_what_is_expected() -> None:
    assert wrong(result(), RECORDED) == []
    assert wrong(result(), {}) == [], "a task of another number of steps is recorded nowhere"


@pytest.mark.parametrize("change", [{"trained": "ab" * 32}, {"alone": "ab" * 32}, {"findings": 1}, {"unreadable": 1}])
def test_another_root_or_a_finding_on_aarch64_is_refused(change: dict[str, Any]) -> None:
    (sentence,) = wrong(result(replace(RIGHT, **change)), RECORDED)
    assert sentence.startswith(f"digits on {THERE}: ") and "aa" * 32 in sentence


def test_a_root_that_the_page_has_not_and_equal_kernels_are_refused() -> None:
    other = replace(RIGHT, trained="bb" * 32, audited="bb" * 32, alone="bb" * 32)
    assert wrong(result(other, other), RECORDED) == [f"digits has the root {'bb' * 8}, where {'aa' * 8} is recorded"]
    same = Result(dict.fromkeys(KERNELS, "11" * 32), result().outcomes)
    assert wrong(same, RECORDED) == ["the two machines have the same FP64 kernels, so that equal roots show nothing"]


def test_the_page_has_all_tasks_of_the_matrix_with_equal_roots_on_both_machines() -> None:
    page = PAGE.read_text()
    roots = recorded(page, SMALL_STEPS)
    assert roots.keys() - SMALL_IN_BF16.keys() == SMALL.keys() and recorded(page, SMALL_STEPS + 1) == {}
    assert other_architecture._TEXT in page
    found = re.findall(r"^\| (\w+) \| (\d+) \| " + r"`([0-9a-f]{16})` \| " * 4 + r"(\d+) \|$", page, re.MULTILINE)
    for task, steps, *given, findings in found:
        # The table of x86-64 has no texts but one.
        known = given[0] if task in MORE_TEXTS else recorded(page, int(steps))[task]
        assert ({*given}, findings) == ({known}, "0")
    # Of the tasks in BF16, and of the texts, those that were asked for.
    assert {task for task, *_ in found} >= {*SMALL, *TEXTS, *MORE_TEXTS, "gpt_bf16"}
