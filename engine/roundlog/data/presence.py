"""Whether the numbers of a tensor are in memory. PyTorch does not look before it reads them: a process that touches
memory which was given back ends by a signal, or reads what is not the tensor's."""

from __future__ import annotations

import torch


def absence(tensor: torch.Tensor) -> str | None:
    """Why the numbers of a plain tensor are nowhere, in one clause; None if they are in memory."""
    if tensor.is_meta:
        return "is on the meta device, where tensors have no numbers"
    if not tensor.numel():
        return None
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + reach(tensor) + 1) * tensor.element_size():
        return "has given its memory back (.resize_ of its storage), as FSDP does between steps"
    return None


def reach(tensor: torch.Tensor) -> int:
    """Places in memory from the first element of a plain tensor, which has some, to its last one."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
