"""Philox4x64-10: published vectors, NumPy's generator and the scalar reference say the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from roundlog.randomness import philox4x64, philox_word, uniform

# Random123 1.14, tests/kat_vectors, "philox4x64 10": counter, key, result.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    (
        (2**64 - 1,) * 4,
        (2**64 - 1,) * 2,
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_the_reference_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert philox4x64(counter, key) == expected


def words(seed: int, step: int, stream: int, count: int) -> np.ndarray:
    """The first words of a stream, by NumPy."""
    generator = np.random.Philox(key=np.array([seed, (step << 32) + stream], np.uint64))
    return generator.random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]


def test_a_stream_starts_with_the_words_that_are_on_record() -> None:
    # Computed once by NumPy 2.4; a change of these is a change of every dropout mask ever committed.
    record = [957657217, 2590949634, 4252512398, 3831793817, 537811044, 172923922, 702191139, 835696887, 3763209280]
    assert words(7, 3, 11, 9).tolist() == record
    assert [philox_word(7, 3, 11, i) for i in range(9)] == record
    assert uniform(7, 3, 11, (9,)).tolist() == [word // 256 / 2**24 for word in record]


@given(uint64, uint32, uint32, st.integers(0, 70))
def test_every_element_is_that_of_numpy_and_of_the_scalar_reference(
    seed: int, step: int, stream: int, count: int
) -> None:
    values = uniform(seed, step, stream, (count,))
    assert values.tolist() == (words(seed, step, stream, count) / 256 // 1 / 2**24).tolist()
    assert values.tolist() == [philox_word(seed, step, stream, i) // 256 / 2**24 for i in range(count)]


@given(uint64, uint32, uint32, st.integers(0, 2**64 - 1), st.integers(0, 20))
def test_a_stream_can_be_read_from_anywhere(seed: int, step: int, stream: int, first: int, count: int) -> None:
    count = min(count, 2**64 - first)
    values = uniform(seed, step, stream, (count,), first=first)
    assert values.tolist() == [philox_word(seed, step, stream, first + i) // 256 / 2**24 for i in range(count)]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_a_stream(threads: int) -> None:
    torch.set_num_threads(threads)
    values = uniform(2**64 - 3, 2**31, 5, (1_000_003,))
    expected = (words(2**64 - 3, 2**31, 5, 1_000_003) >> np.uint32(8)) / 2**24
    assert np.array_equal(values.numpy(), expected)
