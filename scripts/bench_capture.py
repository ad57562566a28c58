"""The cost of a capture: processor time by kind of model, and what PyTorch takes to trace one step of it.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench_capture.py [--rounds 3] [--only WORD] [--against-single-updates]

Kinds are small models of this file's, kinds of docs/models.md, and models of timm, vit-pytorch and x-transformers where
these are installed. Captures and traces take turns within a round. Printed are medians: seconds of processor time, and
the ratio of a capture to one trace by `make_fx` of the loss, its gradients, and nothing else. With
`--against-single-updates` captures take turns with captures that trace the update of every parameter; the last column
is then the ratio to those, whose programs have to be the same.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.capture.tracing.traced_optimizers import RepeatedUpdates
from roundlog.program import Program, to_json
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
    torch.manual_seed(0)
    return _task(make(), _classify, {"x": torch.randn(4, *shape), "y": torch.randint(0, 10, (4,))})


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def _of_transformers(name: str) -> Task:
    from models.kinds import discover
    from models.trying import build, task_of

    return task_of(*build(discover()[name]))


def _of_package(module: str, make: Callable[[Any], nn.Module]) -> Task:
    return _classifying(lambda: make(importlib.import_module(module)), 3, 96, 96)


def _of_timm(name: str, timm: Any) -> nn.Module:
    model: nn.Module = timm.create_model(name, num_classes=10)
    return model


def _language_model() -> Task:
    package = importlib.import_module("x_transformers")
    torch.manual_seed(0)
    layers = package.Decoder(dim=32, depth=2, heads=2)
    net = package.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)
    model = package.AutoregressiveWrapper(net)
    return _task(model, lambda model, batch: model(batch["x"]), {"x": torch.randint(0, 50, (4, 17))})


def kinds() -> Iterator[tuple[str, Make]]:
    yield "a linear layer", lambda: _classifying(lambda: nn.Linear(6, 10), 6)
    yield "a small CNN", lambda: _classifying(_cnn, 3, 32, 32)
    for name in MODELS:
        yield f"transformers {name}", partial(_of_transformers, name)
    for name in ("test_nfnet", "test_resnet", "test_vit"):
        yield (
            f"timm {name}",
            partial(_of_package, "timm", lambda timm, name=name: timm.create_model(name, num_classes=10)),
        )
    options = {"image_size": 96, "patch_size": 16, "num_classes": 10, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64}
    yield "vit-pytorch ViT", partial(_of_package, "vit_pytorch", lambda package: package.ViT(**options))
    yield "x-transformers Decoder", _language_model


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


def by_single_updates(task: Task) -> Program:
    """The program of a task, by a trace of every parameter's update."""
    with mock.patch.object(RepeatedUpdates, "apply", lambda self, update, function, inputs: function(*inputs)):
        return capture(task).program


def measure(name: str, make: Make, rounds: int, other: Callable[[Task], object]) -> str:
    """A row of the table. other: what captures are held against."""
    try:
        program = capture(make()).program
        if other is by_single_updates and to_json(program) != to_json(by_single_updates(make())):
            raise SystemExit(f"{name} is another program if the update of every parameter is traced")
        whole, trace = [], []
        for _ in range(rounds):
            task = make()
            whole.append(_seconds(partial(capture, task)))
            trace.append(_seconds(partial(other, task)))
    except (CaptureError, ImportError, RuntimeError) as error:
        return f"| {name} | - | - | not measured: {str(error).splitlines()[0][:80]} |"
    ratio = statistics.median(one / other for one, other in zip(whole, trace, strict=True))
    return f"| {name} | {len(program.nodes):,} | {statistics.median(whole):.2f} s | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="kinds whose name has this word")
    parser.add_argument("--against-single-updates", action="store_true", help="in place of traces of the loss")
    options = parser.parse_args()
    other, column = (by_single_updates, "single updates") if options.against_single_updates else (traced, "one trace")
    warnings.simplefilter("ignore")
    print(f"| kind | operators | capture | of {column} |\n|---|---|---|---|", flush=True)
    for name, make in kinds():
        if options.only in name:
            print(measure(name, make, options.rounds, other), flush=True)


if __name__ == "__main__":
    main()
