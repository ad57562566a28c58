"""The cost of certified training: steps of the trainer and the auditor against plain PyTorch steps, interleaved.

    .venv/bin/python scripts/bench_engine.py [--rounds 7] [--model gpt12m|gpt2|...] [--device cuda] [--json FILE]
        [--precision bf16 [--arithmetic hopper]] [--processor-time] [--without-avx512]

Every round times one step of each: plain FP64 and FP32 PyTorch (eager, the same optimizer), the trainer (with its log),
the auditor (following that log, 5 % verified), and the auditor alone. What is printed are medians, and ratios taken
within each round, because machines are noisy. Hashing is the state root of one checkpoint, against INTERVAL steps.
Memory is the peak of fresh processes that do nothing but two steps of one kind. On a CUDA device, it is the memory
there; TF32 is off, the clock is read when the device has finished, and hashing includes the copy to the CPU. With
--without-avx512, every library computes as on a processor that has AVX2 and FMA only.

With --precision bf16 the loss is computed under autocast, and trainer and auditor are held against the trainer of the
same task in FP32 (its time, memory and log) and a plain step under autocast. With --arithmetic their products and
convolutions are those of tensor cores, and the trainer of the exact ones in BF16 is timed beside them. The bound of a
step's memory is the one that jobs are refused by. --processor-time counts the processor time of all threads instead of
the wall clock, for machines that have other work to do.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from machines.profiles import without_avx512
from roundlog.capture import Task
from roundlog.commitments import state_root
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.examples.baseline import PlainTraining
from roundlog.examples.cifar10 import resnet50, vgg11
from roundlog.examples.digits import digits
from roundlog.examples.gpt import TransformerBlock
from roundlog.examples.gpt2 import gpt2
from roundlog.examples.logistic import logistic
from roundlog.execution import Batches, Executor
from roundlog.kernels.cuda import has_kernels
from roundlog.log import Entries, LogWriter
from roundlog.operators import StepInputs
from roundlog.operators.job_arithmetic import EXACT
from roundlog.rounding import Follower, Recorder, Rounding
from roundlog.training.job import Job
from roundlog.training.run_cost import step_bytes
from roundlog.training.trainer import log_header
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    """12.6 million parameters: vocabulary 5000, width 384, 6 layers, tied embeddings."""

    def __init__(self, vocabulary: int = 5000, width: int = 384, layers: int = 6, context: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 6, 0.1) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.token(tokens) + self.position.weight)))
        return logits


def gpt12m(steps: int) -> Task:
    torch.manual_seed(0)
    model = GPT()
    rows = torch.randint(0, 5000, (64, 65))
    return Task(
        model=model,
        loss=lambda m, b: F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten()),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset={"x": rows[:, :-1].contiguous(), "y": rows[:, 1:].contiguous()},
        batch_size=8,
        steps=steps,
        interval=steps,
        seed=1,
    )


MODELS: dict[str, Callable[[int], Task]] = {
    "gpt12m": gpt12m,
    "digits": lambda steps: digits(steps=steps, interval=steps),
    "gpt2": lambda steps: gpt2(steps=steps, interval=steps),
    "logistic": lambda steps: logistic(steps=steps, interval=steps),
    "resnet50": lambda steps: resnet50(steps=steps, interval=steps, batch_size=16),
    "vgg11": lambda steps: vgg11(steps=steps, interval=steps),
}


PRECISIONS = ("fp32", "bf16")


def task_of(model: str, steps: int, precision: str) -> Task:
    """A task of MODELS; in bf16, its loss is computed under autocast."""
    task = MODELS[model](steps)
    in_fp32 = task.loss

    def under_autocast(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return in_fp32(model, batch)

    return dataclasses.replace(task, loss=under_autocast) if precision == "bf16" else task


class Certified:
    """The benchmark's training by the engine."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job = job
        self.device = device
        self.executor = Executor(job.program)
        self.states = [state.to(device) for state in job.initial.values()]

    def step(self, step: int, data: list[torch.Tensor], rounding: Rounding) -> None:
        inputs = StepInputs(
            states=self.states,
            data=data,
            schedule=self.job.schedule[step].to(self.device),
            seed=self.job.spec.seed,
            step=step,
            device=self.device,
        )
        self.states = self.executor.run(inputs, rounding).states


