"""Swap-or-not: the mainnet vectors of the consensus specs, and what a data order promises."""

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.randomness import batch_rows, epoch_seed, row_of_position, shuffled_index, shuffled_rows

SEED_A = "0x23bcd11624a07465b1c2fc1a0fe52996daae4bf87b0fb6bed45926096c644843"
SEED_B = "0x26655aab58c18b66870f50a133171c85d9a5ae9dde55c0ca049491a27f4f63e7"

# consensus-spec-tests, tests/mainnet/phase0/shuffling/core/shuffle/shuffle_<seed>_<count>/mapping.yaml:
# (seed, count, SHA-256 of the file, its size). They are Git LFS files: the repository states just these two.
PUBLISHED_FILES = [
    (SEED_A, 2, "a9e7a83939ba21e6073f41f17d23b7b695d00d2abb3b69524ad61aecaa0b19e1", 100),
    (SEED_B, 10, "85aaf86622c782060818e06c73c03ca8193eb0ddb8735904e0b0aeeb074cc023", 125),
    (SEED_B, 33, "e9d28288034061510ef0c2998ec9d57b0b1e1013d6c181b442bca07d4f02f719", 219),
    (SEED_A, 100, "87b4006b75ae9bdeb4bdc3e0b8d9f2d6e204bae50927ba45324baa2cb9a87d3c", 494),
    (SEED_B, 1000, "0889bfd5274976e43d995b18355a423635380529f97df9284fe392f7cd159317", 5105),
]
# Rows of that source, spelled out: the first ones of a count of 9999, and a whole count of 5.
FIRST_OF_9999 = [3192, 2945, 1651, 3028, 4280, 97, 8335, 6476, 4981, 2799, 496, 5487, 9972, 555, 307, 9520]
ALL_OF_5 = [0, 3, 4, 2, 1]


def mapping_yaml(seed: str, mapping: list[int]) -> bytes:
    """The published file's text: a flow list that wraps after the item which passes column 80."""
    lines, line = [], "mapping: ["
    for i, value in enumerate(mapping):
        line += str(value) + ("]" if i == len(mapping) - 1 else ",")
        if i < len(mapping) - 1:
            if len(line) > 80:
                lines.append(line)
                line = "  "
            else:
                line += " "
    return "\n".join([f"seed: '{seed}'", f"count: {len(mapping)}", *lines, line, ""]).encode()


@pytest.mark.parametrize(("seed", "count", "digest", "size"), PUBLISHED_FILES)
def test_the_published_mapping_files_are_reproduced_to_the_byte(seed: str, count: int, digest: str, size: int) -> None:
    rows = shuffled_rows(np.arange(count), count, bytes.fromhex(seed[2:]))
    text = mapping_yaml(seed, rows.tolist())
    assert (len(text), sha256(text).hexdigest()) == (size, digest)


def test_published_mappings_by_the_scalar() -> None:
    seed_a, seed_b = bytes.fromhex(SEED_A[2:]), bytes.fromhex(SEED_B[2:])
    assert [shuffled_index(i, 9999, seed_a) for i in range(16)] == FIRST_OF_9999
    assert [shuffled_index(i, 5, seed_b) for i in range(5)] == ALL_OF_5


@settings(max_examples=30)
@given(st.integers(1, 700), st.binary(min_size=32, max_size=32))
def test_a_shuffle_is_a_permutation(count: int, seed: bytes) -> None:
    assert sorted(shuffled_rows(np.arange(count), count, seed).tolist()) == list(range(count))


@settings(max_examples=30)
@given(st.integers(1, 1 << 40), st.binary(min_size=32, max_size=32), st.data())
def test_a_few_positions_of_a_large_shuffle_are_those_of_the_scalar(
    count: int, seed: bytes, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
    rows = shuffled_rows(positions, count, seed)
    assert rows.tolist() == [shuffled_index(position, count, seed) for position in positions]


def test_an_epoch_seed_is_the_hash_of_its_tagged_big_endian_numbers() -> None:
    data = b"tiebreak/epoch" + bytes([0, 0, 0, 0, 0, 0, 1, 2]) + bytes([0, 0, 0, 0, 0, 0, 0, 3])
    assert epoch_seed(258, 3) == sha256(data).digest()


@pytest.mark.parametrize(("batch_size", "rows"), [(4, 10), (10, 10), (7, 5), (1, 1), (3, 60)])
def test_batches_walk_through_the_permutations_of_one_epoch_after_the_other(batch_size: int, rows: int) -> None:
    steps = 4 * rows // batch_size + 1
    order = np.concatenate([batch_rows(77, step, batch_size, rows) for step in range(steps)])
    assert order.dtype == np.int64
    assert order.tolist() == [row_of_position(77, position, rows) for position in range(len(order))]
    for epoch in range(len(order) // rows):
        epoch_rows = order[epoch * rows : (epoch + 1) * rows]
        assert sorted(epoch_rows.tolist()) == list(range(rows))
        expected = shuffled_rows(np.arange(rows), rows, epoch_seed(77, epoch))
        assert epoch_rows.tolist() == expected.tolist()
