"""Measurements in a process of its own, under whatever hardware profile its environment makes: `papers.worker`
reads a JSON list of {"what": ..., ...} from standard input, and prints the list of what was found as its last line."""

from __future__ import annotations

import json
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roundlog.arithmetic import round_to
from roundlog.capture.captured import model_tensors
from roundlog.commitments import state_root
from roundlog.examples.baseline import PlainTraining
from roundlog.execution import Batches, Executor
from roundlog.log import Entries, LogReader, LogWriter
from roundlog.number_format import Format
from roundlog.operators import Inexact, StepInputs, operator
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding import Follower, Recorder, Rounding, payload_format
from roundlog.rounding.ovt import ThresholdFollower, ThresholdRecorder, Thresholds, Trits
from roundlog.spec import POLICY_CERTIFIED, POLICY_THRESHOLD
from roundlog.storage import save_tensors
from roundlog.training.job import Job
from roundlog.training.trainer import log_header

from papers.tasks import WARM_UP, make

SAMPLE = 1 << 16
"""Outputs of one operator that are kept for Algorithm 3."""


class Watched:
    """Another rounding. `see` is shown the index, the FP64 approximation and the result of every inexact operator."""

    def __init__(self, inner: Rounding, see: Callable[[int, torch.Tensor, torch.Tensor], None]) -> None:
        self.inner = inner
        self.see = see

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format
    ) -> torch.Tensor:
        result = self.inner.round(index, operator, inputs, attributes, format)
        self.see(index, operator.approximate(inputs, attributes), result)
        return result


