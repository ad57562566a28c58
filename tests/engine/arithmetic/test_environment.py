"""A step is computed in the right floating-point environment on every thread, whatever this process does to its own."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite.binding as llvm
import pytest
import torch
from roundlog.arithmetic import DisturbedError, MachineError, undisturbed, until_undisturbed
from roundlog.capture import Task
from roundlog.execution import NonFiniteError
from roundlog.kernels import environment, threads
from roundlog.kernels.environment import ARM, ENVIRONMENT, ByNumbers, right_environment
from roundlog.kernels.threads import in_parts
from roundlog.operators import REGISTRY
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.trainer import Trainer
from torch import nn

X86 = platform.machine() == "x86_64" and sys.platform == "linux"
needs_x86 = pytest.mark.skipif(not X86, reason="the modes below are those of x86-64 under glibc")


def set_rounding(mode: int) -> None:
    assert ctypes.CDLL("libm.so.6").fesetround(mode) == 0


def flush() -> None:
    assert torch.set_flush_denormal(True)


CHANGES: dict[str, Callable[[], None]] = {
    "flushing": flush,
    "down": lambda: set_rounding(0x400),
    "up": lambda: set_rounding(0x800),
    "towards zero": lambda: set_rounding(0xC00),
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    ENVIRONMENT.put_right()
    if X86:
        # fesetround sets the x87 unit too, which the engine does not use and so does not put right, but some tests'
        # oracles do (np.longdouble). The kernels' threads have inherited it from here.
        threads.on_every_thread(lambda: ctypes.CDLL("libm.so.6").fesetround(0) == 0)


def task() -> Task:
    """Some of its weights begin at zero and become subnormal, others are rounded in every step."""
    torch.manual_seed(3)
    model = nn.Linear(40, 30)
    model.weight.data[:, :20] = 0.0
    return Task(
        model=model,
        loss=lambda model, batch: model(batch["x"]).sum() + (model(batch["x"]) ** 2).sum() * 0.01,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(8, 40) * torch.logspace(-43, 0, 40)},
        batch_size=4,
        steps=4,
        interval=2,
        seed=0,
    )


@pytest.fixture(scope="module")
def job() -> Job:
    return Job.from_task(task())


@pytest.fixture(scope="module")
def right(job: Job, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Trainer(job, tmp_path_factory.mktemp("right")).run().checkpoint_root


@needs_x86
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_thread_is_set_to_is_read_put_right_and_put_back(change: str) -> None:
    assert ENVIRONMENT.is_right() and ByNumbers().is_right()
    CHANGES[change]()
    assert not ENVIRONMENT.is_right() and not ByNumbers().is_right()
    with right_environment():
        assert ENVIRONMENT.is_right() and ByNumbers().is_right()
    assert not ENVIRONMENT.is_right() and not ByNumbers().is_right()


@needs_x86
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", [-1, 0], ids=["before", "after a step"])
def test_a_changed_environment_changes_no_root(change: str, when: int, job: Job, right: bytes, tmp_path: Path) -> None:
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


@needs_x86
@pytest.mark.parametrize("change", CHANGES)
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


@needs_x86
def test_a_step_that_is_disturbed_again_and_again_is_refused(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle(monkeypatch, flush, 10**6)
    with pytest.raises(MachineError, match=r"^step 0: while it was computed, a library .* or leave it out$"):
        Trainer(job, tmp_path).run()
    assert ENVIRONMENT.is_right()


@needs_x86
def test_a_stop_in_a_disturbed_step_is_none() -> None:
    with pytest.raises(DisturbedError), undisturbed("step 1"):
        flush()
        raise NonFiniteError.__new__(NonFiniteError)
    again = []

    def compute() -> int:
        with undisturbed("step 2"):
            if not again:
                set_rounding(0x800)
                raise NonFiniteError.__new__(NonFiniteError)
            return 7

    assert until_undisturbed(compute, lambda: again.append(1)) == 7 and again == [1]


@needs_x86
def test_a_thread_of_the_kernels_that_is_changed_disturbs_and_is_put_right() -> None:
    before, torch_threads = threads.disturbed(), torch.get_num_threads()
    torch.set_num_threads(3)
    main = threading.current_thread()

    def part(start: int, stop: int) -> None:
        if threading.current_thread() is not main:
            flush()

    try:
        with pytest.raises(DisturbedError, match=r"^this work: "), undisturbed("this work"):
            in_parts(part, 3, 1 << 30)
        assert threads.disturbed() == before + 2
        seen: list[bool] = []
        with undisturbed("the next"):
            in_parts(lambda start, stop: seen.append(ENVIRONMENT.is_right()), 3, 1 << 30)
        assert seen == [True] * 3
    finally:
        torch.set_num_threads(torch_threads)


FAST = """
#include <xmmintrin.h>
/* What crtfastmath.o does, which -Ofast links: GCC leaves it out of shared libraries since version 13. */
__attribute__((constructor)) static void fast(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""


@needs_x86
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")
def test_a_library_that_is_loaded_in_the_middle_of_a_step_changes_no_root(
    job: Job, right: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = tmp_path / "fast.c", tmp_path / "fast.so"
    source.write_text(FAST)
    subprocess.run(["gcc", "-Ofast", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=60)
    loaded: list[bool] = []

    def load() -> None:
        ctypes.CDLL(str(library))
        loaded.append(ENVIRONMENT.is_right())

    meddle(monkeypatch, load, 1)
    assert Trainer(job, tmp_path / "train").run().checkpoint_root == right
    assert loaded == [False]


def test_a_processor_whose_register_is_not_known_refuses(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = ByNumbers()
    for module in ("roundlog.arithmetic.machine", "roundlog.kernels.threads", "roundlog.kernels.environment"):
        monkeypatch.setattr(sys.modules[module], "ENVIRONMENT", numbers)
    with undisturbed("this"):
        pass
    if torch.set_flush_denormal(True):
        try:
            with pytest.raises(MachineError, match=r"^step 0: this thread flushes .* and leave it out$"):
                Trainer(job, tmp_path).run()
        finally:
            torch.set_flush_denormal(False)


def test_the_code_for_arm_reads_and_writes_its_register() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine()
    written = machine.emit_assembly(llvm.parse_assembly(ARM))
    assert "mrs\tx0, FPCR" in written and "msr\tFPCR, x0" in written
    assert isinstance(environment.ENVIRONMENT, environment.Environment)