INTERVAL = 5
"""Steps between two checkpoints."""

WARM_UP = 2
"""Rounds that compile loops and fill caches, and are not counted."""


def timed(clock: Callable[[], float], work: Callable[..., object], *arguments: object) -> float:
    _finish()
    started = clock()
    work(*arguments)
    _finish()
    return clock() - started


def _finish() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def usable(name: str) -> torch.device:
    """A device to measure on, set up as the figures say."""
    device = torch.device(name)
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise SystemExit(f"there is no device {name} here to measure on: --device cpu, or cuda where there is one")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return device


def described(device: torch.device) -> dict[str, object]:
    if device.type == "cpu":
        return {"threads": torch.get_num_threads(), "processor": platform.processor() or platform.machine()}
    return {"device": torch.cuda.get_device_name(device), "Triton": has_kernels(_indexed(device))}


def _indexed(device: torch.device) -> torch.device:
    return torch.empty(0, device=device).device


class Logged:
    """A training by the engine, which writes its log to a file of a folder."""

    def __init__(self, task: Task, device: torch.device, folder: Path, arithmetic: str = EXACT) -> None:
        self.job = Job.from_task(lambda: task, arithmetic=arithmetic)
        self.training, self.recorder = Certified(self.job, device), Recorder(self.job.spec.log_guard)
        self.writer = LogWriter(folder / f"log{len(list(folder.iterdir()))}", log_header(self.job, 0))
        self.entries = 0

    def step(self, step: int, data: list[torch.Tensor]) -> None:
        self.training.step(step, data, self.recorder)

    def written(self, step: int) -> dict[int, Entries]:
        """The log of a step that has been done."""
        log = self.recorder.take()
        self.entries += sum(len(entry) for entry in log.values())
        self.writer.append(step, log)
        return log


