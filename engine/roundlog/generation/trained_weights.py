"""Weights of a language model out of the state that a training has ended in, with adapters (LoRA) merged into them:
each product, sum and conversion rounded once, so that everybody who merges has the same bits."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from roundlog.arithmetic import as_float32, format_of, right_float_mode
from roundlog.generation.model_folder import FolderError
from roundlog.kernels import own_threads
from roundlog.operators import Inexact, operator
from roundlog.operators.elementwise import convert
from roundlog.program import DType, Program
from roundlog.program.model import SAVED, split
from roundlog.rounding import Recorder
from roundlog.spec import MIN_LOG_GUARD

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ADAPTER = re.compile(r"(.+)\.lora_([AB])\.[^.]+\.weight")
_OTHER_ADAPTERS = ("lora_", "modules_to_save", "original_module", "token_adapter")
_MOVES = ("to_bf16", "to_f32", "permute", "reshape", "expand")
_PRODUCTS = ("matmul", "tensor_core_matmul")


def trained_weights(program: Program, states: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights by the names of the model without adapters: W, or W + s (B A) where there is an adapter. B A, its product
    with s and the sum are FP32 numbers, each rounded once; the sum is then rounded to the format of W. s is the factor
    by which the program multiplies the adapter's output. Raises FolderError for adapters that are no LoRA of linear
    layers, and where a result is not finite."""
    plain = {own: states[name] for name in program.state_names for kind, own in [split(name)] if kind in SAVED}
    slots = {split(name)[1]: number for number, name in enumerate(program.state_names) if split(name)[0] in SAVED}
    pairs = dict[str, dict[str, str]]()
    for name in plain:
        if found := _ADAPTER.fullmatch(name):
            if pairs.setdefault(found[1], {}).setdefault(found[2], name) != name:
                raise FolderError(f"{found[1]} has several adapters: train with one")
        elif any(part in name for part in _OTHER_ADAPTERS):
            raise FolderError(f"{name[:200]} belongs to an adapter that is not followed: train LoRA of linear layers")
    merged = dict[str, torch.Tensor]()
    for name, tensor in plain.items():
        if _ADAPTER.fullmatch(name):
            continue
        layer, base, end = name.partition(".base_layer")
        if base and end == ".weight" and layer in pairs:
            pair = pairs.pop(layer)
            if pair.keys() != {"A", "B"}:
                raise FolderError(f"{layer[:200]} has half an adapter: give the state that a job has trained")
            scale = _scale(program, slots[pair["B"]])
            tensor, _ = merged_weight(tensor, plain[pair["B"]], plain[pair["A"]], scale)
        own = layer.removeprefix("base_model.model.") + end
        if own in merged:
            raise FolderError(f"the state has {own[:200]} twice: give the state that a job has trained")
        merged[own] = tensor
    if pairs:
        raise FolderError(f"the adapter of {next(iter(pairs))[:200]} has no linear layer under it")
    return merged


def set_weights(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Gives a model the weights of `trained_weights`: all of them, in their own format, tied ones under any of their
    names. Raises FolderError for those of another model, and if the model's are not all of one format."""
    own = model.state_dict(keep_vars=True)
    if unknown := sorted(weights.keys() - own.keys()):
        raise FolderError(
            f"the state has {unknown[0][:200]}, which the model has not: give the model it was trained from"
        )
    given = {id(own[name]) for name in weights}
    if missing := [name for name, one in own.items() if id(one) not in given]:
        raise FolderError(f"the state lacks {missing[0][:200]}: give the model that it was trained from")
    if len({tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}) != 1:
        raise FolderError("the state has weights of several formats: train a model in BF16 or in FP32")
    for name, tensor in weights.items():
        if own[name].shape != tensor.shape:
            raise FolderError(f"{name[:200]} has another shape than the model's: give the model it was trained from")
        own[name].data = tensor
    model.config.dtype = model.dtype


def _scale(program: Program, slot: int) -> float:
    """The factor of an adapter's output: its matrix B is the second factor of a product, which is multiplied by a
    constant. The first such product is the forward one."""
    values = {q for q, node in enumerate(program.nodes) if node.op == "state" and node.attributes["slot"] == slot}
    product: int | None = None
    for q, node in enumerate(program.nodes):
        if not values & set(node.inputs):
            continue
        if product is None and node.op in _PRODUCTS and node.inputs[1] in values:
            product, values = q, {q}
        elif node.op in _MOVES:
            values.add(q)
        elif product is not None:
            others = [one for one in node.inputs if one not in values]
            if node.op == "mul" and len(others) == 1 and (found := _constant(program, others[0])) is not None:
                return found
            break
    raise FolderError(
        f"the program multiplies no product of {program.state_names[slot][:200]} by a constant: merge LoRA of linear "
        "layers alone"
    )


def _constant(program: Program, value: int) -> float | None:
    node = program.nodes[value]
    while node.op in ("reshape", "expand"):
        node = program.nodes[node.inputs[0]]
    bits = node.attributes.get("bits")
    if node.op != "constant" or node.type.dtype is not DType.F32 or not isinstance(bits, tuple) or len(bits) != 1:
        return None
    return float(struct.unpack("<f", struct.pack("<I", bits[0]))[0])


def merged_weight(base: torch.Tensor, b: torch.Tensor, a: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """W + s (B A) in the format of W, and the largest distance of an element of it from that sum in FP32. Shapes:
    [o, i], [o, r], [r, i]; B and A are FP32. Raises FolderError for others, and for a result that is not finite."""
    fits = base.ndim == a.ndim == b.ndim == 2 and b.dtype == a.dtype == torch.float32 and b.shape[1] == a.shape[0]
    if not fits or (b.shape[0], a.shape[1]) != tuple(base.shape):
        raise FolderError("an adapter does not fit its layer: merge LoRA of linear layers in FP32 alone")
    product = operator("matmul")
    assert isinstance(product, Inexact)
    with own_threads(), right_float_mode("an adapter"):
        low_rank = Recorder(MIN_LOG_GUARD).round(0, product, [b, a], {})
        whole = as_float32(base) + low_rank * torch.tensor(scale, dtype=torch.float32)
        merged = convert(whole, format_of(base.dtype))
    if not bool(merged.isfinite().all()):
        raise FolderError("an adapter makes weights that are not finite: get it again")
    return merged, float((merged.double() - whole.double()).abs().max())
