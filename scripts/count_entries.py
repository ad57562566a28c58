"""The contents of a rounding log in numbers: entries by operator, bytes a step, and the share of outputs of long sums.

    .venv/bin/python scripts/count_entries.py [--model gpt12m|gpt2|resnet50|...] [--steps 3] [--precision bf16]
        [--attention TOKENS | --sums]

--attention takes causal attention of a row of so many tokens, PyTorch's own, instead of a model: 4 heads of 64 numbers.
--sums takes single sums of normally distributed numbers: what share of their outputs is logged.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from bench_engine import MODELS, PRECISIONS, Certified, task_of
from roundlog.capture import Task
from roundlog.execution import Batches
from roundlog.log import LogWriter
from roundlog.operators import Inexact, operator
from roundlog.rounding import Recorder
from roundlog.training.job import Job
from roundlog.training.trainer import log_header
from torch import nn
from torch.nn import functional as F

HEADS = 4
LENGTHS = (512, 4096, 1 << 16, 1 << 20)
NUMBERS = 1 << 28
"""Numbers that are drawn for every length."""


def of_a_job(name: str, job: Job, steps: int) -> int:
    """Prints what stands in the log of some steps. Returns its bytes a step."""
    recorder = Recorder(job.spec.log_guard)
    training, batches = Certified(job, torch.device("cpu")), Batches(job.dataset, job.spec)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        with LogWriter(path, log_header(job, 0)) as writer:
            for step in range(steps):
                training.step(step, batches.load(step), recorder)
                log = recorder.take()
                for index, entries in log.items():
                    found[job.program.nodes[index].op] += len(entries)
                writer.append(step, log)
        size = path.stat().st_size
    print(f"{name}: {found.total() // steps:,} entries and {size // steps:,} bytes a step")
    for op, count in found.most_common():
        print(f"  {op}: {count // steps:,} ({count / found.total():.0%})")
    return size // steps


def attention(tokens: int, precision: str) -> Task:
    torch.manual_seed(0)
    model, rows = nn.Linear(256, 3 * 256), torch.randn(2, tokens, 256)

    def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            q, k, v = model(batch["x"]).view(1, tokens, 3, HEADS, 64).permute(2, 0, 3, 1, 4).unbind(0)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).float().square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(
        model=model, loss=loss, optimizer=optimizer, dataset={"x": rows}, batch_size=1, steps=1, interval=1, seed=0
    )


def of_single_sums() -> None:
    op = operator("sum")
    assert isinstance(op, Inexact)
    generator = torch.Generator().manual_seed(0)
    for terms in LENGTHS:
        logged = outputs = 0
        while outputs * terms < NUMBERS:
            x = torch.randn(max(1, (1 << 24) // terms), terms, generator=generator)
            recorder = Recorder(4)
            recorder.round(0, op, [x], {"dims": (1,)})
            logged += sum(len(entries) for entries in recorder.take().values())
            outputs += len(x)
        print(f"sums of {terms:,} terms: {logged / outputs:.2%} of {outputs:,} outputs are logged", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--attention", type=int, metavar="TOKENS")
    parser.add_argument("--sums", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.sums:
        of_single_sums()
    elif options.attention:
        job = Job.from_task(lambda: attention(options.attention, options.precision))
        size = of_a_job(f"attention of {options.attention} tokens in {options.precision}", job, 1)
        print(f"{size / (HEADS * options.attention**2):.2g} bytes a score")
    else:
        job = Job.from_task(lambda: task_of(options.model, options.steps, options.precision))
        of_a_job(f"{options.model} in {options.precision}", job, options.steps)


if __name__ == "__main__":
    main()
