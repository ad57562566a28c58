"""JSON that is read strictly, and the one text that is written of a value.

Libraries that read JSON into types were tried for this (msgspec 0.20, pydantic 2.14). Both take the last of two equal
keys without a word, so that two readers may see two receipts in one file; and their sentences name a place ($.steps)
but no remedy. What is left beside that is what `json` does already.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


class RefusedError(ValueError):
    """Something that a text has and none of ours may have, though JSON, or Python's reader of it, allows it."""


def canonical_json(value: object) -> str:
    """The text of a value that JSON can hold: sorted keys, no spaces, ASCII alone. Program files, specs and receipts
    are such texts, and the digests of these. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse_json(text: str | bytes, *, only_integers: bool = False) -> Any:
    """The value of a text that nobody vouches for; its length is the caller's to bound.

    text: bytes are UTF-8 without a mark of byte order, where `json` would guess an encoding.
    only_integers: other numbers are refused.

    Raises ValueError, whose words go on a sentence that names the text ("the spec " ...): it is not JSON, nests too
    deeply to be read, has a key twice, or a number that is refused.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_object,
            parse_constant=_refuse_fraction if only_integers else _refuse_constant,
            parse_float=_refuse_fraction if only_integers else None,
        )
    except RefusedError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RefusedError(f"has a key twice: {twice[:60]!r}")
    return found


def _refuse_fraction(text: str) -> NoReturn:
    raise RefusedError(f"has the number {text[:40]}, but all its numbers are integers")


def _refuse_constant(text: str) -> NoReturn:
    raise RefusedError(f"has {text}, which is not a number of JSON")
