"""The ABI coding against web3's, on random values; and bytes that no contract gives."""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import replace

import pytest
from compare_abi_codecs import (
    EVENTS,
    FUNCTIONS,
    OURS,
    THEIRS,
    aliased,
    by_web3,
    encoded,
    hostile,
    log_of,
    times_read,
    typed,
    value_of,
)
from tiebreak.contract.abi import _TIMES
from tiebreak.rpc.chain_errors import InvalidAnswer


@pytest.mark.parametrize("entry", FUNCTIONS, ids=lambda entry: str(entry["name"]))
def test_calls_are_encoded_as_by_web3_and_results_are_read_back(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        ours = OURS.encode_call(entry["name"], *typed(entry["inputs"], values))
        assert "0x" + ours.hex() == THEIRS.encode_abi(entry["name"], list(values))
        values = tuple(value_of(item, dice) for item in entry["outputs"])
        found = OURS.decode_result(entry["name"], encoded(entry["outputs"], values))
        assert [found] == (typed(entry["outputs"], values) or [None])


@pytest.mark.parametrize("entry", EVENTS, ids=lambda entry: str(entry["name"]))
def test_events_are_read_as_by_web3_and_hostile_ones_end_in_one_error(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        log = log_of(entry, values)
        event = OURS.decode_event(log)
        assert event is not None
        args = by_web3(entry, log)
        assert tuple(args[item["name"]] for item in entry["inputs"]) == values
        assert [getattr(event, name) for name in event.__dataclass_fields__][3:] == typed(entry["inputs"], values)
        for _ in range(10):
            bent = replace(log, data=hostile(log.data, dice))
            try:
                OURS.decode_event(bent)
            except InvalidAnswer as error:
                assert str(error) == f"the node gave data that does not fit {entry['name']}: use another node."


@pytest.mark.parametrize(("elements", "size"), [(1_000, 100_000), (20_000, 32), (2_000, 1_000_000)])
def test_an_answer_whose_parts_are_one_and_the_same_is_refused_at_once(elements: int, size: int) -> None:
    """Regression: 260 KB of offsets to the same bytes made 400 MB of values."""
    data = aliased(elements, size)
    tracemalloc.start()
    begun = time.monotonic()
    try:
        with pytest.raises(InvalidAnswer, match="data that does not fit batch: use another node"):
            OURS.decode_result("batch", data)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(data)
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < 20


def test_nothing_that_the_contract_gives_is_read_more_often_than_is_allowed() -> None:
    assert times_read(random.Random(2), 5) <= _TIMES
