"""Randomness that every machine, and a contract, computes alike: Philox words and the swap-or-not data
order.
"""

from roundlog.randomness.philox import (
    batch_rows,
    epoch_seed,
    philox4x64,
    philox_word,
    row_of_position,
    shuffled_index,
    shuffled_rows,
    stream_key,
    uniform,
)
