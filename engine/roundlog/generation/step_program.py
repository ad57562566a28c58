"""Steps of a module as a program that is called like a function: it takes tensors in the place of some of its states,
and gives its states afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from roundlog.capture import Task, capture, paused, raising_defects
from roundlog.capture.captured import model_tensors
from roundlog.execution import Executor
from roundlog.generation.kept_programs import keep_program, kept_program
from roundlog.operators import StepInputs
from roundlog.operators.job_arithmetic import EXACT, with_arithmetic
from roundlog.program import Program
from roundlog.rounding import Follower
from roundlog.spec import MIN_LOG_GUARD

Tensors = Mapping[str, torch.Tensor]
"""States by name: `parameter/...`, `buffer/...`."""


class StepProgram:
    """A captured step of a module without data. Its results do not depend on the machine."""

    def __init__(
        self,
        module: nn.Module,
        arithmetic: str = EXACT,
        tell: Callable[[float], None] = lambda share: None,
        *,
        name: str | None = None,
    ) -> None:
        """module: called without arguments, it gives a loss that depends on its parameter `unused`. arithmetic: of its
        products of BF16 matrices, if it has any. tell: called with the share of this that is done. name: of the program
        where programs are kept, from where it is taken if the module has its states. Raises CaptureError, DefectError,
        ProgramError."""
        self.initial: dict[str, torch.Tensor]
        """The states that the module begins with."""
        own = {state: tensor for state, tensor in model_tensors(module).items() if tensor.layout == torch.strided}
        if name is not None and (kept := kept_program(name)) is not None and _fits(kept[0], own):
            program, self._schedule = kept
            self.initial = {state: own[state].detach().clone().contiguous() for state in program.state_names}
            tell(1.0)
        else:
            program = self._capture(module, tell)
            if name is not None and _fits(program, own):
                keep_program(name, program, self._schedule)
        self._executor = Executor(with_arithmetic(program, arithmetic))
        self._rounding = Follower.without_log(MIN_LOG_GUARD)
        self._data = [torch.zeros(1) for _ in program.fields]

    def _capture(self, module: nn.Module, tell: Callable[[float], None]) -> Program:
        parameter = module.get_parameter("unused")
        task = Task(
            model=module.eval(),
            loss=lambda model, batch: model(),
            optimizer=torch.optim.SGD([parameter], lr=0.0),
            dataset={"none": torch.zeros(1)},
            batch_size=1,
            steps=1,
            interval=1,
            seed=0,
        )
        with paused(), raising_defects():
            captured = capture(lambda: task, tell, once=True)
        self._schedule = captured.schedule[0]
        self.initial = dict(captured.states)
        return captured.program

    @property
    def program(self) -> Program:
        return self._executor.program

    def run(self, given: Tensors, kept: Tensors, *, seed: int = 0, step: int = 0) -> dict[str, torch.Tensor]:
        """The states after a step from those that are given, those that are kept, and the initial ones, the first that
        there is. seed, step: keys of its draws. Raises StoppedError, MachineError, DisturbedError."""
        names = self.program.state_names
        before = [given[name] if name in given else kept.get(name, self.initial[name]) for name in names]
        inputs = StepInputs(
            states=before, data=self._data, schedule=self._schedule, seed=seed, step=step, device=torch.device("cpu")
        )
        return dict(zip(names, self._executor.run(inputs, self._rounding).states, strict=True))


def _fits(program: Program, own: Tensors) -> bool:
    """Whether a module has all states of a program. own: its tensors."""
    return all(
        state in own and (own[state].shape, own[state].dtype) == (kind.shape, kind.dtype.torch_dtype)
        for state, kind in program.states.items()
    )
