"""The canonical bytes of a descriptor: `abi.encode` of one Solidity struct (Solidity documentation, "Contract ABI
Specification", strict encoding mode). They are the payload of the operator's leaf under the program root."""

from __future__ import annotations

from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError

from roundlog.commitments import MerkleTree
from roundlog.definitions import Family
from roundlog.descriptors.check import MAX_ENCODED_BYTES, check_descriptor
from roundlog.descriptors.describe import describe
from roundlog.descriptors.descriptor import DTYPE_CODES, Descriptor, DescriptorError, Input, Row
from roundlog.program import Program

INPUT = "(uint64,uint8,uint64[],int64[])"
STRUCT = f"(uint8,uint8,uint8,uint32,uint64[],uint64[],{INPUT}[],int64[],bytes32)"

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """The canonical bytes. Raises DescriptorError as `check_descriptor`."""
    check_descriptor(descriptor)
    encoded = encode([STRUCT], [_plain(descriptor)])
    if len(encoded) > MAX_ENCODED_BYTES:
        raise DescriptorError(f"its descriptor has {len(encoded)} bytes, more than {MAX_ENCODED_BYTES}")
    return encoded


def decode_descriptor(data: bytes) -> Descriptor:
    """Read a descriptor that nobody vouches for. Raises DescriptorError for anything that `encode_descriptor` would
    not have written."""
    if len(data) > MAX_ENCODED_BYTES:
        raise DescriptorError(f"a descriptor of {len(data)} bytes is longer than {MAX_ENCODED_BYTES}")
    try:
        (fields,) = decode([STRUCT], data)
    except (DecodingError, OverflowError) as error:
        raise DescriptorError(f"this is no encoded descriptor: {str(error)[:200]}") from None
    family, code, dtype, segment, iteration, reduction, inputs, parameters, root = fields
    try:
        descriptor = Descriptor(
            family=Family(family),
            code=code,
            dtype=_DTYPES[dtype],
            segment=segment,
            iteration=tuple(iteration),
            reduction=tuple(reduction),
            inputs=tuple(_input(raw, len(iteration) + len(reduction)) for raw in inputs),
            parameters=tuple(parameters),
            root=root,
        )
    except (ValueError, KeyError) as error:
        if isinstance(error, DescriptorError):
            raise
        raise DescriptorError(f"a descriptor has the unknown family or dtype {family}, {dtype}") from None
    if encode_descriptor(descriptor) != data:
        raise DescriptorError("a descriptor is not in canonical form: write it with abi.encode")
    return descriptor


def _plain(descriptor: Descriptor) -> tuple[Any, ...]:
    return (
        int(descriptor.family),
        int(descriptor.code),
        DTYPE_CODES[descriptor.dtype],
        descriptor.segment,
        descriptor.iteration,
        descriptor.reduction,
        [(i.value, DTYPE_CODES[i.dtype], i.view, flat_rows(i.rows)) for i in descriptor.inputs],
        descriptor.parameters,
        descriptor.root,
    )


def flat_rows(rows: tuple[Row, ...]) -> list[int]:
    """offset, divisor, coefficients of every row, one after another."""
    return [number for row in rows for number in (row.offset, row.divisor, *row.coefficients)]


def _input(raw: tuple[Any, ...], axes: int) -> Input:
    value, dtype, view, affine = raw
    width = 2 + axes
    if len(affine) != width * len(view):
        raise DescriptorError(f"an input has {len(affine)} affine numbers for {len(view)} rows of {width}")
    rows = [affine[start : start + width] for start in range(0, len(affine), width)]
    return Input(
        value=value,
        dtype=_DTYPES[dtype],
        view=tuple(view),
        rows=tuple(Row(row[0], tuple(row[2:]), row[1]) for row in rows),
    )


def program_tree(program: Program) -> MerkleTree:
    """The tree whose leaf i has the encoded descriptor of operator i as payload. The program has to have passed
    `roundlog.operators.check`. Raises DescriptorError, naming the operator that no contract could compute."""
    return MerkleTree(encode_descriptor(describe(program, index)) for index in range(len(program.nodes)))


def program_root(program: Program) -> bytes:
    """32 bytes. Arguments and errors as `program_tree`."""
    return program_tree(program).root
