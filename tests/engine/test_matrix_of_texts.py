"""The matrix of texts and machines (`scripts/matrix_of_texts.py`): what it runs, what is wrong in it, and a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")

from machines.profiles import MACHINES
from machines.text_models import TEXT_MODELS
from matrix_of_texts import TextRun, planned, run, wrong

ON_CPU = [name for name, machine in MACHINES.items() if machine.device == "cpu"]


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
