"""Whether the numbers of a tensor are in memory. PyTorch does not look before it reads them: a process that touches
memory which was given back ends by a signal, or reads what is not the tensor's. And memory may hold something else than
the tensor's numbers: a lazy negative or conjugate has those of another tensor, a lazy zero has no memory at all."""

from __future__ import annotations

import torch


def absence(tensor: torch.Tensor) -> str | None:
    """Why the numbers of a plain tensor are nowhere, in one clause; None if they are in memory."""
    if tensor.is_meta:
        return "is on the meta device, where tensors have no numbers"
    if not tensor.numel():
        return None
    if tensor._is_zerotensor():
        return "is a lazy zero of PyTorch's, which has no memory"
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + reach(tensor) + 1) * tensor.element_size():
        return "has given its memory back (.resize_ of its storage), as FSDP does between steps"
    return None


def is_lazy_view(tensor: torch.Tensor) -> bool:
    """Whether the memory of a plain tensor does not hold its numbers: PyTorch's efficient zeros, and what `.conj()` and
    `.imag` of it give."""
    return tensor._is_zerotensor() or tensor.is_neg() or tensor.is_conj()


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of one whose memory does not hold its numbers."""
    return tensor.clone() if is_lazy_view(tensor) else tensor


def reach(tensor: torch.Tensor) -> int:
    """Places in memory from the first element of a plain tensor, which has some, to its last one."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
