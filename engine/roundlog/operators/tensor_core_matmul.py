"""Products of matrices as a GPU's tensor cores compute them: exact in the sense that they have one result, to the bit,
which any processor can compute. Nothing of them is in doubt, so nothing of them is logged."""

from __future__ import annotations

from dataclasses import replace

import torch

from roundlog.definitions.tensor_core import ARITHMETICS, TensorCoreArithmetic
from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product
from roundlog.operators.registry import Attributes, Direct, Tensors, Types, register
from roundlog.program import Attribute, DType, Node, Program, ProgramError, TensorType


def _named(name: str) -> TensorCoreArithmetic:
    if name not in ARITHMETICS:
        raise ProgramError(f"{name[:40]!r} is no arithmetic of tensor cores: choose {', '.join(ARITHMETICS)}")
    return ARITHMETICS[name]


@register("tensor_core_matmul")
class TensorCoreMatMul(Direct):
    reads_short = True

    def infer(self, inputs: Types, attributes: Attributes, declared: TensorType) -> TensorType:
        self.need_form(inputs, attributes)
        arithmetic = _named(str(attributes["arithmetic"]))
        a, b = (kind.shape for kind in inputs)
        if inputs[0].dtype not in arithmetic.terms:
            raise ProgramError(f"multiplies {inputs[0].dtype}, for which {arithmetic.name} is not defined")
        if len(a) not in (2, 3) or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise ProgramError(f"cannot multiply {list(a)} by {list(b)}")
        return TensorType((-(-a[-1] // arithmetic.segment_terms), *a[:-1], b[-1]), DType.F32)

    def compute(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        a, b = inputs
        arithmetic, dtype = _named(str(attributes["arithmetic"])), DType.of(a.dtype)
        group = GroupArithmetic(arithmetic.fraction_bits, arithmetic.terms_of(dtype), dtype in arithmetic.subnormals)
        # Elements without a value are NaN already.
        found, _ = tensor_core_product(a.cpu(), b.cpu(), group)
        return found.to(a.device)


EXACT = "exact"
"""Arithmetic whose products are the mathematical ones, rounded once: no operator of this room."""


def check_arithmetic(name: str) -> None:
    """Raises ProgramError for an arithmetic of a job that there is not."""
    if name != EXACT and name not in ARITHMETICS:
        raise ProgramError(f"there is no arithmetic {name[:40]!r}: choose {EXACT}, {', '.join(ARITHMETICS)}")


def with_arithmetic(program: Program, name: str) -> Program:
    """The program with its products of matrices of BF16 or FP16 by another arithmetic than EXACT, where that is defined
    for them: the segments' results are added exactly and rounded to FP32, and that to the product's format. All else
    stays, convolutions among it. Raises ProgramError for an arithmetic that there is not, or one that changes
    nothing."""
    check_arithmetic(name)
    if name == EXACT:
        return program
    arithmetic = _named(name)
    rewritten = _Rewritten()
    for node in program.nodes:
        kinds = [program.nodes[value].type for value in node.inputs]
        if node.op == "matmul" and kinds[0].dtype in arithmetic.terms and kinds[0].shape[-1]:
            rewritten.multiply(node, name, -(-kinds[0].shape[-1] // arithmetic.segment_terms))
        else:
            rewritten.keep(node)
    if len(rewritten.nodes) == len(program.nodes):
        dtypes = " or ".join(arithmetic.terms)
        raise ProgramError(f"the program multiplies no matrices of {dtypes}: leave the arithmetic {name} away")
    return replace(program, nodes=tuple(rewritten.nodes))


def arithmetic_of(program: Program) -> str:
    """Names of the arithmetics of a program's products of BF16 and FP16 matrices, of which it usually has one."""
    names = {str(node.attributes["arithmetic"]) for node in program.nodes if node.op == "tensor_core_matmul"}
    return ", ".join(sorted(names)) or EXACT


class _Rewritten:
    """Nodes of a program that is written anew, in the order of the old one's."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: list[int] = []
        """New number of every old node that is written."""

    def keep(self, node: Node) -> None:
        """Write a node as it is."""
        self.nodes.append(replace(node, inputs=self._renumbered(node)))
        self._numbers.append(len(self.nodes) - 1)

    def multiply(self, node: Node, arithmetic: str, segments: int) -> None:
        """Write a product of matrices."""
        shape = node.type.shape
        self.nodes.append(
            Node(
                "tensor_core_matmul",
                self._renumbered(node),
                {"arithmetic": arithmetic},
                TensorType((segments, *shape), DType.F32),
                node.source,
            )
        )
        if segments > 1:
            self._append("sum", {"dims": (0,)}, TensorType((1, *shape), DType.F32), node.source)
        self._append("reshape", {"shape": shape}, TensorType(shape, DType.F32), node.source)
        self._append(f"to_{node.type.dtype}", {}, node.type, node.source)
        self._numbers.append(len(self.nodes) - 1)

    def _append(self, op: str, attributes: dict[str, Attribute], kind: TensorType, source: str) -> None:
        """Write an operator on the last one's output."""
        self.nodes.append(Node(op, (len(self.nodes) - 1,), attributes, kind, source))

    def _renumbered(self, node: Node) -> tuple[int, ...]:
        return tuple(self._numbers[value] for value in node.inputs)
