"""Sources of values, and stores of the next state."""

from __future__ import annotations

from dataclasses import replace
from reprlib import repr as quoted

import numpy as np
import torch

from roundlog.kernels import has_kernels
from roundlog.operators.registry import (
    Attributes,
    Direct,
    Source,
    StepInputs,
    Tensors,
    Types,
    integer,
    ints,
    register,
)
from roundlog.program import DType, ProgramError, Stored, TensorType
from roundlog.randomness import stream_key, uniform


@register("state")
class State(Source):
    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.states[integer(attributes, "slot")]


@register("data")
class Data(Source):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        super().infer(inputs, attributes, declared)
        if "stride" in attributes and not 1 <= integer(attributes, "stride") <= MAX_STRIDE:
            raise ProgramError(f"has a stride of {attributes['stride']}, expected 1 to 2^40")
        if "stored" in attributes and (declared.dtype is not DType.I64 or attributes["stored"] not in _STORED):
            raise ProgramError(f"is stored as {quoted(attributes['stored'])}, which {declared} is not")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.data[integer(attributes, "slot")]


MAX_STRIDE = 1 << 40
"""Most elements of a field, and so from one row of it to the next."""

_STORED = {stored.name.lower() for stored in Stored} - {"as_read"}


@register("schedule")
class Schedule(Source):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        return super().infer(inputs, attributes, replace(declared, shape=()))

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        return inputs.schedule[integer(attributes, "slot")]


_WHOLE = {DType.BOOL: (0, 2), DType.I64: (-(2**63), 2**63)}
"""First literal of a dtype without a format, and the one behind the last."""


@register("constant")
class Constant(Source):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        super().infer(inputs, attributes, declared)
        bits = ints(attributes, "bits")
        if len(bits) not in (1, declared.numel):
            raise ProgramError(f"{len(bits)} literals for {declared}")
        format = declared.dtype.number_format()
        low, high = (0, 1 << format.width) if format is not None else _WHOLE[declared.dtype]
        if any(not low <= item < high for item in bits):
            raise ProgramError(f"a literal does not fit {declared.dtype}")
        if format is not None and any(
            item & (format.sign - 1) > format.infinity and item != format.nan for item in bits
        ):
            raise ProgramError(f"a literal is a NaN other than {format.nan:#x}: write that one")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        bits = ints(attributes, "bits")
        if kind.dtype.is_float:
            words = np.array(bits, dtype=f"u{kind.dtype.itemsize}")
            values = torch.from_numpy(words.view(f"i{kind.dtype.itemsize}")).view(kind.dtype.torch_dtype)
        else:
            values = torch.tensor(bits, dtype=kind.dtype.torch_dtype)
        values = values.to(inputs.device)
        # On the device, never a host scalar: CUDA divides by those with a reciprocal, which is not exact.
        return values.expand(kind.numel).reshape(kind.shape) if len(bits) == 1 else values.reshape(kind.shape)


@register("iota")
class Iota(Source):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        super().infer(inputs, attributes, declared)
        if len(declared.shape) != 1 or declared.dtype != DType.I64:
            raise ProgramError(f"declared as {declared}, expected i64 with one axis")
        last = integer(attributes, "start") + integer(attributes, "step") * max(declared.numel - 1, 0)
        if not -(2**63) <= last < 2**63:
            raise ProgramError("runs out of the range of int64")
        return declared

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        count = torch.arange(kind.shape[0], dtype=torch.int64, device=inputs.device)
        return count * integer(attributes, "step") + integer(attributes, "start")


@register("uniform")
class Uniform(Source):
    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        kind = super().infer(inputs, attributes, declared)
        if not 0 <= integer(attributes, "stream") < 2**32:
            raise ProgramError("stream does not fit 32 bits")
        return kind

    def load(self, attributes: Attributes, kind: TensorType, inputs: StepInputs) -> torch.Tensor:
        stream, device = integer(attributes, "stream"), inputs.device
        if has_kernels(device):
            # Not at the top: Triton is an optional extra.
            from roundlog.kernels.cuda import triton_kernels as philox

            return philox.uniform(stream_key(inputs.seed, inputs.step, stream), kind.numel, device).view(kind.shape)
        return uniform(inputs.seed, inputs.step, stream, kind.shape).to(device)


class _AsItIs(Direct):
    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return inputs[0]


@register("loss")
class Loss(_AsItIs):
    """The loss of a step."""


@register("store")
class NextState(_AsItIs):
    """The next value of a state slot."""
