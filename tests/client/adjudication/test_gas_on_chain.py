"""The largest honest adjudications fit a transaction, and their estimate, by which segments are cut, is not too low."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from roundlog.adjudication import openings as opened
from roundlog.adjudication.adjudicate import DisputedStep, place_in_field
from roundlog.adjudication.partial import start
from roundlog.commitments import CHUNK_SIZE, MerkleTree, leaf_hash, node_hash, tensor_bytes
from roundlog.descriptors import Descriptor, Family, Input, Row, describe, encode_descriptor
from roundlog.descriptors.describe import GAS_BUDGET, gas, terms_per_segment
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.operators import operator
from roundlog.program import DType, Node, Program, TensorType

from tests.client.adjudication.contract_answers import Memory, setting, tree_of, words
from tests.engine.adjudication.adjudication_cases import of_numbers

LIMIT = 3_000_000
"""Gas limit of one adjudication. The game itself has to do with the operands' proofs and its storage."""
GAME = 300_000


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def described(name: str, inputs: list[torch.Tensor], **attributes: Any) -> tuple[Descriptor, Memory]:
    """The operator on its own, as the engine cuts it."""
    kinds = [TensorType(tuple(x.shape), DType.of(x.dtype)) for x in inputs]
    nodes = [Node("state", (), {"slot": slot}, kind) for slot, kind in enumerate(kinds)]
    output = operator(name).infer(kinds, attributes, TensorType((), DType.F32))
    nodes.append(Node(name, tuple(range(len(kinds))), attributes, output))
    names = tuple(f"s{slot}" for slot in range(len(kinds)))
    program = Program(nodes=tuple(nodes), state_names=names, data_names=(), schedule_names=(), batch_size=1)
    memory = Memory(values={number: bytes(tensor_bytes(x)) for number, x in enumerate(inputs)})
    return describe(program, len(inputs)), memory


def in_subnormals(descriptor: Descriptor, memory: Memory) -> tuple[Descriptor, Memory]:
    """The same operator on F16 as the engine cuts it, and on the numbers that cost the most to read: the first 1023
    subnormal ones, in the order of the FP32 ones."""
    values = dict(memory.values)
    for item in descriptor.inputs:
        if item.dtype != DType.F32:
            continue
        numbers = torch.frombuffer(bytearray(memory.values[item.value]), dtype=torch.float32)
        values[item.value] = bytes(tensor_bytes((1 + numbers.argsort().argsort() % 1023).short().view(torch.float16)))
    descriptor = of_numbers(descriptor, DType.F16)
    return replace(descriptor, segment=terms_per_segment(descriptor)), Memory(values=values)


def spent(adjudicator: Any, descriptor: Descriptor, element: int, memory: Memory, rows: int = 1) -> int:
    """Gas of the first segment, or of all, as a transaction of its own."""
    step = DisputedStep(step=1, seed=5, batch_size=1, data_rows=rows)
    roots = [tree_of(memory.values[item.value]).root for item in descriptor.inputs]
    question, told = (encode_descriptor(descriptor), roots, element), setting(memory, step)
    if descriptor.family in REDUCTIONS:
        first = start(descriptor)
        _, chunks = opened.segment_openings(descriptor, element, first, 0, memory)
        openings = memory.openings(descriptor, chunks)
        call = adjudicator.functions.reduceSegment(told, question, 0, words(first), openings)
    else:
        _, chunks = opened.openings(descriptor, element, step, memory)
        call = adjudicator.functions.compute(told, question, memory.openings(descriptor, chunks))
    used: int = call.estimate_gas({"gas": 20_000_000})
    return used


