"""Roots of small tasks on one device, held against those that a processor came to: a process of `on_a_device.py`.

Every task is made and captured with portable random numbers, so that the job is the same on every machine, and trained,
and audited in two parts of a batch without the log. The recorded roots are in `device_roots.json`. A version of PyTorch
may capture another program of the same task; then this machine's processor says which root is right.
"""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from roundlog.capture import portable
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer

from machines.tasks import SMALL, SMALL_IN_BF16

RECORDED = Path(__file__).with_name("device_roots.json")
STEPS = 10

ROWS: Mapping[str, tuple[str, str]] = {
    **{name: (name, "exact") for name in ("logistic", "gpt", "gpt2", "vgg11", "resnet50")},
    **{name: (name, "exact") for name in ("logistic_bf16", "gpt_bf16", "gpt2_bf16")},
    "gpt_bf16, hopper": ("gpt_bf16", "hopper"),
    "gpt2_bf16, hopper": ("gpt2_bf16", "hopper"),
    "gpt2_bf16, ampere": ("gpt2_bf16", "ampere"),
}
"""Name of a row -> a task that needs no package beside Tiebreak's own, and the arithmetic of its products."""


@dataclass(frozen=True, slots=True)
class RootRow:
    """A row of the table. `job`: hash of the spec. `expected`: the right root; `trained`, `audited`: those of
    this device; all in hex. `of`: whose root is expected, `recorded` or `processor`. `seconds`: of training."""

    name: str
    job: str
    expected: str
    trained: str
    audited: str
    of: str
    seconds: float

    @property
    def is_right(self) -> bool:
        return {self.trained, self.audited} == {self.expected}


def make_job(name: str, steps: int = STEPS) -> Job:
    """The job of a row."""
    task, arithmetic = ROWS[name]
    with portable():
        made = (SMALL | SMALL_IN_BF16)[task](steps)
        return Job.from_task(lambda: made, arithmetic=arithmetic)


def trained(job: Job, device: str) -> tuple[str, str, float]:
    """(root of a training, root of an audit without its log, seconds of the training) on a device."""
    with tempfile.TemporaryDirectory() as room:
        started = time.monotonic()
        root = Trainer(job, Path(room) / "trained", RunOptions(device=device)).run().checkpoint_root
        seconds = time.monotonic() - started
        options = RunOptions(device=device, micro_batches=2)
        return root.hex(), Auditor(job, Path(room) / "audited", options).run().checkpoint_root.hex(), round(seconds, 1)


def rows(device: str, names: list[str], recorded: Mapping[str, Any]) -> Iterator[RootRow]:
    """The rows, each as soon as it is done. recorded: as in `RECORDED`."""
    for name in names:
        job = make_job(name)
        spec = job.spec.run_id.hex()
        known = recorded["rows"].get(name, {})
        is_known = known.get("job") == spec
        expected = known["root"] if is_known else trained(job, "cpu")[0]
        root, audited, seconds = trained(job, device)
        yield RootRow(name, spec, expected, root, audited, "recorded" if is_known else "processor", seconds)


def recording() -> dict[str, Any]:
    """The contents of `RECORDED`, by this machine's processor. Raises RuntimeError if an audit disagrees."""
    found = {}
    for row in rows("cpu", list(ROWS), {"rows": {}}):
        if not row.is_right:
            raise RuntimeError(f"{row.name}: trained to {row.trained}, audited to {row.audited}")
        found[row.name] = {"job": row.job, "root": row.trained}
    return {"torch": torch.__version__.partition("+")[0], "steps": STEPS, "rows": found}


def print_rows(device: str, names: list[str]) -> None:
    """Prints a row as one JSON object a line."""
    warnings.simplefilter("ignore")
    for row in rows(device, names, json.loads(RECORDED.read_text())):
        print(json.dumps(asdict(row)), flush=True)
