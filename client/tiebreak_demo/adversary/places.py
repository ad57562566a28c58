"""Places of frauds in a job's program, found by the meaning of operators, not by their indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from roundlog.adjudication import Material, running_results, segments
from roundlog.arithmetic import adjacent, as_float32, format_of, held, neighbour
from roundlog.commitments import state_root, tensor_bytes
from roundlog.descriptors import describe
from roundlog.execution import Executor
from roundlog.log import Decision
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Attributes, Inexact, Tensors, operands
from roundlog.program import DType, Node, Program, first_store
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder, Window, certify, ends, without_log
from roundlog.training import Run, RunOptions, replay, replay_state

from tiebreak_demo.adversary.chains import (
    LyingChain,
    NearestChain,
    NudgedChain,
    SwappedChain,
    TruncatedChain,
    lying_chain,
)
from tiebreak_demo.adversary.frauds import AnotherProgram, AnotherRow, BentElement, Fraud, FraudKind
from tiebreak_demo.adversary.trainings import Training

_Order = Callable[[torch.Tensor], Iterable[int]]
"""The elements of an output, in the order in which they are tried."""

_CHAINS: dict[FraudKind, type[LyingChain]] = {
    FraudKind.ACCUMULATOR: NudgedChain,
    FraudKind.LAST_ROUNDING: TruncatedChain,
    FraudKind.GROUP_ORDER: SwappedChain,
    FraudKind.FP32_SUMS: NearestChain,
}

_POSITION = 2
"""Position in the batch of the sample that is swapped."""


def all_frauds(run: Run, step: int, training: Training) -> dict[FraudKind, Fraud]:
    """Frauds about a step, one of each of the training's kinds. run: an honest run of that training.

    Each takes the first element that changes the next checkpoint: one ulp often vanishes in the next rounding, and then
    there is nothing to dispute."""
    find = _Places(run, step)
    program = run.job.program
    slot = next(i for i, name in enumerate(program.state_names) if name.startswith(f"slot/{training.parameter}/"))
    column = program.schedule_names.index(training.rate)
    weight = program.state_names.index(f"parameter/{training.parameter}")

    def ulp(kind: FraudKind, operator: int, order: _Order = _largest_first) -> Fraud:
        return find.element(kind, operator, order, _one_ulp)

    make: dict[FraudKind, Callable[[FraudKind], Fraud]] = {
        FraudKind.GRADIENT: lambda kind: ulp(kind, gradient(program, slot)),
        FraudKind.STORED: lambda kind: ulp(kind, first_store(program) + slot, _from_the_middle),
        FraudKind.LOADED: lambda kind: ulp(kind, find.of_slot("state", slot)),
        FraudKind.ROW: lambda kind: find.row(),
        FraudKind.RATE: lambda kind: find.element(
            kind, find.of_slot("schedule", column), _from_the_middle, lambda x: 2 * x
        ),
        FraudKind.ROUNDING: lambda kind: find.rounding(),
        FraudKind.MASK: lambda kind: find.element(kind, find.first("uniform"), _from_the_middle, _the_other_side),
        FraudKind.FUNCTION: lambda kind: ulp(kind, find.first("exp"), _from_the_middle),
        FraudKind.PROGRAM: lambda kind: find.program(),
        FraudKind.ACTIVATION: lambda kind: ulp(kind, activation(program)),
        FraudKind.CONVERSION: lambda kind: ulp(kind, find.conversion(weight)),
        FraudKind.MASTER: lambda kind: ulp(kind, updated(program, weight)),
        **{kind: find.chain for kind in _CHAINS},
    }
    return {kind: make[kind](kind) for kind in training.kinds}


def wrong_activation(run: Run, step: int) -> Fraud:
    """A fraud about one BF16 activation in a step. run: an honest run of any job that has one."""
    kind = FraudKind.ACTIVATION
    return _Places(run, step).element(kind, activation(run.job.program), _largest_first, _one_ulp)


def activation(program: Program) -> int:
    """The first product of matrices in BF16 whose second factor is a parameter."""
    parameters = {slot for slot, name in enumerate(program.state_names) if name.startswith("parameter/")}

    def is_parameter(value: int) -> bool:
        node = program.nodes[_before(program, value, ("permute", "reshape", "to_bf16"))]
        return node.op == "state" and node.attributes["slot"] in parameters

    return next(
        q
        for q, node in enumerate(program.nodes)
        if node.op in ("matmul", "tensor_core_matmul")
        and node.type.dtype is DType.BF16
        and is_parameter(node.inputs[1])
    )


def updated(program: Program, slot: int) -> int:
    """The operator whose output a state slot stores."""
    return program.nodes[first_store(program) + slot].inputs[0]


def gradient(program: Program, slot: int) -> int:
    """The operator that computes a gradient whose running average an optimizer keeps in a state slot. The slot stores
    the weighted old average plus the gradient, which may be weighted, too."""
    return _before(program, program.nodes[updated(program, slot)].inputs[-1], ("mul", "reshape", "permute", "to_f32"))


def _before(program: Program, value: int, ops: Sequence[str]) -> int:
    """A value as it was before operators of these names, each of its first input."""
    while program.nodes[value].op in ops:
        value = program.nodes[value].inputs[0]
    return value


def _bits(x: torch.Tensor) -> int:
    """The bit pattern of a single element."""
    return int.from_bytes(tensor_bytes(x), "little")


def _one_ulp(x: torch.Tensor) -> torch.Tensor:
    format = format_of(x.dtype)
    return held(neighbour(as_float32(x), 1, format), format)


def _the_other_side(x: torch.Tensor) -> torch.Tensor:
    """A number that any dropout decides about otherwise."""
    return torch.where(x < 0.5, 1 - 2.0**-24, 0.0)


def _largest_first(output: torch.Tensor) -> Iterable[int]:
    order: list[int] = output.reshape(-1).abs().argsort(descending=True, stable=True).tolist()
    return order


def _from_the_middle(output: torch.Tensor) -> Iterable[int]:
    return range(output.numel() // 2, output.numel())


class _Places:
    def __init__(self, run: Run, step: int) -> None:
        self._run, self._job, self._step = run, run.job, step
        self._before = replay_state(run, step)
        self._outputs: dict[int, torch.Tensor] = {}
        self._doubtful = _Doubtful(self._job.spec.log_guard)
        inputs = run.inputs(step, self._before)
        Executor(self._job.program).run(inputs, self._doubtful, observe=self._outputs.__setitem__)
        self._right = self._checkpoint(run)

    def first(self, op: str, fits: Callable[[Node], bool] = lambda node: True) -> int:
        """The first operator of this name."""
        return next(q for q, node in enumerate(self._job.program.nodes) if node.op == op and fits(node))

    def of_slot(self, op: str, slot: int) -> int:
        """The operator that loads a state slot or a column of the schedule."""
        return self.first(op, lambda node: node.attributes["slot"] == slot)

    def conversion(self, slot: int) -> int:
        """The first operator that converts the value of a state slot to BF16."""
        loaded = self.of_slot("state", slot)
        return self.first("to_bf16", lambda node: node.inputs == (loaded,))

    def element(
        self,
        kind: FraudKind,
        operator: int,
        order: _Order,
        change: Callable[[torch.Tensor], torch.Tensor],
    ) -> Fraud:
        output = self._outputs[operator]
        return self._first_that_matters(
            BentElement(
                kind=kind,
                step=self._step,
                operator=operator,
                element=element,
                right=_bits(output.reshape(-1)[element]),
                claimed=_bits(change(output.reshape(-1)[element])),
            )
            for element in order(output)
        )

    def chain(self, kind: FraudKind) -> Fraud:
        """A lie in the middle segment of an element, of the first product of tensor cores with several segments."""
        program, data = self._job.program, list(self._job.dataset.values())
        operator = next(
            q
            for q, node in enumerate(program.nodes)
            if node.op == "tensor_core_matmul" and len(segments(describe(program, q))) > 1
        )
        descriptor, format = describe(program, operator), program.nodes[operator].type.dtype.number_format()
        assert format is not None
        material = Material.of(
            program,
            operator,
            values=self._outputs,
            states=self._before,
            dataset=data,
            schedule=self._job.schedule,
        )
        lie, middle = lying_chain(_CHAINS[kind], descriptor), len(segments(descriptor)) // 2
        output = self._outputs[operator].reshape(-1)

        def frauds() -> Iterator[Fraud]:
            for element, right in enumerate(map(_bits, output)):
                told = running_results(descriptor, element, material, lie)
                found = told[-1].finish(format)
                claimed = right if found is None else format.of_float32(found)
                honest = running_results(descriptor, element, material)
                differ = [i for i, (a, b) in enumerate(zip(told, honest, strict=True)) if a.encode() != b.encode()]
                if claimed != right and differ[:1] in ([], [middle]):
                    yield BentElement(
                        kind=kind,
                        step=self._step,
                        operator=operator,
                        element=element,
                        right=right,
                        claimed=claimed,
                        chain=lie,
                    )

        return self._first_that_matters(frauds())

    def rounding(self) -> Fraud:
        return self._first_that_matters(
            BentElement(
                kind=FraudKind.ROUNDING, step=self._step, operator=operator, element=element, right=right, claimed=other
            )
            for operator, element, right, other in self._doubtful.found
        )

    def row(self) -> Fraud:
        """The sample is swapped for the one after it in the data set."""
        spec, step = self._job.spec, self._step
        row = int(batch_rows(spec.seed, step, spec.batch_size, spec.data_rows)[_POSITION])
        other = (row + 1) % spec.data_rows
        for field, rows in enumerate(self._job.dataset.values()):
            differs = (rows[row] != rows[other]).reshape(-1).nonzero()
            if len(differs):
                item = int(differs[0])
                fraud = AnotherRow(
                    kind=FraudKind.ROW,
                    step=step,
                    operator=self.first("data", lambda node, field=field: node.attributes["slot"] == field),  # type: ignore[misc]
                    element=_POSITION * rows[row].numel() + item,
                    right=_bits(rows[row].reshape(-1)[item]),
                    claimed=_bits(rows[other].reshape(-1)[item]),
                    position=_POSITION,
                    row=other,
                )
                return self._first_that_matters([fraud])
        raise AssertionError("two rows of the data set are equal")

    def program(self) -> Fraud:
        """A program with another activation (tanh for erf) or, without one, another epsilon of the first norm."""
        program = self._job.program
        nodes = list(program.nodes)
        if any(node.op == "erf" for node in nodes):
            operator = self.first("erf")
            nodes[operator] = replace(nodes[operator], op="tanh")
        else:
            variance = nodes[self.first("sqrt")].inputs[0]
            operator = next(value for value in nodes[variance].inputs if nodes[value].op == "constant")
            nodes[operator] = replace(nodes[operator], attributes={"bits": (_bits(torch.tensor(1e-3)),)})
        other = replace(program, nodes=tuple(nodes))
        outputs: dict[int, torch.Tensor] = {}
        inputs = self._run.inputs(self._step, self._before)
        Executor(other).run(inputs, without_log(self._job.spec), observe=outputs.__setitem__)
        right, told = (found[operator].reshape(-1) for found in (self._outputs, outputs))
        element = int((right != told).nonzero()[0])
        fraud = AnotherProgram(
            kind=FraudKind.PROGRAM,
            step=self._step,
            operator=operator,
            element=element,
            right=_bits(right[element]),
            claimed=_bits(told[element]),
            program=other,
        )
        return self._first_that_matters([fraud])

    def _first_that_matters(self, frauds: Iterable[Fraud]) -> Fraud:
        return next(fraud for fraud in frauds if self._matters(fraud))

    def _matters(self, fraud: Fraud) -> bool:
        told = Run(self._job, self._run.directory, RunOptions(execution=fraud.execution))
        return self._checkpoint(told) != self._right

    def _checkpoint(self, run: Run) -> bytes:
        """The state root at the end of the step's interval."""
        interval = self._job.spec.interval
        last = (self._step // interval + 1) * interval - 1
        return next(state_root(after) for step, after in replay(run, self._step, self._before) if step == last)


class _Doubtful(Recorder):
    """A recorder of every logged element whose two candidates an auditor can tell apart only by resolving it, as
    (operator, element, its bits, bits of the other candidate)."""

    def __init__(self, guard: int) -> None:
        super().__init__(guard)
        self.found: list[tuple[int, int, int, int]] = []

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format = FLOAT32,
        window: Window | None = None,
    ) -> torch.Tensor:
        assert window is None, "frauds are found in whole outputs"
        result = super().round(index, operator, inputs, attributes, format)
        _, near = certify(operator, operands(operator, inputs), attributes, 1.0, format)
        low, high = ends(near, format=format)
        entries = self.entries.get(index)
        for element, below, above in zip(near.indices.tolist(), low, high, strict=True):
            if entries is None or not bool(adjacent(below, above, format)):
                continue
            place = int(entries.indices.searchsorted(element))
            if int(entries.decisions[place]) != Decision.VALUE:
                right = result.reshape(-1)[element]
                other = held(above if right == below else below, format)
                self.found.append((index, element, _bits(right), _bits(other)))
        return result
