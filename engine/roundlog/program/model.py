"""The program: nodes in execution order, each producing exactly one tensor.

A node's index is the name of its value, so "operator 17" and "value 17" are the same thing: one leaf of the
program root, and later one leaf of a trace root. Everything that the adjudicator needs is in the nodes themselves:
`state`, `data`, `schedule`, `constant` and `uniform` nodes are where values come from, `store` nodes are where the
next state goes, and a `loss` node marks the loss.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format

Attribute = int | str | bool | tuple[int, ...]
"""Types that an attribute may hold. No floats: FP32 constants are stored as their bit patterns."""


class ProgramError(ValueError):
    """A program is malformed, unknown to this version, or larger than allowed."""


class DType(enum.StrEnum):
    """The storage types: formats of numbers, and indices and masks beside them."""

    F32 = "f32"
    I64 = "i64"
    BOOL = "bool"
    BF16 = "bf16"
    F16 = "f16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return _TORCH[self]

    def number_format(self, f32_format: Format = FLOAT32) -> Format | None:
        """Format that its numbers are rounded to; None for integers and bool. f32_format: that of FP32 values in a job,
        `TrainingSpec.f32_format`."""
        return f32_format if self is DType.F32 else _SHORT.get(self)

    @property
    def is_float(self) -> bool:
        """Whether its numbers have a format: neither integers nor bool."""
        return self is DType.F32 or self.is_short

    @property
    def is_short(self) -> bool:
        """Whether it is a format of 16 bits."""
        return self in _SHORT

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _TORCH[self].itemsize

    @staticmethod
    def of(dtype: torch.dtype) -> DType:
        """The storage type of a torch dtype. Raises ProgramError where there is none."""
        for ours, theirs in _TORCH.items():
            if theirs == dtype:
                return ours
        raise ProgramError(f"{dtype} is not a storage type: use {', '.join(map(_name, _TORCH.values()))}")


_TORCH = {
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.I64: torch.int64,
    DType.BOOL: torch.bool,
}
_SHORT = {DType.BF16: BFLOAT16, DType.F16: FLOAT16}


def as_array(x: torch.Tensor) -> NDArray[np.generic]:
    """A tensor on the CPU as NumPy's array of the same memory. NumPy has no BF16: of that, the encodings, as int16."""
    array: NDArray[np.generic] = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of one value."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Stored(enum.IntEnum):
    """Storage format of the elements of a data field. All but the first are integers that are read as int64. The
    numbers are part of descriptors."""

    AS_READ = 0
    U8 = 1
    I8 = 2
    I16 = 3
    U16 = 4
    I32 = 5

    def width(self, dtype: DType) -> int:
        """Bytes of a stored element that is read as a dtype."""
        return dtype.itemsize if self is Stored.AS_READ else _STORED_BYTES[self]

    @property
    def signed(self) -> bool:
        """Whether a stored integer has a sign; of AS_READ the dtype says it."""
        return self in (Stored.I8, Stored.I16, Stored.I32)


_STORED_BYTES = {Stored.U8: 1, Stored.I8: 1, Stored.I16: 2, Stored.U16: 2, Stored.I32: 4}


@dataclass(frozen=True, slots=True)
class FieldType:
    """Layout of a data field's rows in its elements: row i begins with element i * stride. So rows may stand one behind
    the other, overlap (windows of a stream), or leave gaps.

    row: shape and dtype of one row, as operators see it."""

    row: TensorType
    stored: Stored
    stride: int

    def elements(self, rows: int) -> int:
        """Elements of a field of so many rows, at least one."""
        return (rows - 1) * self.stride + self.row.numel

    def nbytes(self, rows: int) -> int:
        """Bytes of a field of so many rows, at least one."""
        return self.elements(rows) * self.stored.width(self.row.dtype)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the program.

    `inputs` are indices of earlier nodes. `source` is where in the user's code the operator came from
    ("net.py:12"); it is for people, and no part of the program root.
    """

    op: str
    inputs: tuple[int, ...]
    attributes: Mapping[str, Attribute]
    type: TensorType
    source: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One training step.

    `state_names`, `data_names` and `schedule_names` name the slots that `state`/`store`, `data` and `schedule`
    nodes refer to by position. Only positions are adjudicated; names are for files and people.
    """

    nodes: tuple[Node, ...]
    state_names: tuple[str, ...]
    data_names: tuple[str, ...]
    schedule_names: tuple[str, ...]
    batch_size: int

    @property
    def states(self) -> dict[str, TensorType]:
        """Type of every state slot, by name, in program order; as it is stored, if the step does not read it."""
        return self._slots(("store", "state"), self.state_names)

    @property
    def data(self) -> dict[str, TensorType]:
        """Type of every data field *of a batch* (leading axis `batch_size`), by name, in program order."""
        return self._slots(("data",), self.data_names)

    @property
    def fields(self) -> dict[str, FieldType]:
        """Layout of every data field, by name, in program order."""
        nodes = {node.attributes["slot"]: node for node in self.nodes if node.op == "data"}
        return {name: _field_type(nodes[slot]) for slot, name in enumerate(self.data_names)}

    def _slots(self, ops: tuple[str, ...], names: tuple[str, ...]) -> dict[str, TensorType]:
        """Types by name, of the operators of the last kind that a slot has."""
        types = {node.attributes["slot"]: node.type for op in ops for node in self.nodes if node.op == op}
        return {name: types[slot] for slot, name in enumerate(names)}

    def describe(self, index: int) -> str:
        """`operator 17 (matmul, net.py:12)`: how errors and findings name an operator."""
        node = self.nodes[index]
        place = f", {node.source}" if node.source else ""
        return f"operator {index} ({node.op}{place})"

    def keeps_slot(self, index: int) -> bool:
        """Whether operator `index` stores in a slot of the state what the slot held before, unread."""
        node = self.nodes[index]
        if node.op != "store":
            return False
        stored = self.nodes[node.inputs[0]]
        return stored.op == "state" and stored.attributes["slot"] == node.attributes["slot"]

    @property
    def moved_states(self) -> dict[str, TensorType]:
        """Those of `states` that the step changes; all others stay as the run begins."""
        first, kinds = first_store(self), self.states.items()
        return {name: kind for slot, (name, kind) in enumerate(kinds) if not self.keeps_slot(first + slot)}

    def peak_bytes(self, workspace: Callable[[int], int]) -> int:
        """Bytes of the values alive at the worst moment of one step without the state (an upper bound), with what
        operator i needs while it runs, `workspace(i)`."""
        last_use, memory, peak = self.last_uses(), AliveMemory(self), 0
        for index in range(len(self.nodes)):
            memory.make(index)
            peak = max(peak, memory.alive + workspace(index))
            # A stored value is not counted here any more, since the next state's memory is counted apart from a step's.
            memory.release([*last_use.get(index, ()), *([index] if self.nodes[index].op == "store" else [])])
        return peak

    def last_uses(self) -> dict[int, list[int]]:
        """For each node, the values that nobody reads after it. `store` and `loss` values are kept."""
        last: dict[int, int] = {}
        for index, node in enumerate(self.nodes):
            last[index] = index
            for value in node.inputs:
                last[value] = index
        result: dict[int, list[int]] = {}
        for value, user in last.items():
            if self.nodes[value].op not in ("store", "loss"):
                result.setdefault(user, []).append(value)
        return result


