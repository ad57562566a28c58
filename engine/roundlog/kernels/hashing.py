"""SHA-256 of many short messages that lie one behind the other.

`hashlib` is fast, but a call costs more than hashing 1 KiB, and keeps Python's lock. Here the same library, OpenSSL, is
called from a compiled loop, which does without both, on all of the kernels' threads: in a dispute all outputs of a step
are hashed. Where there is no libcrypto with SHA-256's plain functions, `hashlib` does it.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types

from roundlog.kernels.number_words import instructions
from roundlog.kernels.threads import in_parts

U8 = npt.NDArray[np.uint8]

HASH_SIZE = 32
"""Bytes of a hash."""

_LIBRARIES = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.3.dylib")

_CONTEXT_SIZE = 128
"""Bytes for a SHA256_CTX, which has 112 and is a plain struct that may be copied."""

_FEW = 32
"""Messages for which `hashlib` is as fast."""

_BYTES_AN_ELEMENT = 8
"""Bytes that are hashed in about the time of an element of other kernels."""


def hash_pieces(prefix: bytes, data: bytes | bytearray | memoryview, size: int) -> bytes:
    """SHA-256(prefix || piece) of every piece of `size` bytes of `data`, of which the last may be shorter: 32 bytes
    each, one behind the other."""
    library = _libcrypto() if len(data) > _FEW * size else None
    if library is None:
        return _by_hashlib(prefix, data, size)
    return library.hash_pieces(prefix, data, size)


def _by_hashlib(prefix: bytes, data: bytes | bytearray | memoryview, size: int) -> bytes:
    # Copying a primed hash is cheaper than building one, and leaves the piece where it is.
    primed, view = sha256(prefix), memoryview(data)
    hashes = bytearray()
    for start in range(0, len(view), size):
        state = primed.copy()
        state.update(view[start : start + size])
        hashes += state.digest()
    return bytes(hashes)


class _Libcrypto:
    """OpenSSL's SHA-256. Raises OSError or AttributeError where there is none of that name."""

    def __init__(self, name: str) -> None:
        # Kept here, so that the addresses stay valid.
        self._library = ctypes.CDLL(name)
        self._update, self._final = (
            int(ctypes.cast(function, ctypes.c_void_p).value or 0)
            for function in (self._library.SHA256_Update, self._library.SHA256_Final)
        )

    def hash_pieces(self, prefix: bytes, data: bytes | bytearray | memoryview, size: int) -> bytes:
        """Hashes of all pieces, as the function of that name gives them."""
        primed = np.zeros(_CONTEXT_SIZE, dtype=np.uint8)
        self._library.SHA256_Init(ctypes.c_void_p(primed.ctypes.data))
        self._library.SHA256_Update(ctypes.c_void_p(primed.ctypes.data), prefix, ctypes.c_size_t(len(prefix)))
        source = np.frombuffer(data, dtype=np.uint8)
        count = -(-len(source) // size)
        hashes = np.empty((count, HASH_SIZE), dtype=np.uint8)
        in_parts(
            lambda start, stop: _hash(self._update, self._final, primed, source, size, hashes, start, stop),
            count,
            len(source) // _BYTES_AN_ELEMENT,
        )
        return hashes.tobytes()


@lru_cache(maxsize=1)
def _libcrypto() -> _Libcrypto | None:
    sample = bytes(range(256)) * 9
    for name in _LIBRARIES:
        try:
            library = _Libcrypto(name)
        except (OSError, AttributeError):
            continue
        # A library of that name has to agree with the one that Python was built with.
        if library.hash_pieces(b"\x00", sample, 1000) == _by_hashlib(b"\x00", sample, 1000):
            return library
    return None


def _call(builder: Any, function: Any, *arguments: Any) -> Any:
    """A call of the C function at an address, which returns an int."""
    kind = ir.FunctionType(ir.IntType(32), [argument.type for argument in arguments])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


@instructions(types.int32)
def _update(builder: Any, function: Any, state: Any, data: Any, length: Any) -> Any:
    """int SHA256_Update(SHA256_CTX *state, const void *data, size_t length), all of them as integers."""
    return _call(builder, function, state, data, length)


@instructions(types.int32)
def _final(builder: Any, function: Any, into: Any, state: Any) -> Any:
    """int SHA256_Final(unsigned char *into, SHA256_CTX *state), all of them as integers."""
    return _call(builder, function, into, state)


@njit(cache=True, nogil=True, error_model="numpy")
def _hash(update: int, final: int, primed: Any, source: Any, size: int, hashes: Any, start: int, stop: int) -> None:
    state = np.empty_like(primed)
    first, into = source.ctypes.data, hashes.ctypes.data
    for piece in range(start, stop):
        state[:] = primed
        begin = piece * size
        _update(update, state.ctypes.data, first + begin, min(size, len(source) - begin))
        _final(final, into + piece * HASH_SIZE, state.ctypes.data)
