"""Sources of values, and stores of the next state."""

from __future__ import annotations

from reprlib import repr as quoted

import numpy as np
import torch

from roundlog.kernels import works
from roundlog.operators.registry import (
    Attributes,
    Direct,
    OperatorKind,
    Source,
    StepInputs,
    Tensors,
    Types,
    integer,
    ints,
    need_attributes,
    need_inputs,
    register,
)
from roundlog.program import DType, ProgramError, Stored, TensorType
from roundlog.randomness import stream_key, uniform


@register
class State(Source):
    """state(slot): the tensor of that state slot before the step (a parameter, buffer or optimizer slot)."""

    name = "state"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        need_attributes(attributes, slot=int)
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.states[integer(attributes, "slot")]


@register
class Data(Source):
    """data(slot): that field of the step's batch, [batch_size, ...]; row j is the dataset row that the swap-or-not
    order gives to position step * batch_size + j. stride (where it is not a row's length): elements from the start of a
    row to that of the next, in the field; stored (of int64): u8, i8, i16, u16 or i32, as which its elements are
    stored."""

    name = "data"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        given = {name: kind for name, kind in (("stride", int), ("stored", str)) if name in attributes}
        need_attributes(attributes, slot=int, **given)
        if "stride" in given and not 1 <= integer(attributes, "stride") <= MAX_STRIDE:
            raise ProgramError(f"has a stride of {attributes['stride']}, expected 1 to 2^40")
        if "stored" in given and (declared.dtype is not DType.I64 or attributes["stored"] not in _STORED):
            raise ProgramError(f"is stored as {quoted(attributes['stored'])}, which {declared} is not")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.data[integer(attributes, "slot")]


MAX_STRIDE = 1 << 40
"""Most elements of a field, and so from one row of it to the next."""

_STORED = {stored.name.lower() for stored in Stored} - {"as_read"}


@register
class Schedule(Source):
    """schedule(slot): the FP32 scalar in that column of the step's row of the schedule table (learning rate, bias
    corrections, ...)."""

    name = "schedule"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        need_attributes(attributes, slot=int)
        return TensorType((), DType.F32)

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.schedule[integer(attributes, "slot")]


@register
class Constant(Source):
    """constant(bits): a literal tensor of at most 65,536 elements in row-major order; one item fills any shape.
    FP32 items are bit patterns as unsigned integers (the only NaN is 0x7fc00000), int64 items are values, bool items
    are 0 or 1."""

    name = "constant"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        need_attributes(attributes, bits=tuple)
        bits = ints(attributes, "bits")
        if len(bits) not in (1, declared.numel):
            raise ProgramError(f"{len(bits)} literals for {declared}")
        low, high = {DType.F32: (0, 2**32), DType.BOOL: (0, 2), DType.I64: (-(2**63), 2**63)}[declared.dtype]
        if any(not low <= item < high for item in bits):
            raise ProgramError(f"a literal does not fit {declared.dtype}")
        if declared.dtype == DType.F32 and any(
            (item & 0x7FFFFFFF) > 0x7F800000 and item != 0x7FC00000 for item in bits
        ):
            raise ProgramError("a literal is a NaN other than 0x7fc00000: write that one")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        bits = ints(attributes, "bits")
        if kind.dtype == DType.F32:
            values = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32))
        else:
            values = torch.tensor(bits, dtype=kind.dtype.torch_dtype)
        values = values.to(inputs.device)
        # On the device, never a host scalar: CUDA divides by those with a reciprocal, which is not exact.
        return values.expand(kind.numel).reshape(kind.shape) if len(bits) == 1 else values.reshape(kind.shape)


@register
class Iota(Source):
    """iota(start, step): int64[n], element i is start + i * step."""

    name = "iota"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        need_attributes(attributes, start=int, step=int)
        if len(declared.shape) != 1 or declared.dtype != DType.I64:
            raise ProgramError(f"declared as {declared}, expected i64 with one axis")
        last = integer(attributes, "start") + integer(attributes, "step") * max(declared.numel - 1, 0)
        if not -(2**63) <= last < 2**63:
            raise ProgramError("runs out of the range of int64")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        count = torch.arange(kind.shape[0], dtype=torch.int64, device=inputs.device)
        return count * integer(attributes, "step") + integer(attributes, "start")


@register
class Uniform(Source):
    """uniform(stream): FP32 in [0, 1), multiples of 2^-24: element i is (w_i >> 8) * 2^-24, w_i the i-th 32-bit word
    of Philox4x64-10 keyed by (seed, step * 2^32 + stream). Salmon et al. 2011; NumPy's `Philox`."""

    name = "uniform"

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs)
        need_attributes(attributes, stream=int)
        if not 0 <= integer(attributes, "stream") < 2**32:
            raise ProgramError("stream does not fit 32 bits")
        return TensorType(declared.shape, DType.F32)

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        stream, device = integer(attributes, "stream"), inputs.device
        if works(device):
            # Not at the top: Triton is an optional extra.
            from roundlog.kernels.cuda import triton_philox as philox

            return philox.uniform(stream_key(inputs.seed, inputs.step, stream), kind.numel, device).view(kind.shape)
        return uniform(inputs.seed, inputs.step, stream, kind.shape).to(device)


@register
class Loss(Direct):
    """loss(x): x, an FP32 scalar, marked as the step's loss. The run stops if it is not finite."""

    name = "loss"
    kind = OperatorKind.MOVEMENT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, DType.F32)
        need_attributes(attributes)
        return inputs[0]

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0]


@register
class Store(Direct):
    """store(x, slot): x is the value of that state slot after the step. The run stops at an element that is not finite,
    unless x is what the slot held before, `state`, itself."""

    name = "store"
    kind = OperatorKind.MOVEMENT

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        need_inputs(inputs, None)
        need_attributes(attributes, slot=int)
        return inputs[0]

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0]
