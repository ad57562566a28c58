"""Amounts of money, times, instants and sizes, as people read them (exact) and as they write them.

A bare number is refused where a unit belongs: nobody should guess it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

_LAST = 253_402_300_799
"""The last second of the year 9999, the last one that `datetime` has. Nodes and strangers may show any."""

_WEI = {"wei": 1, "gwei": 10**9, "ether": 10**18, "eth": 10**18}

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_MILLISECONDS = {"ms": 1, **{unit: 1000 * count for unit, count in _SECONDS.items()}}

_BYTES = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


def in_ether(amount: int) -> str:
    """Wei for people, exact: `1.5 ether`, `7 wei`."""
    return f"{amount} wei" if 0 < abs(amount) < 10**9 else exact_ether(amount)


def exact_ether(amount: int) -> str:
    """Wei as ether, exact, however little they are."""
    whole, rest = divmod(abs(amount), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if amount < 0 else ''}{digits} ether"


def in_time(span: int) -> str:
    """Return seconds for people, exact: `1d 2h`, `90s` as `1m 30s`."""
    return " ".join(f"{count}{unit}" for count, unit in by_unit(span)) or "0s"


def by_unit(seconds: int) -> list[tuple[int, str]]:
    """Days, hours, minutes and seconds of a span, the largest first, without those that are 0."""
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append((count, unit))
    return parts


def in_utc(instant: int) -> str:
    """Return seconds since 1970 as an instant for people: `2023-11-15 22:13:20 UTC`; beyond the year 9999, the
    second."""
    if not 0 < instant <= _LAST:
        return f"second {instant}"
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def wei(text: str) -> int:
    """`0.5ether`, `20 gwei`, `7wei` -> wei."""
    return _quantity(text, _WEI, "an amount like 0.5ether, 20gwei or 7wei")


def seconds(text: str) -> int:
    """`90s`, `10m`, `24h`, `7d` -> seconds."""
    return _quantity(text, _SECONDS, "a time like 90s, 10m, 24h or 7d")


def interval(least: float, most: float = float("inf")) -> Callable[[str], float]:
    """Return a parser of `500ms`, `0.5s`, `10m` -> seconds, refused below `least` and above `most`."""

    def read(text: str) -> float:
        value = _quantity(text, _MILLISECONDS, "a time like 500ms, 2s or 10m") / 1000
        if not least <= value <= most:
            raise _refused(
                f"{text!r} is less than {least:g} seconds."
                if value < least
                else f"{text!r} is more than {most:g} seconds."
            )
        return value

    return read


def memory(text: str) -> int:
    """`512MiB`, `16GiB` -> bytes; `auto` -> what this process can use at present."""
    if text == "auto":
        # Imported here, since most commands read and write quantities without asking for the machine.
        from tiebreak.process_resources import usable_memory

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
    raise _refused(f"{text!r} is not {example}.")


def share(text: str) -> float:
    """`0.05` or `all` -> a share between 0 and 1."""
    if text == "all":
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise _refused(f"{text!r} is neither a share between 0 and 1 nor the word all.")
    return value


def _refused(why: str) -> Exception:
    """Return the error for a text that is no such quantity. Typer is imported here, since most rooms only write
    quantities."""
    import typer

    return typer.BadParameter(why)
