"""Random training scripts, captured and trained beside PyTorch: `make fuzz-capture PROGRAMS=2000`.

Every script is captured or refused in one sentence. What is captured is trained for three steps by the engine, and by
PyTorch from a fresh copy of the script; losses, parameters and buffers have to agree."""

from __future__ import annotations

from random import Random

import torch
from roundlog.capture import Captured, CaptureError, Task, capture
from roundlog.capture.captured import model_tensors
from roundlog.capture.draws import Replay
from roundlog.capture.real_steps.eager_steps import EagerTraining
from roundlog.capture.real_steps.patched_torch import eager_torch, without_checkpoints
from roundlog.execution import Executor, NonFiniteError, StoppedError
from roundlog.operators import StepInputs
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder
from roundlog.training.sameness import confirm_same

from tests.chaos.machine import Round
from tests.fuzz.random_trainings import Training, random_training

Losses = list[float]
States = dict[str, torch.Tensor]
Drawn = list[list[torch.Tensor | None]]


class Difference(Exception):
    """A script that was captured, and is not what PyTorch trains."""


def attempt(training: Training) -> str:
    """Outcome of a script: "captured", "refused", "refused by the comparison" (capture had made something else of it),
    or "fails" (PyTorch itself cannot run it). Raises Difference, and every error that is no CaptureError."""
    try:
        plain, left = _by_pytorch(training.task(), None, 0.0)
    except Exception:
        return "fails"
    task = training.task()
    kept = _named(task)
    try:
        captured = capture(training.task)
    except CaptureError as error:
        _one_line(error)
        return "refused"
    try:
        confirm_same(captured)
    except CaptureError as error:
        _one_line(error)
        return "refused by the comparison"
    try:
        losses, states, drawn = _by_engine(task, captured)
    except NonFiniteError:
        if not captured.origin.observed() and all(x.isfinite().all() for x in (torch.tensor(plain), *left.values())):
            raise Difference("the program stops at a number that is not finite, and PyTorch has none") from None
        raise
    # What BF16 explains hides much here. The comparison of kernels before, which no rounding hides from, has passed.
    ulp, close = (2.0**-7, 2.0**-4) if training.is_short else (2.0**-23, 1e-4)
    theirs, right = _by_pytorch(training.task(), drawn, 0.0)
    noisy, noise = _by_pytorch(training.task(), drawn, ulp)
    for step, (ours, other, third) in enumerate(zip(losses, theirs, noisy, strict=True)):
        if not abs(ours - other) <= close * (abs(other) + 1e-3) + 50 * abs(third - other):
            raise Difference(f"the loss of step {step} is {ours}, and {other} by PyTorch")
    for name, tensor in right.items():
        if name not in states:  # of a dtype that programs have no state of
            if not torch.equal(tensor, _wide(kept[name])):
                raise Difference(f"{name} is no state, and steps change it")
            continue
        apart, size = float((states[name].double() - tensor).abs().max()), float(tensor.abs().max())
        if not apart <= close * (size + 1e-3) + 50 * float((noise[name] - tensor).abs().max()):
            raise Difference(f"{name} is {apart:.2g} off after three steps")
    return "captured"


def _by_engine(task: Task, captured: Captured) -> tuple[Losses, States, Drawn]:
    executor, states = Executor(captured.program), list(captured.states.values())
    losses: Losses = []
    drawn: Drawn = []
    for step in range(task.steps):
        values: dict[int, torch.Tensor] = {}
        inputs = StepInputs(
            states=states,
            data=list(_batch(task, step).values()),
            schedule=captured.schedule[step],
            seed=task.seed,
            step=step,
            device=torch.device("cpu"),
        )
        result = executor.run(inputs, Recorder(4), observe=lambda i, x, v=values: v.update({i: x.clone()}))
        losses.append(result.loss)
        drawn.append(captured.origin.drawn(values))
        states = result.states
    return losses, dict(zip(captured.program.state_names, states, strict=True)), drawn


def _by_pytorch(task: Task, drawn: Drawn | None, nudge: float) -> tuple[Losses, States]:
    """nudge: how far parameters start from where they should, relatively."""
    signs = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(1 + nudge * (torch.randint(0, 2, parameter.shape, generator=signs) * 2 - 1))
    training, losses = EagerTraining(task), []
    for step in range(task.steps):
        with eager_torch(), without_checkpoints():
            if drawn is None:
                losses.append(training.step(step, _batch(task, step)))
            else:
                with Replay(drawn[step]):
                    losses.append(training.step(step, _batch(task, step)))
    first: dict[int, str] = {}
    unique = {name: t for name, t in _named(task).items() if first.setdefault(t.untyped_storage()._cdata, name) == name}
    return losses, {name: _wide(tensor.detach()) for name, tensor in unique.items()}


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy in FP64."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64, copy=True)


def _named(task: Task) -> States:
    return model_tensors(task.model)


def _batch(task: Task, step: int) -> States:
    rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
    return {name: field[rows] for name, field in task.dataset.items()}


def _one_line(error: CaptureError) -> None:
    if "\n" in str(error) or not str(error):
        raise Difference(f"a refusal is not one sentence: {error!r}")


class Scripts(Round):
    """Twenty scripts, plain ones and some under autocast in BF16."""

    FAULTS = ("plain", "plain", "plain", "plain", "short")
    STRIKES = 20

    def strike(self, fault: str, draw: Random) -> None:
        training = random_training(draw.getrandbits(32), is_short=fault == "short")
        try:
            outcome = attempt(training)
        except StoppedError:
            outcome = "stops"
        except Exception as error:
            error.add_note(training.source)
            raise
        self.counts[outcome] += 1

    def end(self) -> list[str]:
        self.told.append(", ".join(f"{count} {what}" for what, count in sorted(self.counts.items())))
        return []
