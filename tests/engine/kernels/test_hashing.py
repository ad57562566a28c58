"""Hashes of many pieces, by OpenSSL from compiled loops, against `hashlib`, one piece after the other."""

from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from roundlog.kernels import hashing
from roundlog.kernels.hashing import hash_pieces


def one_by_one(prefix: bytes, data: bytes, size: int) -> bytes:
    return b"".join(sha256(prefix + data[i : i + size]).digest() for i in range(0, len(data), size))


@given(st.binary(max_size=2), st.integers(1, 200), st.integers(0, 9000), st.integers(0, 2**32))
@example(b"\x00", 55, 55 * 64, 0)
@example(b"\x00", 56, 56 * 64, 0)
@example(b"", 64, 64 * 64, 0)
@example(b"\x01", 63, 63 * 33 + 1, 0)
def test_every_piece_has_its_hash(prefix: bytes, size: int, length: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(length)
    assert hash_pieces(prefix, data, size) == one_by_one(prefix, data, size)
    assert hash_pieces(prefix, memoryview(data), size) == one_by_one(prefix, data, size)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_a_long_list(threads: int) -> None:
    data = np.random.default_rng(0).bytes(300 * 1024 + 17)
    torch.set_num_threads(threads)
    assert hash_pieces(b"\x00", data, 1024) == one_by_one(b"\x00", data, 1024)


def test_here_openssl_is_what_computes() -> None:
    if hashing._libcrypto() is None:
        pytest.skip("no libcrypto with SHA-256's plain functions is here")
    data = bytes(64 * 1024)
    assert hashing._libcrypto().hash_pieces(b"\x00", data, 64) == one_by_one(b"\x00", data, 64)


class Wrong(hashing._Libcrypto):
    """A library that computes something else."""

    def hash_pieces(self, prefix, data, size) -> bytes:
        return bytes(32 * -(-len(data) // size))


@pytest.mark.parametrize(("name", "value"), [("_LIBRARIES", ("libcrypto-of-nobody.so",)), ("_Libcrypto", Wrong)])
def test_without_a_library_that_computes_right_hashlib_does(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing._libcrypto.cache_clear()
    monkeypatch.setattr(hashing, name, value)
    try:
        assert hashing._libcrypto() is None
        assert hash_pieces(b"\x01", bytes(9999), 64) == one_by_one(b"\x01", bytes(9999), 64)
    finally:
        hashing._libcrypto.cache_clear()
