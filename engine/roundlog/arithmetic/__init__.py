"""Correct rounding to FP32 (binary32 of IEEE 754-2019) and narrower formats, of sums of products and of elementary
functions.

Nothing here knows of operators or programs. One rule beyond IEEE 754: a result of zero is +0.
"""

from roundlog.arithmetic.exact_sums import round_function, round_sums
from roundlog.arithmetic.formats import (
    adjacent,
    as_dtype,
    as_float32,
    format_of,
    in_format,
    is_short,
    neighbour,
    ordinal,
    round_interval,
    round_signed,
    round_to,
    torch_dtype,
)
from roundlog.arithmetic.machine import (
    DisturbedError,
    MachineError,
    check_machine,
    retry_disturbed,
    right_float_mode,
)
