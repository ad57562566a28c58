"""The process that plays one machine: every job trained, audited by a log, and audited without one."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.capture.captured import model_tensors
from roundlog.examples.baseline import PlainTraining
from roundlog.execution import Batches
from roundlog.operators.cpu.gemm import sum_product
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer

from machines.tasks import SMALL, SMALL_IN_BF16, TEXTS

_VERIFIED = 0.25
"""The share of a log's entries that an audit resolves itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one task on one machine: roots and digests in hex."""

    trained: str
    audited: str
    alone: str
    findings: int
    unreadable: int
    plain32: str
    plain64: str
    seconds: float

    @property
    def roots(self) -> set[str]:
        return {self.trained, self.audited, self.alone}


def kernels(device: str) -> str:
    """A digest of what this machine's FP64 kernels make of some numbers."""
    generator = torch.Generator().manual_seed(0)
    a, b, x = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).to(device)
        for shape in ((64, 333), (333, 64), (20_000,))
    )
    image = torch.randn(2, 8, 16, 16, dtype=torch.float64, generator=generator).to(device)
    kernel = torch.randn(8, 8, 3, 3, dtype=torch.float64, generator=generator).to(device)
    made = [
        a @ b,
        # The engine multiplies with numpy where it has no tiles.
        torch.from_numpy(a.cpu().numpy() @ b.cpu().numpy()),
        sum_product(a.cpu().float(), b.cpu().float())[0],
        torch.nn.functional.conv2d(image, kernel),
        torch.log1p(x.abs()),
        torch.tanh(x),
        torch.erf(x),
        x.sum(),
    ]
    digest = hashlib.sha256()
    for tensor in made:
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def plain(task: Task, job: Job, dtype: torch.dtype, device: str) -> str:
    """A digest of the model that plain PyTorch trains from the job's initial state, on the job's batches."""
    # The initial state was drawn where the job was made: torch's random numbers differ between machines.
    with torch.no_grad():
        for name, tensor in model_tensors(task.model).items():
            tensor.copy_(job.initial[name])
    task.model.to(device)
    training = PlainTraining(task, dtype)
    batches = Batches(job.dataset, job.spec)
    torch.manual_seed(0)
    for step in range(job.spec.steps):
        fields = zip(job.dataset, batches.load(step), strict=True)
        training.step(step, {name: field.to(device) for name, field in fields})
    digest = hashlib.sha256()
    for tensor in training.model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def be_a_machine(plan_path: Path) -> None:
    """Runs the plan: {"device", "jobs": [{"job", "run", "log", "task" or null, "steps", "parts"}]}; prints
    JSON lines, first the kernels' digest, then an outcome for each job. parts: micro-batches of an audit without a
    log."""
    plan = json.loads(plan_path.read_text())
    device = plan["device"]
    print(json.dumps({"kernels": kernels(device)}), flush=True)
    for entry in plan["jobs"]:
        started = time.monotonic()
        job, room = Job.read(Path(entry["job"])), Path(entry["run"])
        last = job.spec.intervals
        trained = Trainer(job, room / "trained", RunOptions(device=device, keep_every=last)).run()
        log = Path(entry["log"]) if entry["log"] else trained.log_dir
        audited = Auditor(
            job, room / "audited", RunOptions(device=device, keep_every=last), log_dir=log, verify_log=_VERIFIED
        ).run()
        options = RunOptions(device=device, keep_every=last, micro_batches=entry["parts"])
        alone = Auditor(job, room / "alone", options).run()
        digests = ["", ""]
        if entry["task"] is not None:
            make = (SMALL | SMALL_IN_BF16 | TEXTS)[entry["task"]]
            digests = [plain(make(entry["steps"]), job, dtype, device) for dtype in (torch.float32, torch.float64)]
        outcome = Outcome(
            trained=trained.checkpoint_root.hex(),
            audited=audited.checkpoint_root.hex(),
            alone=alone.checkpoint_root.hex(),
            findings=len(audited.findings),
            unreadable=len(audited.unreadable),
            plain32=digests[0],
            plain64=digests[1],
            seconds=round(time.monotonic() - started, 1),
        )
        print(json.dumps(asdict(outcome)), flush=True)
