"""Whole training steps on an interpreted GPU. PyTorch believes that it has a CUDA device: its own kernels there are
played by the processor, with other last bits (`tests.engine.running.foreign_device`), and those of this project are
executed as Triton compiles them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from roundlog.arithmetic.machine import check_machine
from roundlog.capture import Task
from roundlog.examples.baseline import BF16, FP32, computed_in
from roundlog.examples.digits import digits
from roundlog.examples.gpt import gpt
from roundlog.kernels.cuda import bf16_products, integer_products, tensor_cores
from roundlog.operators.job_arithmetic import EXACT, tensor_core_products
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer

from tests.devices.conftest import process_of
from tests.devices.interpreted_gpu import Launch, gpu
from tests.engine.kernels.triton_processes import needs_triton
from tests.engine.running import foreign_device

pytestmark = needs_triton

TEXT = Path(__file__).parents[2] / "LICENSE"


def a_convolution(precision: str) -> Task:
    task = digits(steps=1, interval=1, batch_size=8, width=4)
    return replace(task, loss=computed_in(precision, task.loss))


def a_gpt(precision: str) -> Task:
    # By tensor cores, a step of so many rows comes to another root than the exact one.
    sizes = {"batch_size": 8, "context": 16, "width": 32, "heads": 2, "layers": 1}
    return gpt(data=TEXT, steps=1, interval=1, precision=precision, **sizes)


def played(capability: int) -> torch.device:
    """Make this process, which interprets what is compiled for a capability, one that has such a device."""
    # What fake tensors of a device that is not there need, too.
    torch._C._ensureCUDADeviceGuardSet()
    of_driver = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "get_device_capability": lambda device: divmod(capability, 10),
        "get_device_name": lambda device: "an interpreted GPU",
        "_exchange_device": lambda index: index,
        "_maybe_exchange_device": lambda index: index,
    }
    of_tensors = {"data_ptr": lambda tensor: tensor.raw.data_ptr()}
    for owner, answers in ((torch.cuda, of_driver), (foreign_device.Foreign, of_tensors)):
        for name, answer in answers.items():
            setattr(owner, name, answer)
    foreign_device.NAME = "cuda"
    return torch.device("cuda", 0)


def trained(capability: int, job_dir: Path, directory: Path) -> tuple[str, set[str]]:
    """(Root of the checkpoint, names of the kernels that ran) of a training, once the device has passed its self-test,
    but for products, whose trials take minutes and are held in `test_compiled_products`. A refusal is raised."""
    launched: set[str] = set()

    def play(launch: Launch) -> None:
        launched.add(launch.program.name)
        launch.run()

    job, device = Job.read(job_dir), played(capability)
    tensor_cores.first_difference = bf16_products.first_wrong = integer_products.first_wrong = lambda *of_device: None
    integer_products.is_quicker = lambda *of_device: False  # which is timed on a card
    with foreign_device.foreign(), warnings.catch_warnings(action="error", category=UserWarning):
        check_machine(device, tensor_core_products(job.program))
        gpu().play = play
        root = Trainer(job, directory, RunOptions(device=device)).run().checkpoint_root
    return root.hex(), launched


CONVOLUTION = {"_round_and_count", "_play"}
FP32_CONVOLUTION, ATTENTION = CONVOLUTION | {"_collect"}, CONVOLUTION | {"_collect", "_uniform"}
STAGES, TENSOR_CORES = {"_measure", "_decide", "_sum"}, {"_measure", "_multiply", "_emulate"}
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("make", "precision", "arithmetic", "capability", "kernels"),
    [
        (a_convolution, FP32, EXACT, 80, FP32_CONVOLUTION),
        (a_gpt, FP32, EXACT, 90, ATTENTION),
        slow(a_gpt, FP32, EXACT, 100, ATTENTION),
        slow(a_convolution, BF16, EXACT, 80, FP32_CONVOLUTION),
        slow(a_gpt, BF16, EXACT, 90, ATTENTION | STAGES),
        slow(a_convolution, BF16, "hopper", 90, CONVOLUTION | TENSOR_CORES),
        slow(a_gpt, BF16, "hopper", 90, ATTENTION | TENSOR_CORES),
    ],
)
def test_a_step_comes_to_the_root_and_the_log_of_the_processor(
    make: Callable[[str], Task], precision: str, arithmetic: str, capability: int, kernels: set[str], tmp_path: Path
) -> None:
    job = Job.from_task(lambda: make(precision), arithmetic=arithmetic, compare=False)
    job.write(tmp_path / "job")
    here = Trainer(job, tmp_path / "here").run()
    with process_of(capability) as gpu_process:
        there = gpu_process.submit(trained, capability, tmp_path / "job", tmp_path / "there").result()
    assert there == (here.checkpoint_root.hex(), kernels)
    logs = [sorted((tmp_path / run).rglob("*.rlog")) for run in ("here", "there")]
    assert [log.read_bytes() for log in logs[0]] == [log.read_bytes() for log in logs[1]] and logs[0]
