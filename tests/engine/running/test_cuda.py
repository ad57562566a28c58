"""On a CUDA device, training comes to the CPU's roots, with Triton's kernels and without; and products are added as
tensor cores add them, by its own or by integers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.execution import executor
from roundlog.kernels.cuda import tensor_cores
from roundlog.operators import bounds
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer

from tests.engine.running import mixed_precision
from tests.engine.running.test_tensor_core_jobs import task
from tests.engine.tasks import TASKS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("name", [*TASKS, "mixed precision"])
def test_a_device_comes_to_the_cpus_roots_and_its_log_is_as_good(
    name: str, triton: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not triton:
        for module in (executor, bounds):
            monkeypatch.setattr(module, "has_kernels", lambda device: False)
    made = Job.from_task(lambda: TASKS[name](steps=8), compare=False) if name in TASKS else mixed_precision.job(steps=8)
    made.write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    there = Trainer(job, tmp_path / "there", RunOptions(device="cuda")).run()
    assert there.state_roots == here.state_roots
    for device, log in (("cuda", here.log_dir), ("cpu", there.log_dir)):
        audit = Auditor(
            job, tmp_path / f"audit on {device}", RunOptions(device=device), log_dir=log, verify_log=0.5
        ).run()
        assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (here.checkpoint_root, [], [])


needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
DEFINED = [(name, format) for name, one in ARITHMETICS.items() for format in one.terms if format in tensor_cores.DTYPES]


@needs_triton
@pytest.mark.parametrize(("name", "format"), DEFINED)
def test_a_device_adds_products_as_the_cpu_emulates_it(name: str, format: str) -> None:
    """Tensor cores of the family, too: a device that is refused for them fails here."""
    device = torch.device("cuda", torch.cuda.current_device())
    native = tensor_cores.family(device) == name
    way = tensor_cores.ProductKernels.NATIVE if native else tensor_cores.ProductKernels.EMULATED
    assert tensor_cores.verdict(device, name, format) == tensor_cores.DeviceVerdict(way)


@pytest.mark.parametrize("name", ["hopper", "ampere"])
def test_a_job_of_tensor_cores_comes_to_the_cpus_roots(name: str, tmp_path: Path) -> None:
    Job.from_task(task, arithmetic=name, compare=False).write(tmp_path / "job")
    job = Job.read(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    there = Trainer(job, tmp_path / "there", RunOptions(device="cuda")).run()
    assert there.state_roots == here.state_roots
