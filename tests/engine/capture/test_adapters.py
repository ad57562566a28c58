"""Adapters of `peft` (LoRA) on a frozen base, trained through `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.capture import Task

from tests.engine.capture.random_trainers import ADAPTED, Case
from tests.engine.capture.test_trainer_seam import case_of, difference

peft = pytest.importorskip("peft")


def adapted(model: str, dropout: float = 0.0) -> Case:
    case = case_of(model, optim="adamw_torch", adam_epsilon=1e-3, learning_rate=1e-2, max_grad_norm=0.5)
    case.dropout = dropout
    return case


@pytest.mark.slow
@pytest.mark.parametrize("model", ADAPTED)
def test_adapters_take_the_steps_of_train(model: str, tmp_path: Path) -> None:
    case = adapted(model, 0.2 if model == "LoRA" else 0.0)
    assert difference(case, Task.from_trainer(case.trainer(tmp_path)), tmp_path) is None
