"""Tapes that are played step after step: by the interpreter until that has cost about what compiling costs, then by
machine code. Both give the same bits."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from roundlog.kernels.machine_code import COLUMNS, ROWS, SCALAR, WHOLE, Form, MachineCode
from roundlog.kernels.tape import Assignments, Tape, play
from roundlog.kernels.threads import in_parts

WORTH = 1 << 25
"""Elements times instructions that the interpreter does in the milliseconds that compiling takes."""

_CACHED = 1 << 18
"""Elements of an output that could still be in the cache when it is needed."""

_GRAIN = 1 << 12
"""Elements between which threads may be given different parts."""


@dataclass(frozen=True, slots=True)
class TapeOperand:
    """Operand of a chain, which fills an input register: element e of the output reads element (e // inner) % count."""

    kind: int
    """F32, BOOL or BF16."""
    inner: int
    count: int

    def read(self, size: int) -> int:
        if self.inner == 1 and self.count == size:
            return WHOLE
        if self.count == 1:
            return SCALAR
        return ROWS if self.inner > 1 else COLUMNS


class _Played:
    """State that all chains of one form share."""

    def __init__(self) -> None:
        self.work = 0
        """Elements times instructions that have been interpreted."""
        self.code: MachineCode | None = None
        self.lock = threading.Lock()


_FORMS: WeakValueDictionary[Form, _Played] = WeakValueDictionary()
"""Machine code goes when the last program does that needs it."""

_FORMS_LOCK = threading.Lock()


class Chain:
    """A tape over `size` > 0 elements: machine code divides by numbers of rows and columns."""

    def __init__(
        self, tape: Tape, inputs: Sequence[TapeOperand], outputs: Sequence[int], size: int, last: bool = False
    ) -> None:
        """outputs: F32, BOOL or BF16. last: nobody reads the outputs for a while; their memory begins at multiples of
        ALIGNMENT bytes."""
        self._tape, self._size = tape, size
        self._work = size * len(tape.instructions)
        reads = tuple((operand.read(size), operand.kind) for operand in inputs)
        streamed = last and size >= _CACHED and all(read in (WHOLE, SCALAR) for read, _ in reads)
        self._form = Form(Assignments.of(tape, len(inputs)), reads, tuple(outputs), streamed)
        with _FORMS_LOCK:
            self._played = _FORMS.setdefault(self._form, _Played())
        self._inputs = np.array([(0, x.kind, x.inner, x.count) for x in inputs], dtype=np.int64).reshape(-1, 4)
        self._outputs = np.array(
            [(register, 0, kind) for register, kind in zip(tape.outputs.tolist(), outputs, strict=True)], dtype=np.int64
        ).reshape(-1, 3)
        patterns = [number for x in inputs for number in (x.inner, x.count)]
        self._patterns = (ctypes.c_int64 * len(patterns))(*patterns)
        self._addresses: Any = ctypes.c_int64 * (len(inputs) + len(outputs))

    def play(self, inputs: list[int], outputs: list[int]) -> bool:
        """inputs, outputs: addresses of memory that is the caller's, contiguous, and outlives the call. Returns False
        if a result that has to be finite is not."""
        code = self._played.code or self._compiled()
        if code is None:
            sources, targets = self._inputs.copy(), self._outputs.copy()
            sources[:, 0], targets[:, 1] = inputs, outputs
            return play(self._tape, sources, targets, self._size)
        addresses, results, call = self._addresses(*inputs, *outputs), [], code
        size = self._size
        if size <= _GRAIN:
            return code(addresses, self._patterns, 0, size)

        def part(start: int, stop: int) -> None:
            results.append(call(addresses, self._patterns, start * _GRAIN, min(stop * _GRAIN, size)))

        in_parts(part, -(-size // _GRAIN), size * (1 + len(self._tape.instructions) // 8))
        return all(results)

    def _compiled(self) -> MachineCode | None:
        """The machine code, which is made if it is time for it; None before."""
        played = self._played
        with played.lock:
            played.work += self._work
            if played.code is None and played.work > WORTH:
                played.code = MachineCode(self._form)
            return played.code
