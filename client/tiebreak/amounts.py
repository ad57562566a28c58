"""Amounts of money and of time as people read them, exact."""

from __future__ import annotations


def in_ether(amount: int) -> str:
    """Wei for people, exact: `1.5 ether`, `7 wei`."""
    if 0 < abs(amount) < 10**9:
        return f"{amount} wei"
    whole, rest = divmod(abs(amount), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if amount < 0 else ''}{digits} ether"


def in_time(span: int) -> str:
    """Seconds for people, exact: `1d 2h`, `90s` as `1m 30s`."""
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, span = divmod(span, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"
