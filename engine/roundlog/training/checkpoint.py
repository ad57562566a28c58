"""Values of a model's parameters and buffers from a safetensors file, to fine-tune it or as it was trained here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from roundlog.capture.errors import CaptureError
from roundlog.capture.real_steps.patched_torch import plain_model
from roundlog.data import STORED, absence
from roundlog.program import ProgramError, TensorType
from roundlog.program.model import names_in_model
from roundlog.storage import open_regular

_DTYPES = {
    **{"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool},
    # of buffers that no step changes
    **{"F64": torch.float64, "C64": torch.complex64, "U8": torch.uint8},
    **{"I8": torch.int8, "I16": torch.int16, "I32": torch.int32},
}

_Kind = tuple[object, list[int]]
"""Dtype and shape of a tensor in a file."""
_Read = Callable[[Collection[str]], dict[str, torch.Tensor]]
"""Gives the tensors of a file that have these names in it."""


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Give a model the values of a safetensors file; all of them, or none if it raises.

    The file is one of `safetensors.torch.save_file` or `save_model`, with names as in `model.state_dict()` (tensors
    that are tied under one of their names, or under all), or a trained state of this project (`parameter/...` and
    `buffer/...`; optimizer slots and what else is no tensor of the model are left out). Raises CaptureError for a file
    that cannot be read, lacks a tensor of the model, has one that the model has not, or has one of another shape or
    dtype."""
    try:
        open_regular(path).close()  # the library would wait at a pipe for a writer
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            kinds: dict[str, _Kind] = {
                name: (_DTYPES.get(piece.get_dtype(), piece.get_dtype()), list(piece.get_shape()))
                for name, piece in slices.items()
            }
            _load(model, path, kinds, lambda names: {name: file.get_tensor(name) for name in names})
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"the checkpoint {path} cannot be read ({error}): name a safetensors file") from error


def load_state(model: nn.Module, path: Path, types: Mapping[str, TensorType], read: _Read) -> None:
    """Give a model the values of a trained state, which is not trusted; all of them, or none if it raises. types: of
    its tensors. Raises what reading does, and CaptureError as `load_checkpoint`."""
    kinds: dict[str, _Kind] = {name: (kind.dtype.torch_dtype, list(kind.shape)) for name, kind in types.items()}
    _load(model, path, kinds, read, only=STORED)


def _load(
    model: nn.Module,
    path: Path,
    kinds: Mapping[str, _Kind],
    read: _Read,
    only: Collection[torch.dtype] = tuple(_DTYPES.values()),
) -> None:
    """Give a model the values of a file. kinds: of its tensors, by name. only: dtypes of tensors of the model that the
    file may not lack."""
    try:
        found = names_in_model(kinds)
    except ProgramError as error:
        raise CaptureError(f"{path} {error}") from error
    model = plain_model(model)
    own: dict[str, torch.Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    if unexpected := sorted(found.keys() - own.keys()):
        raise CaptureError(f"{path} has {unexpected[0][:200]!r}, which the model has not ({_more(unexpected)})")
    given = {_place(own[name]) for name in found}
    # Buffers that a model does not save, it makes by itself.
    wanted = [name for name in model.state_dict() if name in own and own[name].dtype in only]
    if missing := [name for name in wanted if _place(own[name]) not in given]:
        if own[missing[0]].is_meta:  # where `.to("meta")` has made one tensor of each name of a tied one
            _require_writable(missing[0], own[missing[0]])
        raise CaptureError(f"{path} lacks {missing[0]} ({_more(missing)}): take a checkpoint of the whole model")
    for name in found:
        (dtype, shape), target = kinds[found[name]], own[name]
        if (dtype, shape) != (target.dtype, list(target.shape)):
            raise CaptureError(
                f"{name} is {dtype} {shape} in {path}, but {target.dtype} {list(target.shape)} in the model: "
                "take a checkpoint of this model in this precision"
            )
        _require_writable(name, target)
    tensors = read(set(found.values()))
    first_name: dict[object, str] = {}
    for name in (name for name in own if name in found):
        other = first_name.setdefault(_place(own[name]), name)
        if not _same_bits(tensors[found[other]], tensors[found[name]]):
            raise CaptureError(f"{path} has two values for {other} and {name}, which are one tensor in the model")
    with torch.no_grad():
        for name in found:
            own[name].copy_(tensors[found[name]])


def _require_writable(name: str, tensor: torch.Tensor) -> None:
    """Raises CaptureError for a tensor of a model that takes no values."""
    why = absence(tensor)
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        why = why or "was made in inference mode"
    if not why and torch._debug_has_internal_overlap(tensor) == 1:
        why = "has one number in several places (.expand)"
    if why:
        raise CaptureError(f"{name} of the model {why}, and cannot be given a value: make the model anew")


def _place(tensor: torch.Tensor) -> object:
    """Where a tensor's elements are: tensors with one place are tied, even if they are several objects."""
    if not tensor.numel():
        return id(tensor)
    return tensor.untyped_storage()._cdata, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


def _same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one is two or torch.equal(one.reshape(-1).view(torch.uint8), two.reshape(-1).view(torch.uint8))


def _more(names: list[str]) -> str:
    return "the only one" if len(names) == 1 else f"and {len(names) - 1} more"
