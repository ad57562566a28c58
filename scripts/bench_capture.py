"""The cost of a capture: processor time by kind of model, and what PyTorch takes to trace one step of it.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench_capture.py [--rounds 3] [--only WORD]

Kinds are small models of this file's, and kinds of docs/models.md. What is measured takes turns within a round.
Printed are medians: seconds of a capture, and its milliseconds for each operator of the program; those of a capture
that traces once and watches no steps, as programs of one step are; and the ratio of a capture to one trace by `make_fx`
of the loss, its gradients, and nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from roundlog.capture import CaptureError, Task, capture
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

MODELS = ("gpt2", "bert", "t5", "vit", "mamba", "mixtral")
"""Kinds of docs/models.md."""

Make = Callable[[], Task]


def _task(model: nn.Module, loss: Any, dataset: Mapping[str, torch.Tensor]) -> Task:
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False),
        dataset=dataset,
        batch_size=2,
        steps=4,
        interval=2,
        seed=1,
    )


def _classify(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def _classifying(make: Callable[[], nn.Module], *shape: int) -> Task:
    return _task(make(), _classify, {"x": torch.randn(4, *shape), "y": torch.randint(0, 10, (4,))})


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def _layers() -> nn.Module:
    """24 layers of width 128."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 24), nn.Flatten(), nn.Linear(16 * 128, 10))


def _of_transformers(name: str) -> Make:
    from models.kinds import discover
    from models.trying import build, task_of

    return partial(task_of, *build(discover()[name]))


def kinds() -> Iterator[tuple[str, Make]]:
    yield "a linear layer", lambda: _classifying(lambda: nn.Linear(6, 10), 6)
    yield "a small CNN", lambda: _classifying(_cnn, 3, 32, 32)
    yield "24 layers of width 128", lambda: _classifying(_layers, 16, 128)
    for name in MODELS:
        yield f"transformers {name}", _of_transformers(name)


def traced(task: Task) -> None:
    """The loss and its gradients by make_fx, with fake tensors."""
    model = task.model
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    def step(state: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> list[torch.Tensor | None]:
        def call(*arguments: Any, **options: Any) -> Any:
            return functional_call(model, state, arguments, options)

        loss = task.loss(call, batch)  # type: ignore[arg-type]
        return list(torch.autograd.grad(loss, [state[name] for name in trained], allow_unused=True))

    make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(state, task.batch(torch.arange(task.batch_size)))


def _seconds(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def measure(name: str, make: Make, rounds: int) -> str:
    """A row of the table."""
    try:
        operators = len(capture(make).program.nodes)
        whole, once, trace = [], [], []
        for _ in range(rounds):
            whole.append(_seconds(partial(capture, make)))
            once.append(_seconds(partial(capture, make, once=True)))
            trace.append(_seconds(partial(traced, make())))
    except (CaptureError, ImportError, RuntimeError) as error:
        return f"| {name} | - | - | - | - | not measured: {str(error).splitlines()[0][:80]} |"
    ratio = statistics.median(one / other for one, other in zip(whole, trace, strict=True))
    seconds, of_one = statistics.median(whole), statistics.median(once)
    each = f"{1000 * seconds / operators:.2f} ms | {1000 * of_one / operators:.2f} ms"
    return f"| {name} | {operators:,} | {seconds:.2f} s | {each} | {ratio:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="kinds whose name has this word")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| kind | operators | capture | an operator | once | of one trace |\n|---|---|---|---|---|---|", flush=True)
    for name, make in kinds():
        if options.only in name:
            print(measure(name, make, options.rounds), flush=True)


if __name__ == "__main__":
    main()
