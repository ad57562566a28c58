"""Amounts of money and of time, and instants, as people read them, exact."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST = 253_402_300_799
"""The last second of the year 9999, the last one that `datetime` has. Nodes and strangers may show any."""


def in_ether(amount: int) -> str:
    """Wei for people, exact: `1.5 ether`, `7 wei`."""
    return f"{amount} wei" if 0 < abs(amount) < 10**9 else exact_ether(amount)


def exact_ether(amount: int) -> str:
    """Wei as ether, exact, however little they are."""
    whole, rest = divmod(abs(amount), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if amount < 0 else ''}{digits} ether"


def in_time(span: int) -> str:
    """Seconds for people, exact: `1d 2h`, `90s` as `1m 30s`."""
    return " ".join(f"{count}{unit}" for count, unit in by_unit(span)) or "0s"


def by_unit(seconds: int) -> list[tuple[int, str]]:
    """Days, hours, minutes and seconds of a span, the largest first, without those of which there are none."""
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append((count, unit))
    return parts


def in_utc(instant: int) -> str:
    """Seconds since 1970 as an instant for people: `2023-11-15 22:13:20 UTC`; beyond the year 9999, the second."""
    if not 0 < instant <= _LAST:
        return f"second {instant}"
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
