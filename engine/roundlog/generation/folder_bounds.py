"""Bounds on what a stranger's folder with a model may ask for, before `transformers` reads it: sizes of its small
files, whole numbers of its configuration, weights that its files could hold, and texts that a decoder makes of one
token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

MAX_BYTES = {
    **{"config.json": 4 << 20, "generation_config.json": 1 << 20, "chat_template.jinja": 1 << 20},
    **{"tokenizer.json": 64 << 20, "tokenizer_config.json": 16 << 20, "special_tokens_map.json": 1 << 20},
    **{"added_tokens.json": 4 << 20, "vocab.json": 64 << 20, "vocab.txt": 64 << 20, "merges.txt": 64 << 20},
    **{"tokenizer.model": 64 << 20, "spiece.model": 64 << 20, "model.safetensors.index.json": 64 << 20},
}
"""Most bytes of a file. The largest tokenizer.json that is known, of Gemma, has 33 MB."""
MAX_NUMBER = 1 << 24
"""Largest whole number of a configuration, as of positions, of words, or of a width."""
MAX_LAYERS = 1 << 10
MAX_PARTS = 1 << 16
"""Most experts of all layers."""
MAX_GROWTH = 1 << 10
"""Most characters that the replacements of a decoder make of one."""
_FREE = 1 << 28
"""Numbers that a model may have beside its weights, in tables that it computes."""

_LAYERS = re.compile("(layers?|blocks|depths?|_types)$")
_EXPERTS = re.compile("experts?$")


class BoundError(ValueError):
    """Something that a folder asks for and no model needs. A clause without an end."""


def require_bounded_files(folder: Path) -> None:
    """Raises BoundError for a folder whose files are larger, or ask for more, than those of any model; OSError."""
    for name, most in MAX_BYTES.items():
        path = folder / name
        if path.is_file() and path.stat().st_size > most:
            raise BoundError(f"its {name} has more than {most} bytes")
    if (folder / "config.json").is_file():
        _require_numbers(_json(folder / "config.json"))
    if (folder / "tokenizer.json").is_file():
        tokenizer = _json(folder / "tokenizer.json")
        growth = _growth(tokenizer.get("decoder") if isinstance(tokenizer, dict) else None)
        if growth > MAX_GROWTH:
            raise BoundError(f"the decoder in its tokenizer.json makes {growth:.2g} characters of one")


def require_weights(folder: Path, config: Any) -> None:
    """Raises BoundError for a configuration of `transformers` whose model has more numbers than the folder's files of
    weights could hold: memory is asked for only after this. A number is stored in four bits at least."""
    from transformers import AutoModelForCausalLM

    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not stored:
        return  # transformers says so
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    asked = sum(x.numel() for x in model.parameters()) + max(0, sum(x.numel() for x in model.buffers()) - _FREE)
    if asked > 2 * stored:
        raise BoundError(f"its config.json asks for {asked:,} numbers, more than {stored:,} bytes of weights hold")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BoundError(
            f"its {path.name} is no JSON that could be read ({' '.join(str(error).split())[:100]})"
        ) from None


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Whole numbers in JSON, each with the key that it stands under."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _numbers(inside, key)
    elif isinstance(value, list):
        for inside in value:
            yield from _numbers(inside, name)
    elif type(value) is int or (isinstance(value, float) and abs(value) > MAX_NUMBER):
        yield name, int(min(max(value, -(1 << 62)), 1 << 62))


def _require_numbers(config: Any) -> None:
    layers = experts = 1
    for name, number in _numbers(config):
        # The base of rotary positions is a number of this kind, too, and costs nothing.
        if abs(number) > MAX_NUMBER and "theta" not in name and "base" not in name:
            raise BoundError(f"its config.json has a {name[:60]} of {number:.2g}")
        if _LAYERS.search(name):
            layers = max(layers, number)
        if _EXPERTS.search(name):
            experts = max(experts, number)
    if layers > MAX_LAYERS or layers * experts > MAX_PARTS:
        raise BoundError(f"its config.json has {layers} layers of {experts} experts")


def _growth(part: Any) -> float:
    """Characters that a decoder's replacements make of one, at most."""
    found = 1.0
    for one in _dicts(part):
        content, pattern = one.get("content"), one.get("pattern")
        if one.get("type") == "Replace" and isinstance(content, str):
            literal = pattern.get("String") if isinstance(pattern, dict) else None
            # An expression may find nothing between any two characters.
            length = len(literal) if isinstance(literal, str) and literal else 0
            found *= max(1.0, len(content) / length if length else 1.0 + len(content))
    return found


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inside in value.values():
            yield from _dicts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _dicts(inside)
