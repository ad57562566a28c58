"""Bounds on what a stranger's model may ask for: sizes of its small files, numbers and lists of its configuration,
weights that its files could hold, and texts that a decoder makes of one token. They are held in a fork of this process
whose time and memory are bounded, in which `transformers` reads the model's small parts for the first time."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from roundlog.generation.prompt_process import MAX_MEMORY, MAX_SECONDS, START_SECONDS, bound, is_ready

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
MAX_ENTRIES = 1 << 18
"""Most values in a configuration, as its class has expanded its lists."""
MAX_GROWTH = 1 << 10
"""Most characters that the replacements of a decoder make of one."""
_FREE = 1 << 28
"""Bytes that a model may have beside its weights, in tables that it computes."""
_ANSWER = 4000

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


def require_bounded_config(config: Any) -> None:
    """Raises BoundError for a configuration of `transformers` that its class has made larger than any model's is."""
    _require_numbers(config.to_dict())


def require_weights(config: Any, held: int, tensors: int) -> int:
    """Bytes of the weights of a configuration's model, which is built without memory: memory is asked for only after
    this. held, tensors: numbers that the model's files hold at most, and in how many tensors. Raises BoundError for a
    model with more."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = list(model.parameters())
    asked = sum(x.numel() for x in parameters)
    computed = sum(x.nbytes for x in model.buffers())
    if asked > held or computed > _FREE + 4 * held:
        raise BoundError(f"its configuration asks for {asked:,} numbers, more than the {held:,} that its weights hold")
    if len(parameters) > tensors:
        raise BoundError(
            f"its configuration asks for {len(parameters)} tensors, more than the {tensors} that are there"
        )
    return sum(x.nbytes for x in parameters)


def tried(work: Callable[[], int]) -> int:
    """Return what `work` returns in a fork of this process whose time and memory are bounded. Nothing that it changes
    stays.

    Raises BoundError, or an exception with the name and words of the one that `work` raises."""
    answers, answer = os.pipe()
    child = os.fork()
    if not child:
        _work_apart(work, answer)
    os.close(answer)
    try:
        told = json.loads((os.read(answers, _ANSWER) if is_ready(answers, START_SECONDS) else b"") or b"[]")
    finally:
        os.close(answers)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not told or told[0] == "MemoryError":
        raise BoundError(
            f"reading its configuration and tokenizer takes more than {MAX_SECONDS:.0f} s or {MAX_MEMORY >> 20} MiB"
        )
    kind, value = told
    if kind == "int":
        return int(value)
    raise BoundError(value) if kind == BoundError.__name__ else type(kind, (Exception,), {})(value)


def _work_apart(work: Callable[[], int], answer: int) -> None:
    """The other side of `tried`, which never returns."""
    try:
        # Panics of tokenizers are told on standard error, and threads of the process that was forked are not here.
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
        bound(MAX_SECONDS)
        told: list[object] = ["int", work()]
    except BaseException as error:
        told = [type(error).__name__, str(error)[: _ANSWER // 8]]
    with suppress(OSError):
        os.write(answer, json.dumps(told).encode()[:_ANSWER])
    os._exit(0)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BoundError(
            f"its {path.name} is no JSON that could be read ({' '.join(str(error).split())[:100]})"
        ) from None


def _values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All that is in JSON, each with the key that it stands under; None for an object or a list itself."""
    if isinstance(value, dict):
        yield name, None
        for key, inside in value.items():
            yield from _values(inside, str(key))
    elif isinstance(value, list | tuple):
        yield name, None
        for inside in value:
            yield from _values(inside, name)
    else:
        yield name, value


def _require_numbers(config: Any) -> None:
    layers = experts = 1
    for place, (name, value) in enumerate(_values(config)):
        if place >= MAX_ENTRIES:
            raise BoundError(f"its configuration has more than {MAX_ENTRIES} values")
        # An infinite number is a limit that is none.
        if type(value) is not int and not (isinstance(value, float) and MAX_NUMBER < abs(value) < math.inf):
            continue
        number = int(min(max(value, -(1 << 62)), 1 << 62))
        # The base of rotary positions is a number of this kind, too, and costs nothing.
        if abs(number) > MAX_NUMBER and "theta" not in name and "base" not in name:
            raise BoundError(f"its configuration has a {name[:60]} of {number:.2g}")
        if _LAYERS.search(name):
            layers = max(layers, number)
        if _EXPERTS.search(name):
            experts = max(experts, number)
    if layers > MAX_LAYERS or layers * experts > MAX_PARTS:
        raise BoundError(f"its configuration has {layers} layers of {experts} experts")


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
