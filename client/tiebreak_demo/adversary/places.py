"""Places of frauds in a job's program, found by the meaning of operators, not by their indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from roundlog.adjudication import Material, running_results, segments
from roundlog.arithmetic import adjacent, as_dtype, as_float32, format_of, neighbour
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

from tiebreak_demo.adversary import chains
from tiebreak_demo.adversary.engines import ChangedBatches, MakeExecution, execution_of, prescribed_executor
from tiebreak_demo.adversary.frauds import Fraud, FraudKind
from tiebreak_demo.adversary.tampering import Lie, SwitchingExecutor, tampered
from tiebreak_demo.adversary.trainings import Training

_CHAINS: dict[FraudKind, type[chains.LyingChain]] = {
    FraudKind.ACCUMULATOR: chains.NudgedChain,
    FraudKind.LAST_ROUNDING: chains.TruncatedChain,
    FraudKind.GROUP_ORDER: chains.SwappedChain,
    FraudKind.FP32_SUMS: chains.NearestChain,
}

_POSITION = 2
"""Position in the batch of the sample that is swapped."""


def all_frauds(run: Run, step: int, training: Training) -> dict[FraudKind, Fraud]:
    """Return frauds about a step, one of each of the training's kinds. run: an honest run of that training.

    Each takes the first element that changes the next checkpoint: one ulp often vanishes in the next rounding, and then
    there is nothing to dispute."""
    places = _Places(run, step)
    return {kind: places.fraud(kind, training) for kind in training.kinds}


def wrong_activation(run: Run, step: int) -> Fraud:
    """Return a fraud about one BF16 activation in a step. run: an honest run of any job that has one."""
    return _Places(run, step).element(FraudKind.ACTIVATION, _activation(run.job.program))


def _activation(program: Program) -> int:
    """Return the first product of matrices in BF16 whose second factor is a parameter."""
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


def _updated(program: Program, slot: int) -> int:
    """Return the operator whose output a state slot stores."""
    return program.nodes[first_store(program) + slot].inputs[0]


def _gradient(program: Program, slot: int) -> int:
    """Return the operator that computes a gradient whose running average an optimizer keeps in a state slot. The slot
    stores the weighted old average plus the gradient, which may be weighted, too."""
    return _before(program, program.nodes[_updated(program, slot)].inputs[-1], ("mul", "reshape", "permute", "to_f32"))


def _before(program: Program, value: int, ops: Sequence[str]) -> int:
    """Return a value as it was before operators of these names, each of its first input."""
    while program.nodes[value].op in ops:
        value = program.nodes[value].inputs[0]
    return value


def _bits(x: torch.Tensor) -> int:
    """Return the bit pattern of a single element."""
    return int.from_bytes(tensor_bytes(x), "little")


def _next_number(x: torch.Tensor) -> torch.Tensor:
    format = format_of(x.dtype)
    return as_dtype(neighbour(as_float32(x), 1, format), format)


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def _opposite_of_dropout(x: torch.Tensor) -> torch.Tensor:
    """Return a number about which any dropout decides otherwise."""
    return torch.where(x < 0.5, 1 - 2.0**-24, 0.0)


def _largest_first(output: torch.Tensor) -> Iterable[int]:
    order: list[int] = output.reshape(-1).abs().argsort(descending=True, stable=True).tolist()
    return order


def _from_the_middle(output: torch.Tensor) -> Iterable[int]:
    return range(output.numel() // 2, output.numel())


class _Places:
    """An honest run's step, in which lies are tried."""

    def __init__(self, run: Run, step: int) -> None:
        self._run, self._job, self._step = run, run.job, step
        self._program = run.job.program
        self._before = replay_state(run, step)
        self._outputs: dict[int, torch.Tensor] = {}
        self._doubtful = _DoubtfulRoundings(self._job.spec.log_guard)
        inputs = run.inputs(step, self._before)
        Executor(self._program).run(inputs, self._doubtful, observe=self._outputs.__setitem__)
        self._right = self._checkpoint(run)

    def fraud(self, kind: FraudKind, training: Training) -> Fraud:
        """Return the fraud of a kind."""
        program = self._program
        slot = next(i for i, name in enumerate(program.state_names) if name.startswith(f"slot/{training.parameter}/"))
        weight = program.state_names.index(f"parameter/{training.parameter}")
        rate = program.schedule_names.index(training.rate)
        make: dict[FraudKind, Callable[[], Fraud]] = {
            FraudKind.GRADIENT: lambda: self.element(kind, _gradient(program, slot)),
            FraudKind.STORED: lambda: self.element(kind, first_store(program) + slot, _from_the_middle),
            FraudKind.LOADED: lambda: self.element(kind, self._of_slot("state", slot)),
            FraudKind.ROW: self._row,
            FraudKind.RATE: lambda: self.element(kind, self._of_slot("schedule", rate), _from_the_middle, _double),
            FraudKind.ROUNDING: lambda: self._first_that_matters(
                self._made(kind, *one) for one in self._doubtful.found
            ),
            FraudKind.MASK: lambda: self.element(kind, self._first("uniform"), _from_the_middle, _opposite_of_dropout),
            FraudKind.FUNCTION: lambda: self.element(kind, self._first("exp"), _from_the_middle),
            FraudKind.PROGRAM: self._other_program,
            FraudKind.ACTIVATION: lambda: self.element(kind, _activation(program)),
            FraudKind.CONVERSION: lambda: self.element(kind, self._conversion(weight)),
            FraudKind.MASTER: lambda: self.element(kind, _updated(program, weight)),
        }
        return make.get(kind, lambda: self._chain(kind))()

    def element(
        self,
        kind: FraudKind,
        operator: int,
        order: Callable[[torch.Tensor], Iterable[int]] = _largest_first,
        change: Callable[[torch.Tensor], torch.Tensor] = _next_number,
    ) -> Fraud:
        """Return the fraud about one element of an operator's output. order: the elements as they are tried."""
        output = self._outputs[operator].reshape(-1)
        return self._first_that_matters(
            self._made(kind, operator, element, _bits(output[element]), _bits(change(output[element])))
            for element in order(output)
        )

    def _first(self, op: str, fits: Callable[[Node], bool] = lambda node: True) -> int:
        """Return the first operator of a name."""
        return next(q for q, node in enumerate(self._program.nodes) if node.op == op and fits(node))

    def _of_slot(self, op: str, slot: int) -> int:
        """Return the operator that loads a state slot, a field of the data or a column of the schedule."""
        return self._first(op, lambda node: node.attributes["slot"] == slot)

    def _conversion(self, slot: int) -> int:
        """Return the first operator that converts the value of a state slot to BF16."""
        loaded = self._of_slot("state", slot)
        return self._first("to_bf16", lambda node: node.inputs == (loaded,))

    def _made(
        self,
        kind: FraudKind,
        operator: int,
        element: int,
        right: int,
        claimed: int,
        *,
        execution: MakeExecution | None = None,
        chain: chains.LyingChain | None = None,
    ) -> Fraud:
        """Return a fraud. execution: None if one element of the output is another number, and nothing else."""
        only_stored, logged = kind is FraudKind.STORED, kind is FraudKind.ROUNDING
        place = {"step": self._step, "operator": operator, "element": element}
        lie = Lie(**place, claimed=claimed, only_stored=only_stored, logged=logged)
        execution = execution or execution_of(lambda job: tampered(job.program, job.spec.f32_format, [lie]))
        return Fraud(kind=kind, **place, right=right, claimed=claimed, execution=execution, chain=chain)

    def _chain(self, kind: FraudKind) -> Fraud:
        """Return a lie in the middle segment of an element, of the first product of tensor cores with several."""
        program, data = self._program, list(self._job.dataset.values())
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
        lie, middle = chains.lying_chain(_CHAINS[kind], descriptor), len(segments(descriptor)) // 2

        def frauds() -> Iterator[Fraud]:
            for element, right in enumerate(map(_bits, self._outputs[operator].reshape(-1))):
                told = running_results(descriptor, element, material, lie)
                found = told[-1].finish(format)
                claimed = right if found is None else format.of_float32(found)
                honest = running_results(descriptor, element, material)
                differ = [i for i, (a, b) in enumerate(zip(told, honest, strict=True)) if a.encode() != b.encode()]
                if claimed != right and differ[:1] in ([], [middle]):
                    yield self._made(kind, operator, element, right, claimed, chain=lie)

        return self._first_that_matters(frauds())

    def _row(self) -> Fraud:
        """Return the fraud in which a sample is swapped for the one after it in the data set."""
        spec, step = self._job.spec, self._step
        row = int(batch_rows(spec.seed, step, spec.batch_size, spec.data_rows)[_POSITION])
        other = (row + 1) % spec.data_rows
        dataset = list(self._job.dataset.values())

        def swap(batch: list[torch.Tensor]) -> None:
            for field, rows in zip(batch, dataset, strict=True):
                field[_POSITION] = rows[other]

        field = next(i for i, rows in enumerate(dataset) if bool((rows[row] != rows[other]).any()))
        right, told = dataset[field][row].reshape(-1), dataset[field][other].reshape(-1)
        item = int((right != told).nonzero()[0])
        execution = execution_of(batches=lambda job: ChangedBatches(job, step, swap))
        element, operator = _POSITION * right.numel() + item, self._of_slot("data", field)
        return self._made(FraudKind.ROW, operator, element, _bits(right[item]), _bits(told[item]), execution=execution)

    def _other_program(self) -> Fraud:
        """Return the fraud by a program with another activation (erf for tanh) or, without one, another epsilon of the
        first norm."""
        nodes = list(self._program.nodes)
        if any(node.op == "tanh" for node in nodes):
            operator = self._first("tanh")
            nodes[operator] = replace(nodes[operator], op="erf")
        else:
            variance = nodes[self._first("sqrt")].inputs[0]
            operator = next(value for value in nodes[variance].inputs if nodes[value].op == "constant")
            nodes[operator] = replace(nodes[operator], attributes={"bits": (_bits(torch.tensor(1e-3)),)})
        other, step = replace(self._program, nodes=tuple(nodes)), self._step
        outputs: dict[int, torch.Tensor] = {}
        inputs = self._run.inputs(step, self._before)
        Executor(other).run(inputs, without_log(self._job.spec), observe=outputs.__setitem__)
        right, told = (found[operator].reshape(-1) for found in (self._outputs, outputs))
        element = int((right != told).nonzero()[0])
        execution = execution_of(
            lambda job: SwitchingExecutor(
                prescribed_executor(job), Executor(other, job.spec.f32_format), lambda number: number >= step
            )
        )
        bits = _bits(right[element]), _bits(told[element])
        return self._made(FraudKind.PROGRAM, operator, element, *bits, execution=execution)

    def _first_that_matters(self, frauds: Iterable[Fraud]) -> Fraud:
        """Return the first of the frauds that changes the state at the end of the step's interval."""
        directory = self._run.directory
        return next(
            fraud
            for fraud in frauds
            if self._checkpoint(Run(self._job, directory, RunOptions(execution=fraud.execution))) != self._right
        )

    def _checkpoint(self, run: Run) -> bytes:
        """Return the state root at the end of the step's interval."""
        interval = self._job.spec.interval
        last = (self._step // interval + 1) * interval - 1
        return next(state_root(after) for step, after in replay(run, self._step, self._before) if step == last)


class _DoubtfulRoundings(Recorder):
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
                other = as_dtype(above if right == below else below, format)
                self.found.append((index, element, _bits(right), _bits(other)))
        return result
