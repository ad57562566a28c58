"""The example tasks: the models are the published ones, and every one is trained, logged and audited to one root."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.examples.cifar10 import resnet50, vgg11
from roundlog.examples.gpt import gpt
from roundlog.examples.gpt2 import gpt2
from roundlog.examples.logistic import logistic
from roundlog.program import DType

from tests.engine.trainings import trained_and_audited

GPT2_SMALL = {"sequence": 8, "positions": 16, "vocabulary": 50, "width": 16, "heads": 2, "layers": 2}

SMALL: dict[str, Callable[[], Task]] = {
    "resnet50": lambda: resnet50(width=4, stages=2, rows=16, batch_size=4, steps=2, interval=1),
    "vgg11 with batch norm": lambda: vgg11(width=4, batch_norm=True, rows=16, batch_size=4, steps=2, interval=1),
    "logistic": lambda: logistic(rows=64, features=16, batch_size=8, steps=4, interval=2),
    "gpt2": lambda: gpt2(**GPT2_SMALL, rows=8, batch_size=4, steps=2, interval=1),
}
FULL: dict[str, tuple[Callable[..., Task], int, int]] = {
    "resnet50": (resnet50, 23_520_842, 64),
    "vgg11": (vgg11, 9_750_922, 16),
    "logistic": (logistic, 1025, 2048),
    "gpt2": (gpt2, 124_439_808, 8),
}
"""The task, its number of parameters, its batch size."""


def of_every_step(task: Task, tmp_path) -> None:
    losses: list[float] = []
    job, result = trained_and_audited(task, tmp_path, on_step=lambda event: losses.append(event.loss))
    assert len(set(result.state_roots)) == job.spec.intervals
    assert len(losses) == job.spec.steps


@pytest.mark.slow_but("logistic")
@pytest.mark.parametrize("name", SMALL)
def test_a_small_one_is_trained_and_audited_to_one_root(name: str, tmp_path) -> None:
    of_every_step(SMALL[name](), tmp_path)


@pytest.mark.parametrize("name", FULL)
def test_the_model_has_the_published_number_of_parameters(name: str) -> None:
    make, parameters, batch_size = FULL[name]
    few_rows = {"rows": 2048} if name == "logistic" else {}
    with torch.device("meta"):
        task = make(**few_rows)
    assert sum(p.numel() for p in task.model.parameters()) == parameters
    assert task.batch_size == batch_size


IN_BF16: dict[str, Callable[[str], Task]] = {
    "gpt": lambda word: gpt(
        data=Path(__file__), steps=2, interval=1, batch_size=2, context=8, width=16, heads=2, layers=1, precision=word
    ),
    "logistic": lambda word: logistic(rows=64, features=16, batch_size=8, steps=4, interval=2, precision=word),
    "resnet50": lambda word: resnet50(width=2, stages=1, rows=16, batch_size=4, steps=2, interval=1, precision=word),
    "vgg11": lambda word: vgg11(width=2, rows=16, batch_size=4, steps=2, interval=1, precision=word),
}


@pytest.mark.slow_but("logistic")
@pytest.mark.parametrize("name", IN_BF16)
def test_one_in_bf16_is_trained_and_audited_to_one_root(name: str, tmp_path: Path) -> None:
    job, _ = trained_and_audited(IN_BF16[name]("bf16"), tmp_path)
    ops = {node.op for node in job.program.nodes if node.type.dtype is DType.BF16}
    assert ops & {"matmul", "conv2d"}
    assert DType.BF16 not in {kind.dtype for kind in job.program.states.values()}


def test_a_precision_that_is_not_known_is_refused() -> None:
    for make in IN_BF16.values():
        for word in ("fp16", ""):
            with pytest.raises(CaptureError, match=f"a precision of '{word}' is not known: choose fp32 or bf16"):
                make(word)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CaptureError, match="cannot be shared by 5 heads"):
        gpt2(**{**GPT2_SMALL, "heads": 5})
    with pytest.raises(CaptureError, match="does not fit 16 positions"):
        gpt2(**{**GPT2_SMALL, "sequence": 17})
