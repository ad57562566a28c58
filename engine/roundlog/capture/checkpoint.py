"""Fine-tuning: a model's parameters and buffers from a safetensors file."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from roundlog.capture.errors import CaptureError

_DTYPES = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Give a model the values of a safetensors file; all of them, or none if it raises.

    The file is one of `safetensors.torch.save_file` or `save_model`, with names as in `model.state_dict()` (tensors
    that are tied under one of their names, or under all), or a trained state of this project (`parameter/...` and
    `buffer/...`; its optimizer slots are left out). Raises CaptureError for a file that cannot be read, lacks a tensor
    of the model, has one that the model has not, or has one of another shape or dtype."""
    try:
        with safe_open(path, framework="pt") as file:
            found = _plain_names(list(file.keys()), path)
            targets = _matching(model, set(found), path)
            for name, target in targets.items():
                piece = file.get_slice(found[name])
                shape, dtype = list(piece.get_shape()), _DTYPES.get(piece.get_dtype(), piece.get_dtype())
                if (shape, dtype) != (list(target.shape), target.dtype):
                    raise CaptureError(
                        f"{name} is {dtype} {shape} in {path}, but {target.dtype} {list(target.shape)} in the model: "
                        "take a checkpoint of this model in this precision"
                    )
            values = {name: file.get_tensor(found[name]) for name in targets}
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"the checkpoint {path} cannot be read ({error}): name a safetensors file") from error
    first_name: dict[int, str] = {}
    for name, target in targets.items():
        other = first_name.setdefault(id(target), name)
        if not torch.equal(values[other], values[name]):
            raise CaptureError(f"{path} has two values for {other} and {name}, which are one tensor in the model")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(values[name])


def _plain_names(names: list[str], path: Path) -> dict[str, str]:
    """Name in the model -> name in the file."""
    plain: dict[str, str] = {}
    for name in names:
        kind, slash, rest = name.partition("/")
        if kind == "slot" and slash:
            continue
        own = rest if slash and kind in ("parameter", "buffer") else name
        if own in plain:
            raise CaptureError(f"{path} has {own} twice, as {plain[own]} and as {name}: leave one away")
        plain[own] = name
    return plain


def _matching(model: nn.Module, found: set[str], path: Path) -> dict[str, torch.Tensor]:
    """The model's tensors that a file with these names has values for."""
    tensors: dict[str, torch.Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    if unexpected := sorted(found - tensors.keys()):
        raise CaptureError(f"{path} has {unexpected[0][:200]!r}, which the model has not ({_more(unexpected)})")
    given = {id(tensors[name]) for name in found}
    # Buffers that a model does not save, it makes by itself.
    if missing := [name for name in model.state_dict() if name in tensors and id(tensors[name]) not in given]:
        raise CaptureError(f"{path} lacks {missing[0]} ({_more(missing)}): take a checkpoint of the whole model")
    return {name: tensor for name, tensor in tensors.items() if name in found}


def _more(names: list[str]) -> str:
    return "the only one" if len(names) == 1 else f"and {len(names) - 1} more"
