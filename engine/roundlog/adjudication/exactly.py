"""Answers of the referee, where the contract cannot tell."""

from __future__ import annotations

import numpy as np

from roundlog.adjudication.adjudicate import DisputedStep
from roundlog.arithmetic import round_function
from roundlog.commitments import tensor_bytes
from roundlog.commitments.tensors import Tensor
from roundlog.descriptors.descriptor import Descriptor, Function
from roundlog.randomness import row_of_position


def function_value(code: Function, x: int, bits: int) -> int:
    """The value of a function at a bit pattern of FP32, rounded once to a format of `bits` bits, as the bits that it
    has in FP32; those of an infinity or NaN where it has no finite value."""
    argument = np.array([x], dtype=np.uint32).view(np.float32)
    return int(round_function(code.name.lower(), argument, bits).view(np.uint32)[0])


def data_value(descriptor: Descriptor, element: int, step: DisputedStep, dataset: list[Tensor]) -> int:
    """The bits of an element of a DATA operator, from the whole data set (fields [rows, ...] in program order)."""
    offset, _, items = descriptor.parameters
    sample, item = divmod(element, items)
    row = row_of_position(step.seed, step.step * step.batch_size + sample, step.data_rows)
    data = b"".join(bytes(tensor_bytes(field[row])) for field in dataset)
    size = descriptor.dtype.itemsize
    return int.from_bytes(data[offset + item * size : offset + (item + 1) * size], "little")
