"""Extremes of BF16 and FP16 on a chain against the reference; others in Formats.t.sol."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from make_format_vectors import corners, format_of
from roundlog.adjudication.adjudicate import finish
from roundlog.adjudication.partial import decode_partial
from roundlog.definitions import Family
from roundlog.descriptors import Descriptor, DescriptorError, Input, Row, encode_descriptor
from roundlog.program import DType
from web3.exceptions import Web3Exception

SHORT = [DType.BF16, DType.F16]


@pytest.mark.parametrize("family", [Family.EXTREME, Family.ARGMAX])
@pytest.mark.parametrize("kind", SHORT)
def test_the_best_number_so_far_is_one_of_the_format_or_refused(adjudicator: Any, kind: DType, family: Family) -> None:
    format = format_of(kind)
    row, labelled = Row(0, (1,)), family == Family.ARGMAX
    descriptor = Descriptor(
        family=family,
        dtype=DType.I64 if labelled else kind,
        segment=1,
        iteration=(),
        reduction=(9,),
        inputs=(Input(0, kind, (9,), (row,)),),
        parameters=(0, 1, 1) if labelled else (),
    )
    encoded = encode_descriptor(descriptor)
    rng = Random(f"extremes of {kind}")
    numbers = [format.in_float32(element) for element in corners(format)]
    others = [0x3F800001, 0x3F801FFF, 0x3F80FFFF, 0x33000000, 0x47800000, 0x7F000000, *map(rng.getrandbits, [32] * 20)]
    accepted = 0
    for pattern in numbers + others:
        words = [word.to_bytes(32, "big") for word in (1, pattern, 0)]
        try:
            right = finish(descriptor, decode_partial(descriptor, b"".join(words)))
        except DescriptorError:
            with pytest.raises(Web3Exception):
                adjudicator.functions.finish(encoded, (words,), 32).call()
        else:
            accepted += 1
            assert adjudicator.functions.finish(encoded, (words,), 32).call() == [0, right], hex(pattern)
    assert len(numbers) <= accepted < len(numbers) + len(others) // 2