REDUCED: dict[str, Callable[[], tuple[Descriptor, Memory]]] = {
    "a column": lambda: described("matmul", [normal(2, 768), normal(768, 1024)]),
    "a dot product": lambda: described("matmul", [normal(1, 8192), normal(8192, 1)]),
    "a sum of chosen ones": lambda: described(
        "scatter_add", [normal(8192), torch.zeros(8192, dtype=torch.int64)], dim=0, size=1
    ),
    "a rising maximum": lambda: described("amax", [torch.arange(8192.0)], dims=(0,)),
    "the place of a rising maximum": lambda: described("argmax", [torch.arange(8192.0)], dim=0),
    "a bias": lambda: described("sum", [normal(16, 8, 14, 14)], dims=(0, 2, 3)),
    "a convolution": lambda: described(
        "conv2d", [normal(2, 96, 17, 17), normal(4, 96, 3, 3)], stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1
    ),
    "a convolution's kernel": lambda: described(
        "conv2d_grad_weight",
        [normal(8, 4, 16, 16), normal(8, 3, 16, 16)],
        size=(3, 3),
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        groups=1,
    ),
}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("name", REDUCED)
def test_a_segment_fits_a_transaction_as_estimated(adjudicator: Any, name: str, dtype: DType) -> None:
    descriptor, memory = REDUCED[name]()
    if dtype == DType.F16:
        descriptor, memory = in_subnormals(descriptor, memory)
    used = spent(adjudicator, descriptor, descriptor.elements // 2, memory)
    estimate = gas(descriptor, min(descriptor.segment, descriptor.terms))
    # The transaction, the descriptor and the setting are not part of the estimate.
    assert used < estimate + 200_000 <= GAS_BUDGET + 200_000 <= LIMIT - GAME, (used, estimate, descriptor.segment)


@pytest.mark.parametrize(
    ("arithmetic", "dtype"),
    [("hopper", DType.BF16), ("hopper", DType.F16), ("ampere", DType.BF16), ("volta", DType.F16)],
)
@pytest.mark.parametrize(("left", "right"), [((2, 768), (768, 1024)), ((1, 8192), (8192, 1))])
def test_a_segment_of_tensor_cores_fits_a_transaction_as_estimated(
    adjudicator: Any, arithmetic: str, dtype: DType, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    operands = [normal(*shape).to(dtype.torch_dtype) for shape in (left, right)]
    descriptor, memory = described("tensor_core_matmul", operands, arithmetic=arithmetic)
    used = spent(adjudicator, descriptor, descriptor.elements // 2, memory)
    estimate = gas(descriptor, descriptor.segment)
    assert used < estimate + 200_000 <= LIMIT - GAME, (used, estimate, descriptor.segment)
    # A group is not cut: of a column that strides over a chunk a term it takes more.
    assert estimate <= GAS_BUDGET or descriptor.segment == descriptor.group, (estimate, descriptor.segment)
    # Nor is it so high that segments are much shorter than they could be.
    assert left == (2, 768) or estimate < 1.6 * used, (used, estimate, descriptor.segment)


def test_one_of_64_operands_fits_a_transaction(adjudicator: Any) -> None:
    descriptor, memory = described("cat", [normal(3, 50) + i for i in range(64)], dim=1)
    assert spent(adjudicator, descriptor, descriptor.elements - 1, memory) < LIMIT - GAME


def test_a_number_of_the_largest_field_fits_a_transaction(adjudicator: Any) -> None:
    """2^40 int64, in windows of 2^20 that overlap by half: a proof as deep as any."""
    rows, items, stride = (1 << 21) - 1, 1 << 20, 1 << 19
    descriptor = Descriptor(family=Family.DATA, dtype=DType.I64, iteration=(items,), parameters=(0, 1, items, stride))
    step = DisputedStep(step=1, seed=5, batch_size=1, data_rows=rows)
    place = 8 * place_in_field(descriptor, 9, step)
    chunk, below = bytes(range(256)) * 4, [bytes([depth]) * 32 for depth in range(33)]
    node = leaf_hash(chunk)
    for depth, sibling in enumerate(below):
        node = node_hash(sibling, node) if place // CHUNK_SIZE >> depth & 1 else node_hash(node, sibling)
    told = setting(Memory(), step)
    told = ((*told[0][:6], MerkleTree([node]).root, *told[0][7:]), *told[1:])
    opened = [(0, 0, node, []), (1, place // CHUNK_SIZE, chunk, below)]
    call = adjudicator.functions.compute(told, (encode_descriptor(descriptor), [], 9), opened)
    at = place % CHUNK_SIZE
    assert call.call() == [0, int.from_bytes(chunk[at : at + 8], "little")]
    assert call.estimate_gas({"gas": 20_000_000}) <= 1_000_000 - GAME


def test_the_largest_descriptor_of_a_read_fits_a_transaction(adjudicator: Any) -> None:
    """16 axes and as many view axes, which no operator of the registry has."""
    axes = (2,) * 16
    rows = tuple(Row(0, tuple(int(axis == other) for other in range(16))) for axis in range(16))
    inputs = tuple(Input(value, DType.F32, axes, rows) for value in range(3))
    descriptor = Descriptor(family=Family.COPY, dtype=DType.F32, iteration=axes, inputs=inputs)
    data = bytes(tensor_bytes(normal(1 << 16)))
    assert spent(adjudicator, descriptor, 65535, Memory(values=dict.fromkeys(range(3), data))) < LIMIT - GAME
