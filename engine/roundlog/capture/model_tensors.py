"""A model's tensors by the names that they have among the states of a program."""

from __future__ import annotations

import torch
from torch import nn

from roundlog.program.model import TRANSIENT


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """State name -> the model's own tensor, in the order of `named_parameters` and `named_buffers`, which is that of
    the program. One with several names has the first that `state_dict` holds; so does memory that several share."""
    names: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module.named_buffers(prefix, recurse=False, remove_duplicate=False):
            kept = name.rpartition(".")[2] not in module._non_persistent_buffers_set
            known = names.get(id(tensor))
            if known is None or (kept and known[0].startswith(f"{TRANSIENT}/")):
                names[id(tensor)] = (f"buffer/{name}" if kept else f"{TRANSIENT}/{name}", tensor)
    buffers = dict(names.values())
    memory = {
        tensor.untyped_storage()._cdata for name, tensor in buffers.items() if not name.startswith(f"{TRANSIENT}/")
    }
    # The first name of a memory is the one that counts.
    late = {
        name: tensor
        for name, tensor in buffers.items()
        if name.startswith(f"{TRANSIENT}/") and tensor.untyped_storage()._cdata in memory
    }
    return {
        **{f"parameter/{name}": tensor for name, tensor in model.named_parameters()},
        **{name: tensor for name, tensor in buffers.items() if name not in late},
        **late,
    }
