"""Embeddings that leave a row out: what pads sequences learns nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from roundlog.capture import Task
from roundlog.storage import load_tensors
from roundlog.training.job import Job
from roundlog.training.trainer import Trainer
from torch import nn

WORDS, WIDTH = 9, 4


def task_of(padding: int | None) -> Task:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH, padding_idx=padding), nn.Flatten(), nn.Linear(5 * WIDTH, 3))
    with torch.no_grad():
        # PyTorch begins with zeros there; anything else shows as well whether it moves.
        model[0].weight.normal_()
    tokens = torch.randint(0, WORDS, (8, 5))
    tokens[:, 3:] = 2
    return Task(
        model=model,
        loss=lambda m, batch: nn.functional.cross_entropy(m(batch["x"]), batch["y"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        dataset={"x": tokens, "y": torch.randint(0, 3, (8,))},
        batch_size=8,
        steps=1,
        interval=1,
        seed=4,
    )


@pytest.mark.parametrize("padding", [2, -7, 0, None])
def test_the_row_that_pads_has_no_gradient_and_the_others_have_theirs(padding: int | None, tmp_path) -> None:
    task = task_of(padding)
    wide = copy.deepcopy(task.model).double()
    nn.functional.cross_entropy(wide(task.dataset["x"]), task.dataset["y"]).backward()
    gradient = wide[0].weight.grad
    job = Job.from_task(lambda: task)
    Trainer(job, tmp_path / "run").run()
    after = load_tensors(tmp_path / "run" / "checkpoints" / "00000001.safetensors", job.program.states)
    before, weight = job.initial["parameter/0.weight"], after["parameter/0.weight"]
    # After one step the momentum is the gradient.
    ours = after["slot/0.weight/momentum"]
    assert torch.allclose(ours.double(), gradient, rtol=0, atol=1e-6 * float(gradient.abs().max()))
    if padding is None:
        assert (ours[2] != 0).all()
    else:
        row = padding % WORDS
        assert ours[row].tolist() == [0.0] * WIDTH
        assert torch.equal(weight[row], before[row])
        assert not torch.equal(weight[2], before[2]) or row == 2
