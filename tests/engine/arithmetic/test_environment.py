"""A step is computed in the right floating-point environment on every thread, whatever this process does to its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch
from machines.environment_control import CHANGES, NEAREST, ROUNDING, flush, reaction, set_rounding
from roundlog.arithmetic import DisturbedError, MachineError, check_machine, retry_disturbed, right_float_mode
from roundlog.capture import Task
from roundlog.execution import NonFiniteError
from roundlog.kernels import environment, threads
from roundlog.kernels.environment import ENVIRONMENT, FPCR, MXCSR, Register, computes_right, right_environment
from roundlog.kernels.threads import in_parts
from roundlog.operators import REGISTRY
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.tasks import small_task

needs_modes = pytest.mark.skipif(not ROUNDING, reason="it is not known how threads of this machine are set")


UP = ROUNDING.get("up")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    ENVIRONMENT.put_right()
    if ROUNDING:
        # On x86-64, fesetround sets the x87 unit too, which the engine does not use and so does not put right, but some
        # tests' oracles do (np.longdouble). The kernels' threads have inherited it from here.
        threads.on_every_thread(lambda: set_rounding(NEAREST) is None)


def task() -> Task:
    """Some of its weights begin at zero and become subnormal, others are rounded in every step."""
    torch.manual_seed(3)
    model = nn.Linear(40, 30)
    model.weight.data[:, :20] = 0.0
    loss = lambda model, batch: model(batch["x"]).sum() + (model(batch["x"]) ** 2).sum() * 0.01  # noqa: E731
    data = {"x": torch.randn(8, 40) * torch.logspace(-43, 0, 40)}
    return small_task(model, loss, data, batch_size=4, steps=4, interval=2)


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_task(task, compare=False)


@pytest.fixture(scope="module")
def right(job: Job, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Trainer(job, tmp_path_factory.mktemp("right")).run().checkpoint_root


@needs_modes
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_thread_is_set_to_is_read_put_right_and_put_back(change: str) -> None:
    assert ENVIRONMENT.is_right() and computes_right()
    CHANGES[change]()
    assert not ENVIRONMENT.is_right() and not computes_right()
    with right_environment():
        assert ENVIRONMENT.is_right() and computes_right()
    assert not ENVIRONMENT.is_right() and not computes_right()


@needs_modes
@pytest.mark.parametrize("change", CHANGES)
def test_a_process_that_does_not_compute_as_ieee_754_says_is_told_so(change: str) -> None:
    check_machine(torch.device("cpu"))
    CHANGES[change]()
    said = "flushes subnormal numbers to zero" if change == "flushing" else "does not round to nearest"
    with pytest.raises(MachineError, match=said):
        check_machine(torch.device("cpu"))


# Bits of FPCR as Arm has them, of MXCSR as Intel.
WRONG = [
    *((FPCR, bit) for bit in (1 << 24, 1 << 23, 1 << 22, 3 << 22, 1 << 1, 1 << 0)),
    *((MXCSR, bit) for bit in (1 << 15, 1 << 14, 1 << 13, 3 << 13, 1 << 6)),
]


@pytest.mark.parametrize(("register", "bit"), WRONG)
def test_a_word_that_flushes_or_rounds_otherwise_is_read_put_right_and_put_back(register: Register, bit: int) -> None:
    # Exceptions that trap or were raised, half precision and which NaN comes out.
    others = 0x1F80 if register is MXCSR else 1 << 26 | 1 << 25 | 1 << 19 | 0x9F00
    assert register.is_right(0) and register.is_right(others)
    word = others | bit
    assert not register.is_right(word)
    assert register.put_right(word) == others
    assert register.put_back(others | 1 << 40, word) == word | 1 << 40


@needs_modes
@pytest.mark.parametrize("change", CHANGES)
def test_the_negative_control_sees_each_change_noticed_on_every_thread(change: str) -> None:
    assert reaction(CHANGES[change]).is_right
    assert ENVIRONMENT.is_right() and computes_right()
    # torch's own threads, too, which later tests compute on.
    torch.set_num_threads(3)
    check_machine(torch.device("cpu"))


@needs_modes
@pytest.mark.parametrize(("change", "when"), [("flushing", -1), ("flushing", 0), ("up", -1)])
def test_a_changed_environment_changes_no_root(change: str, when: int, job: Job, right: bytes, tmp_path: Path) -> None:
    """Before the run, or after a step of it."""

    def on_step(event: StepEvent) -> None:
        if event.step == when:
            CHANGES[change]()

    if when < 0:
        CHANGES[change]()
    trained = Trainer(job, tmp_path / "train", RunOptions(on_step=on_step)).run()
    assert trained.checkpoint_root == right
    # The setting of the caller is back.
    assert not ENVIRONMENT.is_right()
    audit = Auditor(job, tmp_path / "audit", RunOptions(on_step=on_step), log_dir=trained.log_dir, verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings) == (right, [])


def meddle(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int) -> None:
    """So many times, the environment changes while a step loads a state."""
    source = REGISTRY["state"]
    original, left = type(source).load, [None] * times  # type: ignore[attr-defined]

    def load(*arguments: object) -> object:
        if left:
            left.pop()
            change()
        return original(source, *arguments)

    monkeypatch.setattr(source, "load", load)


@needs_modes
@pytest.mark.parametrize("change", ["flushing", "up"])
def test_a_step_during_which_it_changes_is_computed_again(
    change: str, job: Job, right: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle(monkeypatch, CHANGES[change], 1)
    trained = Trainer(job, tmp_path / "train").run()
    assert trained.checkpoint_root == right and ENVIRONMENT.is_right()
    meddle(monkeypatch, CHANGES[change], 1)
    audit = Auditor(job, tmp_path / "audit", log_dir=trained.log_dir, verify_log=1.0).run()
    assert (audit.checkpoint_root, audit.findings, audit.unreadable) == (right, [], [])
    meddle(monkeypatch, CHANGES[change], 1)
    cut = Auditor(job, tmp_path / "cut", RunOptions(micro_batches=2), log_dir=trained.log_dir, verify_log=1.0).run()
    assert (cut.checkpoint_root, cut.findings, cut.unreadable) == (right, [], [])


@needs_modes
def test_a_step_that_is_disturbed_again_and_again_is_refused(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle(monkeypatch, flush, 10**6)
    with pytest.raises(MachineError, match=r"^step 0: while it was computed, a library .* or leave it out$"):
        Trainer(job, tmp_path).run()
    assert ENVIRONMENT.is_right()


@needs_modes
def test_a_stop_in_a_disturbed_step_is_none() -> None:
    with pytest.raises(DisturbedError), right_float_mode("step 1"):
        flush()
        raise NonFiniteError.__new__(NonFiniteError)
    again = []

    def compute() -> int:
        with right_float_mode("step 2"):
            if not again:
                set_rounding(ROUNDING["up"])
                raise NonFiniteError.__new__(NonFiniteError)
            return 7

    assert retry_disturbed(compute, lambda: again.append(1)) == 7 and again == [1]


@needs_modes
def test_a_thread_of_the_kernels_that_is_changed_disturbs_and_is_put_right() -> None:
    before = threads.disturbed()
    torch.set_num_threads(3)
    main = threading.current_thread()

    def part(start: int, stop: int) -> None:
        if threading.current_thread() is not main:
            flush()

    with pytest.raises(DisturbedError, match=r"^this work: "), right_float_mode("this work"):
        in_parts(part, 3, 1 << 30)
    assert threads.disturbed() == before + 2
    seen: list[bool] = []
    with right_float_mode("the next"):
        in_parts(lambda start, stop: seen.append(ENVIRONMENT.is_right()), 3, 1 << 30)
    assert seen == [True] * 3


def test_the_code_for_arm_reads_and_writes_its_register() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine()
    written = machine.emit_assembly(llvm.parse_assembly(FPCR.code))
    assert "mrs\tx0, FPCR" in written and "msr\tFPCR, x0" in written
    assert isinstance(environment.ENVIRONMENT, environment.Environment)


@pytest.mark.slow
@needs_modes
def test_a_worker_thread_that_rounds_otherwise_is_noticed() -> None:
    # Threads inherit the mode that their maker has at that moment, and keep it when their maker returns to another.
    script = f"""
import ctypes, torch
from roundlog.arithmetic import MachineError, check_machine
torch.set_num_threads(2)
fesetround = ctypes.CDLL(None).fesetround
fesetround({UP})
torch.ones(1 << 20) + 1  # the pool starts
fesetround(0)
try:
    check_machine(torch.device("cpu"))
except MachineError:
    print("noticed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "noticed", done.stderr


FORKED = """
import os, signal
import numpy as np, torch
from roundlog.kernels.reducing import sum_runs
from roundlog.kernels.threads import on_every_thread
torch.set_num_threads(3)
many = np.ones((8, 1 << 18), dtype=np.float32)
sum_runs(many[None])  # the kernels' threads start
child = os.fork()
if not child:
    signal.alarm(30)
    asked = on_every_thread(lambda: True)
    os._exit(0 if asked and (sum_runs(many[None]).total == 1 << 18).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_was_forked_does_not_wait_for_its_parents_threads() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "0", done.stdout + done.stderr