class Engine:
    """A job, step by step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.executor = Executor(job.program, job.spec.f32_format)
        self.states = list(job.initial.values())
        self.batches = Batches(job.dataset, job.spec)
        loss = next(node for node in job.program.nodes if node.op == "loss")
        self.last_forward = loss.inputs[0]
        self.sizes = [n.type.numel if isinstance(operator(n.op), Inexact) else 0 for n in job.program.nodes]

    def step(self, step: int, rounding: Rounding) -> None:
        inputs = StepInputs(
            states=self.states,
            data=self.batches.load(step),
            schedule=self.job.schedule[step],
            seed=self.job.spec.seed,
            step=step,
            device=torch.device("cpu"),
        )
        self.states = self.executor.run(inputs, rounding).states

    def split(self, counts: dict[int, int]) -> list[int]:
        """[forward, backward]: before and after the loss; the optimizer counts as backward."""
        forward = sum(count for index, count in counts.items() if index <= self.last_forward)
        return [forward, sum(counts.values()) - forward]

    def parameters(self) -> dict[str, torch.Tensor]:
        named = zip(self.job.program.state_names, self.states, strict=True)
        return {name: tensor for name, tensor in named if not name.startswith("slot/")}


def job_of(ask: dict[str, Any]) -> Job:
    """The job that the customer has captured once: even random initial weights differ between machines."""
    job = Job.read(Path(ask["job"]))
    return replace(job, spec=replace(job.spec, rounding_policy=ask["policy"], rounding_bits=ask.get("bits", 32)))


def observe(ask: dict[str, Any]) -> dict[str, Any]:
    """The FP64 outputs of every inexact operator, from inputs that are the same on every machine (certified)."""
    engine = Engine(job_of({**ask, "policy": POLICY_CERTIFIED}))
    for step in range(ask["steps"]):
        seen: dict[str, np.ndarray[Any, Any]] = {}

        def see(index: int, y: torch.Tensor, _: torch.Tensor, seen: dict[str, Any] = seen) -> None:
            seen[str(index)] = y.reshape(-1)[:SAMPLE].numpy().copy()

        engine.step(step, Watched(Follower.without_log(4), see))
        np.savez(Path(ask["out"]) / f"{step}.npz", **seen)  # type: ignore[arg-type]  # a stub that knows no names
    return {"operators": [node.op for node in engine.job.program.nodes]}


def train(ask: dict[str, Any]) -> dict[str, Any]:
    """A trainer under either policy: its roots and what its log weighs."""
    job = job_of(ask)
    engine = Engine(job)
    certified = job.spec.rounding_policy == POLICY_CERTIFIED
    recorder: Recorder | ThresholdRecorder = Recorder(4)
    if not certified:
        recorder = ThresholdRecorder(Thresholds(**ask.get("thresholds", {})))
    roots, logged, packed, zipped = [], [], 0, 0
    with LogWriter(Path(ask["log"]), log_header(job, 0), payload_format(job.spec)) as writer:
        for step in range(ask["steps"]):
            engine.step(step, recorder)
            log = recorder.take()
            logged.append(engine.split({index: _logged(part) for index, part in log.items()}))
            for part in log.values():
                if isinstance(part, Trits):
                    packed += len(part.packed)
                    zipped += len(zlib.compress(part.packed.tobytes(), 6))
            writer.append(step, log)
            roots.append(state_root(engine.states).hex())
            _keep(ask, step, engine)
    steps = ask["steps"]
    return {
        "roots": roots,
        "logged": logged,
        "outputs": engine.split(dict(enumerate(engine.sizes))),
        "packed": packed // steps,
        "zipped": zipped // steps,
        "file": Path(ask["log"]).stat().st_size // steps,
        "weights": sum(4 * tensor.numel() for name, tensor in engine.parameters().items() if name[:6] == "parame"),
        "state": sum(tensor.numel() * tensor.element_size() for tensor in engine.states),
        "operators": len(job.program.nodes),
    }


def _logged(part: Entries | Trits) -> int:
    return int(np.count_nonzero(part.codes() != 1)) if isinstance(part, Trits) else len(part)


def audit(ask: dict[str, Any]) -> dict[str, Any]:
    """An auditor of the trainer's log: its roots, and how many outputs it had to round the trainer's way. Under
    `certified`, those are the outputs whose own FP64 value would have been rounded to something else."""
    job = job_of(ask)
    engine = Engine(job)
    corrections: dict[int, int] = {}

    def see(index: int, y: torch.Tensor, result: torch.Tensor) -> None:
        assert y.shape == result.shape  # or a broadcast would count what nobody has computed
        corrections[index] = int((round_to(y, job.spec.f32_format) != result).sum())

    follower: Follower | ThresholdFollower = ThresholdFollower(4)
    if job.spec.rounding_policy == POLICY_CERTIFIED:
        follower = Follower(4, 0.05, np.random.default_rng())
    rounding = Watched(follower, see) if isinstance(follower, Follower) else follower
    roots, counts = [], []
    with LogReader(Path(ask["log"]), log_header(job, 0), engine.sizes, payload_format(job.spec)) as reader:
        for step in range(ask["steps"]):
            if ask.get("without_log"):
                follower.follow(step, None)
            else:
                follower.read(reader, step)
            engine.step(step, rounding)
            counts.append(
                engine.split(follower.corrections if isinstance(follower, ThresholdFollower) else corrections)
            )
            roots.append(state_root(engine.states).hex())
            _keep(ask, step, engine)
    return {"roots": roots, "corrections": counts, "findings": len(follower.findings)}


def _keep(ask: dict[str, Any], step: int, engine: Engine) -> None:
    if "snapshots" in ask:
        save_tensors(Path(ask["snapshots"]) / f"{step}.safetensors", engine.parameters())


def plain(ask: dict[str, Any]) -> dict[str, Any]:
    """PyTorch alone, in FP32, and its losses; `order` is another seed for the order of the data, or None."""
    task = make(ask["model"], ask["arguments"], ask["steps"])
    job = Job.read(Path(ask["job"]))
    initial = {name.partition("/")[2]: tensor for name, tensor in job.initial.items() if name[:5] != "slot/"}
    task.model.load_state_dict(initial, strict=False)
    spec = job.spec if ask.get("order") is None else replace(job.spec, seed=ask["order"])
    batches, training = Batches(job.dataset, spec), PlainTraining(task)
    losses = []
    for step in range(ask["steps"]):
        losses.append(training.step(step, dict(zip(job.dataset, batches.load(step), strict=True))))
        save_tensors(Path(ask["snapshots"]) / f"{step}.safetensors", model_tensors(training.model))
    return {"losses": losses}


def timing(ask: dict[str, Any]) -> dict[str, Any]:
    """Steps of plain FP64, the trainer and the auditor under one policy, interleaved; medians of the ratios to plain
    FP64 within one round."""
    task = make(ask["model"], ask["arguments"], ask["steps"])
    job = Job.from_task(lambda: task, policy=ask["policy"])
    plain64 = PlainTraining(task, torch.float64)
    trainer, auditor = Engine(job), Engine(job)
    recorder: Recorder | ThresholdRecorder = Recorder(4)
    follower: Follower | ThresholdFollower = Follower(4, 0.05, np.random.default_rng())
    if ask["policy"] == POLICY_THRESHOLD:
        recorder, follower = ThresholdRecorder(), ThresholdFollower(4)
    rows: dict[str, list[float]] = {"plain": [], "trainer": [], "auditor": []}
    for step in range(ask["steps"]):
        batch = dict(zip(job.dataset, trainer.batches.load(step), strict=True))
        row = {"plain": _timed(plain64.step, step, batch), "trainer": _timed(trainer.step, step, recorder)}
        follower.follow(step, recorder.take())  # type: ignore[arg-type]
        row["auditor"] = _timed(auditor.step, step, follower)
        if step >= WARM_UP:
            for name, seconds in row.items():
                rows[name].append(seconds)
    return {
        "plain_seconds": statistics.median(rows["plain"]),
        "threads": torch.get_num_threads(),
        **{
            name: statistics.median(a / b for a, b in zip(rows[name], rows["plain"], strict=True))
            for name in ("trainer", "auditor")
        },
    }


def _timed(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


WORK = {"observe": observe, "train": train, "audit": audit, "plain": plain, "timing": timing}

if __name__ == "__main__":
    print(json.dumps([WORK[ask["what"]](ask) for ask in json.load(sys.stdin)]))
