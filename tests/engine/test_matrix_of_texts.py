"""The matrix of texts and machines (`scripts/matrix_of_texts.py`): what it runs, what is wrong in it, and a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")

from machines.profiles import MACHINES
from machines.served_texts import ASKED, CLIENTS, WAYS, ServedTexts
from machines.text_models import ARCHITECTURES, TEXT_MODELS
from matrix_of_texts import TextRun, planned, run, wrong

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


def runs(*found: ServedTexts) -> Sequence[TextRun]:
    return [TextRun(f"machine {number}", "gpt2_fp32", WAYS[number], one) for number, one in enumerate(found)]


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
