"""Answers of the referee, where the contract cannot tell."""

from __future__ import annotations

import numpy as np

from roundlog.arithmetic import round_function
from roundlog.descriptors.descriptor import Function


def function_value(code: Function, x: int, bits: int) -> int:
    """The value of a function at a bit pattern of FP32, rounded once to a format of `bits` bits, as the bits that it
    has in FP32; those of an infinity or NaN where it has no finite value."""
    argument = np.array([x], dtype=np.uint32).view(np.float32)
    return int(round_function(code.name.lower(), argument, bits).view(np.uint32)[0])
