"""Tensor roots: the Merkle root over the 1 KiB chunks of a tensor's little-endian bytes.

Shape and dtype are not hashed: the program, whose root stands in the spec, fixes them for every tensor that
has a root.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from roundlog.arithmetic import format_of, is_short
from roundlog.commitments.merkle import CommitmentError, MerkleTree, leaf_hashes
from roundlog.kernels.reducing import all_finite
from roundlog.number_format import FLOAT32

CHUNK_SIZE = 1024
"""Bytes in a leaf of a tensor tree; the last one may be shorter."""

Tensor = torch.Tensor | NDArray[np.generic]

_KINDS = "fiub"
"""NumPy kinds that have a root: real floats, integers, bool."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes that are committed to: C order, little-endian, bool as one byte of 0 or 1.

    A contiguous CPU tensor is viewed, not copied. Zeros keep their sign (-0.0 and +0.0 are different bytes).

    Raises CommitmentError for a NaN that is not the canonical one (NaN bits differ between machines: see `canonical`),
    for a bool whose byte is neither 0 nor 1, and for a dtype without one little-endian layout
    (complex, quantised, strings, objects).
    """
    if isinstance(tensor, torch.Tensor) and is_short(tensor.dtype):
        return _short_bytes(tensor)
    array = _as_array(tensor)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
        raise CommitmentError(f"a tensor of dtype {array.dtype} has no root; use float, integer or bool")
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    if array.size == 0:
        return memoryview(b"")
    if array.dtype.kind == "f" and _has_other_nan(array):
        raise CommitmentError(
            "a tensor with a NaN other than 0x7fc00000 has no root, since NaN bits differ between machines"
        )
    flat = array.reshape(-1).view(np.uint8)
    if array.dtype.kind == "b" and flat.max() > 1:
        raise CommitmentError("a bool tensor with a byte other than 0 and 1 has no root")
    return flat.data


def _short_bytes(tensor: torch.Tensor) -> memoryview:
    """`tensor_bytes` of numbers of 16 bits."""
    assert sys.byteorder == "little", "PyTorch tensors are in host byte order"
    kind = format_of(tensor.dtype)
    words = tensor.detach().cpu().contiguous().reshape(-1).view(torch.int16).numpy().view(np.uint16)
    if bool(((words & (kind.sign - 1) > kind.infinity) & (words != kind.nan)).any()):
        raise CommitmentError(
            f"a tensor with a NaN other than {kind.nan:#x} has no root, since NaN bits differ between machines"
        )
    return words.view(np.uint8).data if words.size else memoryview(b"")


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its format's one NaN, 0x7FC00000 of FP32, for every NaN, which is the one that a step's values
    are committed to with: which one a processor makes is its own affair. Itself, where there is none."""
    words = _WORDS.get(tensor.dtype)
    if words is None or not tensor.numel() or not bool(tensor.isnan().any()):
        return tensor
    quiet = torch.tensor(format_of(tensor.dtype).nan, dtype=words, device=tensor.device)
    return torch.where(tensor.isnan(), quiet, tensor.contiguous().view(words)).view(tensor.dtype)


_NAN = FLOAT32.nan
_WORDS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""Integers as wide as the numbers of a dtype."""


def _has_other_nan(array: NDArray[np.generic]) -> bool:
    """Whether a contiguous array of floats, not empty, has a NaN that is not the canonical one."""
    if array.dtype != np.float32:
        # The maximum of anything with a NaN is NaN: one pass, and no mask as large as the tensor.
        return bool(np.isnan(array.max()))
    flat = array.reshape(-1)
    if all_finite(flat.view(np.float32)):
        return False
    return bool((flat.view(np.uint32)[np.isnan(flat)] != _NAN).any())


def _as_array(tensor: Tensor) -> NDArray[np.generic]:
    if isinstance(tensor, np.ndarray):
        return tensor
    assert sys.byteorder == "little", "PyTorch tensors are in host byte order"
    try:
        array: NDArray[np.generic] = tensor.detach().cpu().contiguous().numpy()
    except (TypeError, RuntimeError) as error:
        raise CommitmentError(f"a tensor of dtype {tensor.dtype} has no root; use float, integer or bool") from error
    return array


def tensor_chunk(tensor: Tensor, index: int) -> bytes:
    """The payload of leaf `index` of `tensor_tree(tensor)`: at most 1024 bytes. Raises CommitmentError
    outside it.
    """
    data = tensor_bytes(tensor)
    start = index * CHUNK_SIZE
    if index < 0 or start >= max(len(data), 1):
        raise CommitmentError(f"a tensor of {len(data)} bytes has no chunk {index}")
    return bytes(data[start : start + CHUNK_SIZE])


def tensor_tree(tensor: Tensor) -> MerkleTree:
    """The Merkle tree over the chunks of a tensor of any shape, for openings: at least one, so that an empty tensor has
    an empty chunk. Raises as `tensor_bytes`."""
    return MerkleTree.of_leaf_hashes([leaf_hashes(tensor_bytes(tensor), CHUNK_SIZE)])


def tensor_root(tensor: Tensor) -> bytes:
    """The 32-byte commitment to a tensor of any shape on any device. Raises as `tensor_bytes`."""
    return tensor_tree(tensor).root


def state_tree(tensors: Iterable[Tensor]) -> MerkleTree:
    """The Merkle tree whose leaf payloads are the tensor roots of all state slots, in program order."""
    return MerkleTree([tensor_root(tensor) for tensor in tensors])


def state_root(tensors: Iterable[Tensor]) -> bytes:
    """The 32-byte commitment to a whole state: parameters, buffers and optimizer slots in program order."""
    return state_tree(tensors).root
