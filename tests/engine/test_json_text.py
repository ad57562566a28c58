"""Texts that Python's reader of JSON takes, and no text of ours may be."""

from __future__ import annotations

import json

import pytest
from roundlog.json_text import canonical_json, parse_json


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "has a key twice: 'c'"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1} {', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        # Python's reader guesses an encoding; two texts would be one.
        ('{"a": 1}'.encode("utf-16"), "is not JSON"),
        ('{"a": 1}'.encode("utf-32-le"), "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
    ],
)
def test_what_two_readers_may_take_for_two_values_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) ") as refused:
        parse_json(text)
    assert says in str(refused.value)


@pytest.mark.parametrize("number", ["1.0", "1e3", "NaN", "Infinity"])
def test_other_numbers_than_integers_are_refused_where_there_are_none(number: str) -> None:
    with pytest.raises(ValueError, match=f"has the number {number}, but all its numbers are integers"):
        parse_json(f'{{"steps": {number}}}', only_integers=True)
    assert parse_json('{"steps": 12, "x": [true, null, "1.5"]}', only_integers=True)["steps"] == 12


def test_one_value_has_one_text() -> None:
    value = {"b": [1, None, "ü"], "a": 0.1}
    assert canonical_json(value) == '{"a":0.1,"b":[1,null,"\\u00fc"]}'
    assert parse_json(canonical_json(value)) == value == json.loads(canonical_json(value))
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
