"""Amounts of money, times and sizes as people write them. Bare numbers are refused: nobody should guess a unit."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import typer

from tiebreak.memory import usable_memory

_WEI = {"wei": 1, "gwei": 10**9, "ether": 10**18, "eth": 10**18}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MILLISECONDS = {"ms": 1, **{unit: 1000 * count for unit, count in _SECONDS.items()}}
_BYTES = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


def wei(text: str) -> int:
    """`0.5ether`, `20 gwei`, `7wei` -> wei."""
    return _quantity(text, _WEI, "an amount like 0.5ether, 20gwei or 7wei")


def seconds(text: str) -> int:
    """`90s`, `10m`, `24h`, `7d` -> seconds."""
    return _quantity(text, _SECONDS, "a time like 90s, 10m, 24h or 7d")


def interval(least: float, most: float = float("inf")) -> Callable[[str], float]:
    """A parser of `500ms`, `0.5s`, `10m` -> seconds, refused below `least` and above `most`."""

    def read(text: str) -> float:
        value = _quantity(text, _MILLISECONDS, "a time like 500ms, 2s or 10m") / 1000
        if not least <= value <= most:
            raise typer.BadParameter(
                f"{text!r} is less than {least:g} seconds."
                if value < least
                else f"{text!r} is more than {most:g} seconds."
            )
        return value

    return read


def memory(text: str) -> int:
    """`512MiB`, `16GiB` -> bytes; `auto` -> what this process can use at present."""
    if text == "auto":
        return usable_memory()
    return _quantity(text, _BYTES, "a size like 512MiB or 16GiB, or the word auto")


def size(text: str) -> int:
    """`512MiB`, `16GiB` -> bytes."""
    return _quantity(text, _BYTES, "a size like 512MiB or 16GiB")


def _quantity(text: str, units: dict[str, int], example: str) -> int:
    found = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]{1,18})?) ?([A-Za-z]+)", text.strip())
    if found and found[2] in units:
        value = Decimal(found[1]) * units[found[2]]
        if value == int(value):
            return int(value)
    raise typer.BadParameter(f"{text!r} is not {example}.")


def share(text: str) -> float:
    """`0.05` or `all` -> a share between 0 and 1."""
    if text == "all":
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise typer.BadParameter(f"{text!r} is neither a share between 0 and 1 nor the word all.")
    return value
