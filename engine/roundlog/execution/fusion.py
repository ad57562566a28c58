"""Operator fusion: connected groups of exact elementwise operators of one shape, computed together.

A group is computed by one tape (`roundlog.kernels.tape`). It is deferred until an operator outside of it reads one of
its values, and grows until then. An operator joins the group of its inputs if it has the group's shape. Inputs that are
deferred in *another* group are computed first, so groups never wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

import torch

from roundlog.definitions import OperatorKind
from roundlog.execution.slicing import slices_of
from roundlog.execution.stops import ends_finite
from roundlog.kernels.machine_code import Chain, TapeOperand
from roundlog.kernels.scratch import empty
from roundlog.kernels.tape import ADD, BF16, BOOL, DIV, F32, MUL, ROUND, SQRT, SUB, Tape
from roundlog.operators import Inexact, operator, workspace
from roundlog.operators.registry import ints
from roundlog.program import AliveMemory, DType, Program

_ONE = (1, 1)
"""The pattern of an input whose elements are all one number."""

_KINDS = {DType.F32: F32, DType.BOOL: BOOL, DType.BF16: BF16}
"""Dtypes that tapes compute, with their kinds of memory. Operators that read or give others, FP16 among them, are
computed alone."""

_BY_FP32 = frozenset({ADD, SUB, MUL, DIV, SQRT})
"""Instructions whose FP32 result for numbers of BF16, rounded to BF16, is the mathematical value rounded once.

Operands have 8 bits, and FP32 24 >= 2 * 8 + 2 (Figueroa 1995). Where FP32's numbers are 2^-149 apart, sums are exact,
and a product or quotient is exact too or at least 2^-142 away from midpoints of BF16 (docs/numerics.md)."""

MAX_GROUP = 64
"""Most operators in a group. A deferred operator keeps its inputs in memory, so groups must not grow without end."""

MAX_WAIT = 128
"""Operators of the program after which a group that gains no further member is computed. Otherwise all gradients of
micro-batches, which are added one after the other, would stay in memory to the end."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of operators that one tape computes."""

    nodes: tuple[int, ...]
    """The operators, in program order."""
    inputs: tuple[int, ...]
    """Values from outside, one input of the tape each."""
    outputs: tuple[int, ...]
    """Values that are needed outside."""
    checked: tuple[int, ...]
    """Outputs that the tape checks for finite numbers: inputs of the loss and of stores."""
    tape: Tape
    patterns: tuple[tuple[int, int] | None, ...]
    """The broadcast of every input, as `_pattern` gives it."""
    shape: tuple[int, ...]
    """Shape of all outputs."""
    dtypes: tuple[torch.dtype, ...]
    """Dtypes of the outputs."""
    chain: Chain
    """The tape, for the CPU."""


@dataclass(frozen=True, slots=True)
class SameNumbers:
    """An operator whose value has the numbers of an earlier one, in the same order."""

    value: int
    source: int
    shape: tuple[int, ...]


Unit = int | Group | SameNumbers
"""One step of a plan: a single operator, a group, or a value that is there already."""


def plan(program: Program) -> list[Unit]:
    """A plan: the program's operators in an order in which every input is computed before it is read."""
    return _Planner(program).run()


def deaths(program: Program, steps: list[Unit]) -> list[list[int]]:
    """For every step of a plan, the values that no later step reads."""
    last: dict[int, int] = {}
    for position, item in enumerate(steps):
        if isinstance(item, Group):
            touched: tuple[int, ...] = (*item.inputs, *item.outputs)
        elif isinstance(item, SameNumbers):
            touched = item.source, item.value
        else:
            touched = item, *program.nodes[item].inputs
        for value in touched:
            last[value] = position
    result: list[list[int]] = [[] for _ in steps]
    for value, position in last.items():
        result[position].append(value)
    return result


