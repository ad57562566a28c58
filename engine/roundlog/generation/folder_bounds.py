"""Bounds on what a stranger's model may take: its small parts are read in a fork of this process whose time and memory
are bounded, in which its model is built without memory and held against its files."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import torch

from roundlog.generation.prompt_process import MAX_MEMORY, MAX_SECONDS, START_SECONDS, bound

_FREE = 1 << 28
"""Bytes that a model may have beside its weights, in tables that it computes."""
_ANSWER = 4000


class BoundError(ValueError):
    """Something that a model's files ask for and no model needs. A clause without an end."""


def require_weights(config: Any, held: int, tensors: int) -> int:
    """Return the bytes of the weights of a configuration's model, which is built without memory. held, tensors: numbers
    that the model's files hold at most, and in how many tensors. Raises BoundError for a model with more."""
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
        told = json.loads((os.read(answers, _ANSWER) if wait([answers], START_SECONDS) else b"") or b"[]")
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
    """Do the child's part of `tried`; never return."""
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
