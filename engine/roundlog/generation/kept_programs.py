"""Programs of models as they were read from folders, and of what draws tokens, kept between processes beside the
compiled loops, in a place that is ours alone: a capture takes seconds, and gives the same program as long as all that
it depends on is the same."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba.core import config
from torch import nn

from roundlog.capture.real_steps.reachable_values import tensor_digest
from roundlog.kernels.cache import place_for
from roundlog.program import Program, ProgramError, from_json, to_json
from roundlog.storage import replace_file

MOST = 128
"""Programs that are kept; the one that was not used for the longest time goes first."""


def name_of(model: nn.Module, *more: object) -> str | None:
    """The name of a program of a model of `transformers`, by all that its capture depends on: configuration, the code
    of its modules, names, shapes and dtypes of its weights, the numbers in its buffers, versions, and more. None where
    that cannot be told: of modules with hooks, with a forward of their own, or of other packages, whose code may call
    any other."""
    files = set[str]()
    for module in model.modules():
        home = type(module).__module__
        is_known = home.partition(".")[0] in ("torch", "transformers") and not isinstance(
            module, torch.jit.ScriptModule
        )
        if not is_known or "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return None
        files.add(str(sys.modules[home].__file__))
    settings: Any = model.config
    return _digest(
        _versions_and(more),
        repr((type(model).__qualname__, model.training, settings._attn_implementation)).encode(),
        repr(sorted(_settings(settings.to_dict()).items())).encode(),
        *(Path(file).read_bytes() for file in sorted(files)),
        *(repr((name, x.shape, x.dtype)).encode() for name, x in model.named_parameters(remove_duplicate=False)),
        *(repr((name, x.shape, x.dtype, tensor_digest(x))).encode() for name, x in model.named_buffers()),
    ).hex()


def name_of_ours(*what: object) -> str:
    """The name of a program of one of this package's own modules, by all that its capture depends on: `what` names the
    module and its arguments; versions are added. The code is in the name of the place."""
    return _digest(_versions_and(what)).hex()


def _versions_and(what: tuple[object, ...]) -> bytes:
    return repr((torch.__version__, np.__version__, torch.backends.cpu.get_cpu_capability(), what)).encode()


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the places that it was read from."""
    given = {key: value for key, value in config.items() if key != "_name_or_path"}
    return {key: _settings(value) if isinstance(value, dict) else value for key, value in given.items()}


def kept_program(name: str) -> tuple[Program, torch.Tensor] | None:
    """A program and its numbers for a step, f32[columns]; None if they are not kept, or are damaged."""
    path = _place() / name
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, content = data[:32], data[32:]
    if sha256(content).digest() != digest:
        return None
    try:
        size = int.from_bytes(content[:8], "little")
        program = from_json(content[8 : 8 + size])
        schedule = torch.tensor(json.loads(content[8 + size :]), dtype=torch.float32)
    except (ProgramError, ValueError):
        return None
    with suppress(OSError):
        os.utime(path)
    return program, schedule


def keep_program(name: str, program: Program, schedule: torch.Tensor) -> None:
    """Keep a program, as `kept_program` reads it. Where nothing can be written, nothing is kept."""
    text = to_json(program)
    content = len(text).to_bytes(8, "little") + text + json.dumps(schedule.tolist()).encode()
    with suppress(OSError), replace_file(_place() / name) as file:
        file.write(sha256(content).digest() + content)
    with suppress(OSError):
        for old in sorted(_place().iterdir(), key=lambda path: path.stat().st_mtime)[:-MOST]:
            old.unlink(missing_ok=True)


@cache
def _place() -> Path:
    package, settings = Path(__file__).parents[1], config
    sources = sorted(package.rglob("*.py"))
    chosen: str = settings.CACHE_DIR  # type: ignore[attr-defined]
    return place_for(package, _digest(*(source.read_bytes() for source in sources)).hex(), chosen)


def _digest(*parts: bytes) -> bytes:
    """SHA-256 of the digests of parts, so that none runs into the next."""
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()