def peak_bytes(program: Program, more: Mapping[int, int] | None = None) -> int:
    """Peak memory of one step in bytes, without the state, fused or one operator after the other. It is an upper bound
    for CPU kernels. more: bytes by operator index that are needed beside the operator's own workspace."""

    # Both ways to execute a step ask for each operator.
    @cache
    def needs(index: int) -> int:
        is_inexact = isinstance(operator(program.nodes[index].op), Inexact)
        slices = slices_of(program, index) if is_inexact else None
        return (workspace(program, index) if slices is None else slices.workspace) + (more or {}).get(index, 0)

    steps = plan(program)
    memory, peak = AliveMemory(program), 0
    for item, dead in zip(steps, deaths(program, steps), strict=True):
        beside = 0
        if isinstance(item, Group):
            for value in item.outputs:
                memory.make(value)
            beside = sum(pattern is None for pattern in item.patterns) * 4 * prod(item.shape)
        elif isinstance(item, SameNumbers):
            memory.make(item.value)
        else:
            memory.make(item)
            beside = needs(item)
        peak = max(peak, memory.alive + beside)
        memory.release(dead)
    return max(peak, program.peak_bytes(needs))


def _rounded_back(program: Program) -> dict[int, int]:
    """Values that were widened to FP32, reshaped or not, and are rounded back to their format, and what they were
    before. Programs of BF16 are full of them: a product in BF16 is one in FP32 of its operands to whoever reads it."""
    nodes, same = program.nodes, dict[int, int]()
    for index, node in enumerate(nodes):
        if node.op in ("to_bf16", "to_f16"):
            value = node.inputs[0]
            while nodes[value].op == "reshape":
                value = nodes[value].inputs[0]
            if nodes[value].op == "to_f32" and nodes[nodes[value].inputs[0]].type.dtype == node.type.dtype:
                same[index] = nodes[value].inputs[0]
    return same


class _Planner:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._same = _rounded_back(program)
        self._group_of: dict[int, list[int]] = {}
        """Deferred value -> its group; all members share one list."""
        self._waiting: deque[int] = deque()
        """Values that were deferred, in program order."""
        self._steps: list[Unit] = []
        self._ends_finite = ends_finite(program)
        self._unread: set[int] = set()
        """Operators that only values of `_same` go back to."""
        self._users: dict[int, list[int]] = {}
        read = {value for node in program.nodes for value in node.inputs}
        for index, node in reversed(list(enumerate(program.nodes))):
            if node.op in ("to_f32", "reshape") and index in read and index not in self._users:
                self._unread.add(index)
                continue
            for value in (self._same[index],) if index in self._same else node.inputs:
                self._users.setdefault(value, []).append(index)

    def run(self) -> list[Unit]:
        nodes = self._program.nodes
        for index, node in enumerate(nodes):
            self._flush_before(index - MAX_WAIT)
            if index in self._unread:
                continue
            if index in self._same:
                self._flush(self._same[index])
                self._steps.append(SameNumbers(index, self._same[index], node.type.shape))
                continue
            if not self._fuses(index):
                for value in node.inputs:
                    self._flush(value)
                self._steps.append(index)
                continue
            joined: list[int] = []
            for value in node.inputs:
                group = self._group_of.get(value)
                if group is None or group is joined:
                    continue
                if nodes[value].type.shape != node.type.shape or len(group) + len(joined) >= MAX_GROUP:
                    self._flush(value)
                else:
                    joined = self._merge(joined, group) if joined else group
            joined.append(index)
            self._group_of[index] = joined
            self._waiting.append(index)
        for value in list(self._group_of):
            self._flush(value)
        return self._steps

    def _fuses(self, index: int) -> bool:
        node = self._program.nodes[index]
        definition = operator(node.op).definition
        kinds = {node.type.dtype, *(self._program.nodes[value].type.dtype for value in node.inputs)}
        if definition.opcode is None or not kinds <= _KINDS.keys() or node.type.numel == 0:
            return False
        rounds = node.type.dtype == DType.BF16 and definition.kind == OperatorKind.EXACT and not definition.selects
        return not rounds or definition.opcode == ROUND or definition.opcode in _BY_FP32

    def _merge(self, a: list[int], b: list[int]) -> list[int]:
        if len(a) < len(b):
            a, b = b, a
        for value in b:
            self._group_of[value] = a
        a.extend(b)
        return a

    def _flush_before(self, index: int) -> None:
        """Compute the groups whose last member stands before `index`."""
        while self._waiting and self._waiting[0] < index:
            value = self._waiting.popleft()
            if value in self._group_of and max(self._group_of[value]) < index:
                self._flush(value)

    def _flush(self, value: int) -> None:
        group = self._group_of.get(value)
        if group is None:
            return
        for member in group:
            del self._group_of[member]
        self._steps.append(self._build(sorted(group)))

    def _build(self, members: list[int]) -> Group:
        nodes, inside = self._program.nodes, set(members)
        inputs = list(dict.fromkeys(v for index in members for v in nodes[index].inputs if v not in inside))
        outputs = [index for index in members if any(user not in inside for user in self._users.get(index, ()))]
        number = {value: slot for slot, value in enumerate(inputs)}
        rows: list[tuple[int, int, int, int, int]] = []

        def add(code: int, sources: list[int], is_checked: bool) -> int:
            a, b, c = (sources + sources[:1] * 2)[:3]
            rows.append((code, a, b, c, int(is_checked)))
            return len(inputs) + len(rows) - 1

        checked = tuple(v for v in outputs if any(self._ends_finite[user] for user in self._users[v]))
        for index in members:
            sources = [number[value] for value in nodes[index].inputs]
            code = operator(nodes[index].op).definition.opcode
            assert code is not None
            if nodes[index].type.dtype == DType.BF16 and code in _BY_FP32:
                code, sources = ROUND, [add(code, sources, False)]
            number[index] = add(code, sources, index in checked)
        tape = Tape(tuple(rows), tuple(number[value] for value in outputs))
        shape = nodes[members[0]].type.shape
        patterns = tuple(self._read(value, shape) for value in inputs)
        operands = [
            TapeOperand(_KINDS[nodes[value].type.dtype], *(pattern or (1, prod(shape))))
            for value, pattern in zip(inputs, patterns, strict=True)
        ]
        # Stored values are read again in the next step.
        users = {user for value in outputs for user in self._users.get(value, ())} - inside
        ends = all(nodes[user].op == "store" for user in users)
        kinds = [_KINDS[nodes[value].type.dtype] for value in outputs]
        return Group(
            nodes=tuple(members),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            checked=checked,
            tape=tape,
            patterns=patterns,
            shape=shape,
            dtypes=tuple(nodes[value].type.dtype.torch_dtype for value in outputs),
            chain=Chain(tape, operands, kinds, prod(shape), ends),
        )

    def _read(self, value: int, shape: tuple[int, ...]) -> tuple[int, int] | None:
        node = self._program.nodes[value]
        if node.op == "constant" and len(ints(node.attributes, "bits")) == 1:
            return _ONE
        return _pattern(node.type.shape, shape)