def measure(
    model: str,
    rounds: int,
    device: torch.device,
    precision: str,
    clock: Callable[[], float],
    arithmetic: str = EXACT,
) -> dict[str, object]:
    # First, while there is most memory.
    capture, most = peak(model, precision, "trainer", device, arithmetic)
    memory = most / peak(model, "fp32", "fp64" if precision == "fp32" else "trainer", device)[1]
    steps = rounds + WARM_UP
    task = task_of(model, steps, precision)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Logged(task, device, Path(folder), arithmetic)
        job = trainer.job
        others = {"FP32 trainer": task_of(model, steps, "fp32")} if precision == "bf16" else {}
        if arithmetic != EXACT:
            others["exact trainer"] = task_of(model, steps, precision)
        beside = {name: Logged(one, device, Path(folder)) for name, one in others.items()}
        plain = {
            **({} if beside else {"plain FP64": PlainTraining(task, torch.float64, device)}),
            "plain autocast" if beside else "plain FP32": PlainTraining(task, torch.float32, device),
        }
        batches = Batches(job.dataset, job.spec)
        auditor, alone = (Certified(job, device) for _ in range(2))
        spare = Recorder(job.spec.log_guard)
        follower = Follower(job.spec.log_guard, 0.05, np.random.default_rng())
        times: dict[str, list[float]] = {}
        for step in range(steps):
            data = [field.to(device) for field in batches.load(step)]
            batch = dict(zip(job.dataset, data, strict=True))
            row = {name: timed(clock, training.step, step, batch) for name, training in plain.items()}
            for name, logged in beside.items():
                row[name] = timed(clock, logged.step, step, data)
                logged.written(step)
            row["trainer"] = timed(clock, trainer.step, step, data)
            follower.follow(step, trainer.written(step))
            row["auditor"] = timed(clock, auditor.step, step, data, follower)
            row["alone"] = timed(clock, alone.step, step, data, spare)
            spare.take()
            row["hashing"] = timed(clock, state_root, trainer.training.states)
            if step >= WARM_UP:
                for name, seconds in row.items():
                    times.setdefault(name, []).append(seconds)
        size = trainer.writer.close().bytes
        sizes = {name: logged.writer.close().bytes for name, logged in beside.items()}
    same = all(torch.equal(a, b) for a, b in zip(trainer.training.states, auditor.states, strict=True))
    if not same or follower.findings:
        raise SystemExit("trainer and auditor disagree: the figures would mean nothing")

    def ratio(a: str, b: str) -> float:
        return round(statistics.median(x / y for x, y in zip(times[a], times[b], strict=True)), 3)

    return {
        "model": model,
        "precision": precision,
        **({} if arithmetic == EXACT else {"arithmetic": arithmetic}),
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "operators": len(job.program.nodes),
        **described(device),
        "torch": torch.__version__,
        "seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
        **{f"trainer / {name}": ratio("trainer", name) for name in (*plain, *beside)},
        "auditor / trainer": ratio("auditor", "trainer"),
        "auditor without log / trainer": ratio("alone", "trainer"),
        f"hashing / {INTERVAL} trainer steps": round(ratio("hashing", "trainer") / INTERVAL, 4),
        f"peak memory, trainer / {'FP32 trainer' if beside else 'plain FP64'}": round(memory, 3),
        "bound of a step's memory, MiB": round(step_bytes(job.program, job.spec) / 2**20),
        **{
            f"bound of the {name}'s": round(step_bytes(x.job.program, x.job.spec) / 2**20) for name, x in beside.items()
        },
        "peak memory of capture, GB": round(capture / 1e9, 2),
        "log entries a step": trainer.entries // steps,
        "log bytes a step": size // steps,
        **{f"log bytes / {name}'s": round(size / of_other, 5) for name, of_other in sizes.items()},
    }


def peak(model: str, precision: str, kind: str, device: torch.device, arithmetic: str = EXACT) -> tuple[int, int]:
    """Peak memory in bytes of a fresh process, on the CPU while it captures a job, and on the device while it takes two
    steps of that kind: the trainer's, or plain ones in FP64."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_two_steps, (model, precision, kind, str(device), arithmetic))


def _two_steps(model: str, precision: str, kind: str, name: str, arithmetic: str) -> tuple[int, int]:
    device = usable(name)
    task = task_of(model, 2, precision)
    job = Job.from_task(lambda: task, arithmetic=arithmetic)
    capture = _most_resident()
    batches = Batches(job.dataset, job.spec)
    plain = PlainTraining(task, torch.float64, device) if kind == "fp64" else None
    trainer = Certified(job, device) if plain is None else None
    recorder = Recorder(job.spec.log_guard)
    if device.type == "cpu":
        # Memory that capture has given back goes back to the system, and VmHWM begins anew.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    for step in range(2):
        data = [field.to(device) for field in batches.load(step)]
        if plain is not None:
            plain.step(step, dict(zip(job.dataset, data, strict=True)))
        elif trainer is not None:
            trainer.step(step, data, recorder)
            recorder.take()
    if device.type == "cuda":
        return capture, torch.cuda.max_memory_allocated(device)
    return capture, _most_resident()


def _most_resident() -> int:
    """Bytes. Not ru_maxrss: a child begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    without_avx512()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--arithmetic", choices=[EXACT, *ARITHMETICS], default=EXACT, help="of products in bf16")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.arithmetic != EXACT and arguments.precision != "bf16":
        parser.error(f"--arithmetic {arguments.arithmetic} is for products in bf16: give --precision bf16, too")
    clock = time.process_time if arguments.processor_time else time.perf_counter
    device = usable(arguments.device)
    result = measure(arguments.model, arguments.rounds, device, arguments.precision, clock, arguments.arithmetic)
    for name, value in result.items():
        print(f"{name:>30}  {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