class AliveMemory:
    """Bytes of the values that are alive during a step. A state's are the state's own, and a view has none: it keeps
    those that it shows."""

    def __init__(self, program: Program) -> None:
        self.alive = 0
        self._sizes = [node.type.nbytes for node in program.nodes]
        self._kept: list[tuple[int, ...]] = []
        """For each value those whose memory it keeps."""
        is_dense: list[bool] = []
        for index, node in enumerate(program.nodes):
            dense = all(is_dense[value] for value in node.inputs)
            # Whether PyTorch reshapes a strided tensor by a view or by a copy is not known here: both are counted.
            # Elementwise operators give their output the strides of their inputs.
            own = node.op not in ("state", *_VIEWS) and not (node.op == "reshape" and dense)
            shown = self._kept[node.inputs[0]] if node.op == "reshape" or node.op in _VIEWS else ()
            self._kept.append((*shown, index) if own else shown)
            is_dense.append(node.op not in ("permute", "expand", "slice") and (dense or node.op in _MAKE_DENSE))
        self._keepers = [0] * len(program.nodes)

    def make(self, value: int) -> None:
        """Count a value that is computed now."""
        for owner in self._kept[value]:
            self.alive += self._sizes[owner] if not self._keepers[owner] else 0
            self._keepers[owner] += 1

    def release(self, values: Iterable[int]) -> None:
        """Take off what values kept that nobody reads any more."""
        for value in values:
            for owner in self._kept[value]:
                self._keepers[owner] -= 1
                self.alive -= self._sizes[owner] if not self._keepers[owner] else 0


_VIEWS = frozenset({"permute", "expand", "slice", "store", "loss"})
"""Operators whose output lies in the memory of their first input."""
_MAKE_DENSE = frozenset({"matmul", "take"})
"""Operators whose output is dense whatever they read."""


def _field_type(node: Node) -> FieldType:
    row = TensorType(node.type.shape[1:], node.type.dtype)
    stored, stride = node.attributes.get("stored"), node.attributes.get("stride")
    assert (stored is None or isinstance(stored, str)) and (stride is None or isinstance(stride, int))
    return FieldType(
        row, Stored.AS_READ if stored is None else Stored[stored.upper()], row.numel if stride is None else stride
    )


def first_store(program: Program) -> int:
    """The operator that stores slot 0. A program ends with one store for each slot, in their order."""
    return len(program.nodes) - len(program.state_names)


# Names of a program's states, as capture gives them.
#
#     parameter/NAME    a parameter of the model
#     buffer/NAME       a buffer that the model's `state_dict` holds
#     transient/NAME    a buffer that it leaves out (`register_buffer(..., persistent=False)`)
#     slot/...          a tensor of the optimizer
#     attribute/...     a tensor elsewhere that a step changes
#     constant/...      a large constant of the step
#
# NAME is that of `state_dict`.

SAVED = ("parameter", "buffer")
"""Kinds of states that a model's `state_dict` holds."""

TRANSIENT = "transient"
"""Kind of the buffers that it leaves out."""

BESIDE = ("slot", "attribute", "constant")
"""Kinds of states that are no tensor of a model's."""


def split(name: str) -> tuple[str, str]:
    """(kind, name behind it) of a state's name; the kind is "" for a name of another making."""
    kind, slash, rest = name.partition("/")
    return (kind, rest) if slash and kind in (*SAVED, TRANSIENT, *BESIDE) else ("", name)


def names_in_model(names: Iterable[str]) -> dict[str, str]:
    """Name in the model -> name of the state, for every tensor of a model's. A name of another making is the model's
    own. Raises ProgramError, in a clause without a subject, for one that comes twice."""
    plain: dict[str, str] = {}
    for name in names:
        kind, own = split(name)
        if kind in BESIDE:
            continue
        if own in plain:
            raise ProgramError(f"has {own} twice, as {plain[own]} and as {name}: leave one away")
        plain[own] = name
    return plain
