"""The matrix of texts and machines (`scripts/matrix_of_texts.py`): what it runs, what is wrong in it, and a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")

from machines.profiles import MACHINES
from machines.served_texts import ASKED, CLIENTS, WAYS, ServedTexts
from machines.text_models import ARCHITECTURES, TEXT_MODELS
from matrix_of_texts import TITLE, TextRun, markdown, planned, run, wrong

ON_CPU = [name for name, machine in MACHINES.items() if machine.device == "cpu"]


def test_three_ways_a_machine_are_all_ways_of_every_model() -> None:
    assert len(WAYS) == 24 == 3 * len(ON_CPU) and len(TEXT_MODELS) == 2 * len(ARCHITECTURES) == 12
    plans = planned(TEXT_MODELS, ON_CPU, 3)
    for model in TEXT_MODELS:
        ways = [way for plan in plans.values() for name, way in plan if name == model]
        assert len(ways) == len(set(ways)) == len(WAYS)
    # One way a machine has each of the 24 on some machine, and all of a machine's are different.
    one = planned(TEXT_MODELS, ON_CPU, 1)
    assert all(len({way for _, way in plan}) == len(TEXT_MODELS) for plan in one.values())
    assert {way for plan in one.values() for _, way in plan} == set(WAYS)


def test_the_texts_fit_the_smallest_cache_and_end_chunks_everywhere() -> None:
    lengths = [len(asked.prompt) for asked in ASKED]
    assert len(ASKED) == CLIENTS and {length % 7 for length in lengths} >= {0, 1, 6}
    least = min(way.positions for way in WAYS)
    assert max(len(asked.prompt) + asked.new_tokens for asked in ASKED) <= least
    assert {asked.sampling.temperature > 0 for asked in ASKED} == {True, False}


SERVED = ServedTexts([f"{number:064x}" for number in range(CLIENTS)], f"{CLIENTS - 1:064x}", 0, ["p", "q", "p"], 1.5)


def runs(*found: ServedTexts) -> Sequence[TextRun]:
    return [TextRun(f"machine {number}", "gpt2_fp32", WAYS[number], one) for number, one in enumerate(found)]


def test_another_receipt_and_a_text_that_is_not_right_are_told() -> None:
    assert wrong(runs(SERVED, SERVED)) == []
    for other, said in (
        (replace(SERVED, receipts=["ff" * 32, *SERVED.receipts[1:]]), "other receipts of the requests [0]"),
        (replace(SERVED, alone="ff" * 32), "another receipt without a server"),
        (replace(SERVED, wrong=2), "2 texts that a repetition does not find right"),
    ):
        (sentence,) = wrong(runs(SERVED, other))
        assert sentence.startswith("gpt2_fp32 on machine 1, ") and sentence.endswith(said)


def test_a_row_counts_receipts_and_plain_results() -> None:
    other = replace(SERVED, receipts=["ff" * 32, *SERVED.receipts[1:]], plain=["r", "q", "p"])
    text = markdown(runs(SERVED, other))
    assert text.startswith(TITLE + "\n") and "in 0 minutes" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| gpt2_fp32 ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == ["2", "2", "2", "18", "9"] and cells[7:] == ["0", "3"]


def has_one_receipt(found: Sequence[TextRun]) -> None:
    assert wrong(found) == []
    for model in {one.model for one in found}:
        assert len({tuple(one.found.receipts) for one in found if one.model == model}) == 1


@pytest.mark.slow
def test_a_sample_has_one_receipt_for_each_request(tmp_path: Path) -> None:
    """On machines of which plain PyTorch has several results."""
    found = run(planned(["gpt2_fp32", "llama_bf16"], ["native", "compatible"], 1), tmp_path)
    assert len(found) == 4
    has_one_receipt(found)
    assert len({digest for one in found for digest in one.found.plain}) > 4


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.matrix
@pytest.mark.timeout(7200)
def test_every_model_has_one_receipt_for_each_request_on_every_machine(tmp_path: Path) -> None:
    has_one_receipt(run(planned(TEXT_MODELS, ON_CPU, 1), tmp_path))
