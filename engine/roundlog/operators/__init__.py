"""The closed operator set. One registry; every entry has shape rule, kernel, error bound and exact evaluation of what a
definition says. `check` holds a program against it."""

from roundlog.definitions import OperatorKind
from roundlog.operators import (
    contraction,
    convolution,
    elementwise,
    movement,
    reduction,
    source,
    tensor_core_matmul,
)
from roundlog.operators.elementwise import check_narrow, compute_narrow
from roundlog.operators.registry import (
    REGISTRY,
    Attributes,
    Direct,
    Inexact,
    Operator,
    Source,
    StepInputs,
    Tensors,
    check,
    operands,
    operator,
    workspace,
)
from roundlog.operators.summation import Summation
