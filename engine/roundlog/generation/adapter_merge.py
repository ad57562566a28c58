"""LoRA adapters in PEFT's files, anybody's, merged into the weights of a language model: every operation is rounded
once, so that everybody who merges has the same bits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from roundlog.generation.folder_files import file_sha256
from roundlog.generation.model_folder import FolderError
from roundlog.generation.trained_weights import merged_weight
from roundlog.json_text import parse_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CONFIGURATION, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIGURATION_BYTES = 1 << 20
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_([AB])\.weight")

_UNMERGED = ("use_dora", "fan_in_fan_out", "lora_bias", "layer_replication", "alora_invocation_tokens", "use_qalora")
"""Settings of an adapter that change what its matrices mean."""


@dataclass(frozen=True, slots=True)
class MergedAdapter:
    """Weights with an adapter merged into them."""

    weights: dict[str, torch.Tensor]
    """Those that it changes, by their names in `state_dict`."""
    largest_rounding: dict[str, float]
    """Of each weight that a product was added to: the largest distance of an element from W + s (B A) in FP32."""
    files: dict[str, bytes]
    """SHA-256 of the adapter's files."""


def merged_adapter(model: PreTrainedModel, folder: Path) -> MergedAdapter:
    """The weights that an adapter of a stranger's makes of a model's, which stays as it is: W + s (B A), FP32 numbers
    each rounded once, the sum rounded to the format of W, with s = lora_alpha / r, or lora_alpha / sqrt(r) where
    `use_rslora` says so; a module of `modules_to_save` takes the place of the model's.

    Raises FolderError, OSError."""
    how = _configuration(folder / _CONFIGURATION)
    own = model.state_dict(keep_vars=True)
    names = Counter(map(id, own.values()))
    weights, rounding = dict[str, torch.Tensor](), dict[str, float]()
    pairs = dict[str, dict[str, torch.Tensor]]()
    for name, tensor in _tensors(folder / _WEIGHTS):
        plain = name.removeprefix(_PREFIX)
        factor = _FACTOR.fullmatch(plain)
        target = f"{factor[1]}.weight" if factor else plain
        base_name = plain.replace(".base_layer.", ".")
        if base_name != plain and base_name in own and torch.equal(own[base_name], tensor):
            continue  # PEFT saves some weights of the model beside the adapter
        if name == plain or target not in own:
            raise FolderError(f"the adapter has {name[:200]}, and the model no {target[:200]}: give its own base model")
        if names[id(own[target])] > 1:
            raise FolderError(
                f"the adapter changes {target[:200]}, which is tied to another weight of the model: save a model "
                "whose embeddings are untied (tie_word_embeddings false), and merge into that"
            )
        if factor is None:
            if not plain.startswith(tuple(_saved(how, own))) or tensor.shape != own[plain].shape:
                raise FolderError(f"{name[:200]} belongs to an adapter that is not followed: merge LoRA alone")
            weights[plain] = tensor.to(own[plain].dtype)
        else:
            pairs.setdefault(factor[1], {})[factor[2]] = tensor
    for layer, pair in pairs.items():
        if pair.keys() != {"A", "B"}:
            raise FolderError(f"{layer[:200]} has half an adapter: get the adapter again")
        base = own[f"{layer}.weight"].detach()
        weights[f"{layer}.weight"], rounding[f"{layer}.weight"] = merged_weight(
            base, pair["B"].float(), pair["A"].float(), _scale(how, layer, pair["A"].shape[0])
        )
    files = {name: file_sha256(folder / name) for name in (_CONFIGURATION, _WEIGHTS)}
    return MergedAdapter(weights, rounding, files)


def _configuration(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_CONFIGURATION_BYTES:
        raise FolderError(f"{path} has more than {_MAX_CONFIGURATION_BYTES} bytes: give an adapter of PEFT")
    try:
        how = parse_json(path.read_bytes())
    except ValueError as error:
        raise FolderError(f"{path} {error}: get the adapter again") from error
    if not isinstance(how, dict) or how.get("peft_type") != "LORA":
        raise FolderError(f"{path} is of no LoRA adapter: merge those of PEFT with peft_type LORA alone")
    if found := [name for name in _UNMERGED if how.get(name)] or ["bias"] * (how.get("bias") != "none"):
        raise FolderError(f"{path} has {found[0]} {how.get(found[0])!r}, which is not merged: train LoRA without it")
    return how


def _saved(how: Mapping[str, Any], own: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Beginnings of the names of modules that the adapter brings whole."""
    for module in how.get("modules_to_save") or ():
        yield from {name.rpartition(".")[0] + "." for name in own if f".{name}".find(f".{module}.") >= 0}


def _scale(how: Mapping[str, Any], layer: str, rank: int) -> float:
    alpha = _of_layer(how.get("alpha_pattern"), layer, how.get("lora_alpha"))
    stated = _of_layer(how.get("rank_pattern"), layer, how.get("r"))
    if type(stated) is not int or stated != rank or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise FolderError(
            f"{layer[:200]} has rank {rank}, and the configuration r {stated!r} and lora_alpha {alpha!r}: get it again"
        )
    return float(alpha / math.sqrt(rank) if how.get("use_rslora") else alpha / rank)


def _of_layer(pattern: Any, layer: str, default: Any) -> Any:
    """The value of a layer by PEFT's patterns: names of modules, or their ends."""
    for name, value in (pattern or {}).items():
        if layer == name or layer.endswith(f".{name}"):
            return value
        if re.search(r"[^\w.]", name):
            raise FolderError(f"the pattern {name[:60]!r} is an expression: name the modules in full")
    return default


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise FolderError(f"{path} is no file of safetensors ({' '.join(str(error).split())[:100]})") from error
