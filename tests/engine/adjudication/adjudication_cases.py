"""Operators as programs of their own, and their tensors as chunks, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from roundlog.adjudication.adjudicate import Chunk, Tree, encode
from roundlog.adjudication.openings import OperandOpening
from roundlog.commitments import CHUNK_SIZE
from roundlog.descriptors import Descriptor, describe
from roundlog.operators import operator
from roundlog.program import DType, Node, Program, TensorType

from tests.engine.oracle.array import from_torch


def kind_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), DType.of(tensor.dtype))


def program_of(name: str, inputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]) -> Program:
    """Data, and the operator on them as the last node."""
    kinds = [kind_of(x) for x in inputs]
    nodes = [Node("data", (), {"slot": slot}, kind) for slot, kind in enumerate(kinds)]
    output = operator(name).infer(kinds, attributes, TensorType((), DType.F32))
    nodes.append(Node(name, tuple(range(len(kinds))), attributes, output))
    names = tuple(f"s{slot}" for slot in range(len(kinds)))
    return Program(nodes=tuple(nodes), state_names=(), data_names=names, schedule_names=(), batch_size=1)


def descriptor_of(name: str, inputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]) -> Descriptor:
    return describe(program_of(name, inputs, attributes), len(inputs))


def of_numbers(descriptor: Descriptor, dtype: DType) -> Descriptor:
    """A descriptor of FP32 with another dtype of numbers."""

    def other(kind: DType) -> DType:
        return dtype if kind == DType.F32 else kind

    inputs = tuple(replace(item, dtype=other(item.dtype)) for item in descriptor.inputs)
    return replace(descriptor, dtype=other(descriptor.dtype), inputs=inputs)


class Opened:
    """The chunks that were opened, and no others."""

    def __init__(self, proved: Iterable[OperandOpening]) -> None:
        self.payloads = {opening.chunk: opening.payload for opening in proved}

    def payload(self, chunk: Chunk) -> bytes:
        return self.payloads[chunk]


class Bits:
    """Chunks of tensors by value number. Unlike a commitment, it has nothing against NaN: movement copies any bits."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.data = []
        for tensor in tensors:
            array = from_torch(tensor)
            dtype = DType(array.dtype)
            self.data.append(b"".join(encode(dtype, item) for item in array.items))

    def payload(self, chunk: Chunk) -> bytes:
        assert chunk.tree == Tree.VALUE
        data = self.data[chunk.tensor]
        assert 0 <= chunk.index < max(1, -(-len(data) // CHUNK_SIZE))
        return data[chunk.index * CHUNK_SIZE :][:CHUNK_SIZE]