def compute(group: Group, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
    """The group's outputs, on the CPU, and whether those that are checked are finite."""
    # This reference keeps the copies alive until the tape has run.
    tensors = _laid_out(group, inputs)
    results = [empty(group.shape, dtype) for dtype in group.dtypes]
    finite = group.chain.play([x.data_ptr() for x in tensors], [x.data_ptr() for x in results])
    return results, finite


def _laid_out(group: Group, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs laid out as their patterns say: contiguous, except inputs with one element to read."""
    return [
        x.expand(group.shape).contiguous() if pattern is None else x if pattern == _ONE else x.contiguous()
        for x, pattern in zip(inputs, group.patterns, strict=True)
    ]


def compute_on_device(group: Group, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Compute the group's outputs on a device that has Triton's kernels, and int32[1]: 0 unless a checked output is not
    finite. The host does not wait for it."""
    # Not at the top: Triton is an optional extra.
    from roundlog.kernels.cuda import triton_kernels as tape

    size, device, tensors = prod(group.shape), inputs[0].device, _laid_out(group, inputs)
    results = [torch.empty(group.shape, dtype=dtype, device=device) for dtype in group.dtypes]
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    tape.play(group.tape, tensors, [pattern or (1, size) for pattern in group.patterns], results, bad)
    return results, bad


def _pattern(own: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """(inner, count) of an input of shape `own` in a group of shape `shape`; None if its broadcast has no such form."""
    if own == shape:
        return 1, prod(own)
    sizes = (1,) * (len(shape) - len(own)) + own
    wide = [d for d, size in enumerate(sizes) if size != 1]
    if not wide:
        return _ONE
    first, last = wide[0], wide[-1]
    if sizes[first : last + 1] != shape[first : last + 1]:
        return None
    return prod(shape[last + 1 :]), prod(own)
