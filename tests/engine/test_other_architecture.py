"""The comparison with an emulated AArch64 (`scripts/other_architecture.py`), as far as it needs no emulator."""

from __future__ import annotations

import re
from dataclasses import replace

import other_architecture
import pytest
from machines.process import Outcome
from machines.tasks import MORE_TEXTS, SMALL, TEXTS
from matrix import Result
from other_architecture import (
    HERE,
    PAGE,
    THERE,
    TITLE,
    TITLE_IN_BF16,
    TITLE_OF_TEXTS,
    markdown,
    recorded,
    together,
    wrong,
)

RIGHT = Outcome("aa" * 32, "aa" * 32, "aa" * 32, 0, 0, "", "", 1.0)
KERNELS = {HERE: "11" * 32, THERE: "22" * 32}
RECORDED = {"digits": "aa" * 8}


def result(there: Outcome = RIGHT, here: Outcome = RIGHT, task: str = "digits") -> Result:
    return Result(KERNELS, {HERE: {task: here}, THERE: {task: there}})


def test_one_root_on_both_machines_is_what_is_expected() -> None:
    assert wrong(result(), RECORDED) == []
    # A task of another number of steps is recorded nowhere.
    assert wrong(result(), {}) == []


@pytest.mark.parametrize("way", ["trained", "audited", "alone"])
def test_another_root_on_aarch64_is_refused(way: str) -> None:
    other = replace(RIGHT, **{way: "ab" * 32})
    (sentence,) = wrong(result(other), RECORDED)
    assert sentence.startswith(f"digits on {THERE}: ") and "ab" * 32 in sentence and "aa" * 32 in sentence


@pytest.mark.parametrize("what", ["findings", "unreadable"])
def test_a_finding_on_aarch64_in_the_log_of_x86_is_refused(what: str) -> None:
    assert len(wrong(result(replace(RIGHT, **{what: 1})), RECORDED)) == 1


def test_a_root_that_both_machines_have_and_the_page_has_not_is_refused() -> None:
    other = replace(RIGHT, trained="bb" * 32, audited="bb" * 32, alone="bb" * 32)
    assert wrong(result(other, other), RECORDED) == [f"digits has the root {'bb' * 8}, where {'aa' * 8} is recorded"]


def test_machines_with_the_same_kernels_show_nothing() -> None:
    same = Result(dict.fromkeys(KERNELS, "11" * 32), result().outcomes)
    assert wrong(same, RECORDED) == ["the two machines have the same FP64 kernels, so that equal roots show nothing"]


def test_the_recorded_roots_are_those_of_the_matrix_and_its_number_of_steps() -> None:
    from machines.tasks import SMALL, SMALL_IN_BF16, SMALL_STEPS

    page = PAGE.read_text()
    roots = recorded(page, SMALL_STEPS)
    assert roots.keys() - SMALL_IN_BF16.keys() == SMALL.keys()
    assert all(f"`{root}`" in page for root in roots.values())
    assert recorded(page, SMALL_STEPS + 1) == {}


def test_the_section_has_a_row_for_each_task_with_all_roots_side_by_side() -> None:
    there = {"architecture": "aarch64", "python": "3.11.2", "torch": "2.10.0+cpu"}
    both = together([result(), result(replace(RIGHT, alone="ab" * 32), task="gpt")])
    text = markdown(both, 50, there)
    in_bf16 = markdown(together([result(task="gpt_bf16")]), 8, there)
    text_of_llama = markdown(together([result(task="llama_text")]), 14, there)
    assert in_bf16.startswith(TITLE_IN_BF16 + "\n") and "| gpt_bf16 | 8 |" in in_bf16
    assert text_of_llama.startswith(TITLE_OF_TEXTS + "\n") and "| llama_text | 14 |" in text_of_llama
    assert text.startswith(TITLE + "\n") and "2.10.0+cpu" in text
    same, other = f"`{'aa' * 8}`", f"`{'ab' * 8}`"
    assert f"| digits | 50 | {same} | {same} | {same} | {same} | 0 |\n" in text
    assert f"| gpt | 50 | {same} | {same} | {same} | {other} | 0 |\n" in text


def test_the_page_has_all_tasks_of_the_matrix_with_equal_roots_on_both_machines() -> None:
    page = PAGE.read_text()
    assert other_architecture._TEXT in page
    rows = re.findall(r"^\| (\w+) \| (\d+) \| " + r"`([0-9a-f]{16})` \| " * 4 + r"(\d+) \|$", page, re.MULTILINE)
    for task, steps, *roots, findings in rows:
        # The table of x86-64 has no texts but one.
        known = roots[0] if task in MORE_TEXTS else recorded(page, int(steps))[task]
        assert ({*roots}, findings) == ({known}, "0")
    # Of the tasks in BF16, and of the texts, those that were asked for.
    assert {task for task, *_ in rows} >= {*SMALL, *TEXTS, *MORE_TEXTS, "gpt_bf16"}
