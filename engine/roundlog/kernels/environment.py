"""The floating-point environment of a thread: how it rounds, and whether it keeps subnormal numbers.

It stands in a register of the processor that belongs to the thread: MXCSR on x86-64 (Intel SDM, volume 1, 10.2.3),
FPCR on AArch64 (Arm ARM, C5.2.8). A thread inherits its maker's. Whatever runs on a thread can change it: a library
that was built with -Ofast does so when it is loaded, `torch.set_flush_denormal` and fesetround when they are called.
Nothing warns of it; the bits of results are just different ones.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np


@dataclass(frozen=True, slots=True)
class Register:
    """Register that holds a thread's floating-point environment."""

    code: str
    """LLVM assembly of `i64 get()` and `void set(i64)`."""
    bits: int
    """Bits that change numbers: all of them are 0 where a thread computes as IEEE 754 says."""

    def is_right(self, word: int) -> bool:
        """Whether a thread with this word rounds to nearest, ties to even, and keeps subnormal numbers."""
        return not word & self.bits

    def put_right(self, word: int) -> int:
        """The word with which it does."""
        return word & ~self.bits

    def put_back(self, word: int, before: int) -> int:
        """The word with which it computes as it did with the word `before`."""
        return self.put_right(word) | before & self.bits


MXCSR = Register(
    """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define i64 @get() {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %word = load i32, ptr %place
  %wide = zext i32 %word to i64
  ret i64 %wide
}
define void @set(i64 %wide) {
  %place = alloca i32
  %word = trunc i64 %wide to i32
  store i32 %word, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
""",
    bits=1 << 15 | 3 << 13 | 1 << 6,
)
"""Its bits: flush to zero, the rounding mode (00: to nearest, ties to even), denormals are zero."""

FPCR = Register(
    """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define i64 @get() {
  %word = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %word
}
define void @set(i64 %word) {
  call void @llvm.aarch64.set.fpcr(i64 %word)
  ret void
}
""",
    bits=1 << 24 | 3 << 22 | 1 << 1 | 1 << 0,
)
"""Its bits: FZ, RMode (00: to nearest, ties to even), AH (alternate handling), FIZ (flush inputs to zero). FZ16 and AHP
are about half precision, which nothing here computes with, DN about which NaN comes out, and here there is one."""


class Environment:
    """Floating-point environment of the thread that asks. The register is read and written in some nanoseconds, and a
    call from Python."""

    def __init__(self, register: Register) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(register.code), machine)
        self._engine.finalize_object()
        address = self._engine.get_function_address
        # Not CFUNCTYPE: letting go of Python's lock would take longer than the call.
        self._get: Any = ctypes.PYFUNCTYPE(ctypes.c_uint64)(address("get"))
        self._set: Any = ctypes.PYFUNCTYPE(None, ctypes.c_uint64)(address("set"))
        self._register = register

    def is_right(self) -> bool:
        """Return whether the thread rounds to nearest, ties to even, and keeps subnormal numbers."""
        return self._register.is_right(self._get())

    def put_right(self) -> int | None:
        """Make it so, and return what `put_back` needs; None where there was nothing to do."""
        word: int = self._get()
        if self._register.is_right(word):
            return None
        self._set(self._register.put_right(word))
        return word

    def put_back(self, before: int | None) -> None:
        """Undo that."""
        if before is not None:
            self._set(self._register.put_back(self._get(), before))


def computes_right() -> bool:
    """Return whether some numbers that this thread computes are those of IEEE 754."""
    with np.errstate(all="ignore"):
        small = np.full(2, 2.0**-149, dtype=np.float32)
        kept = (small + small)[0] == np.float32(2.0**-148) and small.astype(np.float64)[0] == 2.0**-149
        sums = np.array([1.0, 1.0, -1.0]) + np.array([1, 3, -3]) * 2.0**-53
    return bool(kept and sums.tolist() == [1.0, 1 + 2.0**-51, -1 - 2.0**-51])


_REGISTERS = {"x86_64": MXCSR, "amd64": MXCSR, "aarch64": FPCR, "arm64": FPCR}

if (_machine := platform.machine().lower()) not in _REGISTERS:
    raise ImportError(f"the processor {_machine} is not known here: use one of x86-64 or AArch64")

ENVIRONMENT = Environment(_REGISTERS[_machine])


@contextmanager
def right_environment() -> Iterator[None]:
    """While this lasts, this thread computes as IEEE 754 says, unless something changes that; then as before."""
    before = ENVIRONMENT.put_right()
    try:
        yield
    finally:
        ENVIRONMENT.put_right()
        ENVIRONMENT.put_back(before)
