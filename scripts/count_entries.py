"""The contents of a rounding log in numbers: entries by operator, bytes a step, and the share of outputs of long sums.

    .venv/bin/python scripts/count_entries.py [--model gpt12m|gpt2|resnet50|...] [--steps 3] [--precision bf16]
        [--sums]

--sums takes single sums of normally distributed numbers instead of a model: what share of their outputs is logged.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch
from bench_engine import MODELS, PRECISIONS, Certified, task_of
from roundlog.execution import Batches
from roundlog.log import LogWriter
from roundlog.operators import Inexact, operator
from roundlog.rounding import Recorder
from roundlog.training.job import Job
from roundlog.training.trainer import log_header

LENGTHS = (512, 4096, 1 << 16, 1 << 20)
NUMBERS = 1 << 28
"""Numbers that are drawn for every length."""


def of_a_model(name: str, steps: int, precision: str) -> None:
    job = Job.from_task(lambda: task_of(name, steps, precision))
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
    print(f"{name} in {precision}: {found.total() // steps:,} entries and {size // steps:,} bytes a step")
    for op, count in found.most_common():
        print(f"  {op}: {count // steps:,} ({count / found.total():.0%})")


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
    parser.add_argument("--sums", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.sums:
        of_single_sums()
    else:
        of_a_model(options.model, options.steps, options.precision)


if __name__ == "__main__":
    main()
