"""The result of an audit of a published run, as a file says it: what was audited of which claim, and what was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_ADDRESS = 200
MAX_REASON = 200
"""Most characters of an address, and of why a run stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongInterval:
    """An interval that does not end in the root claimed after it."""

    interval: int
    root: bytes
    """The root that it ends in; of fabricated values if it stops."""
    stopped: str | None
    """Why it stops; None if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Findings of an audit. They stand beside the claimed roots, from which anybody can repeat it."""

    job: str
    """Content address of the job."""
    claim: str
    """Content address of the log, or of the receipt, whose roots were audited."""
    parts: int
    """Parts of the run that can be audited each for itself: from one published state to the next."""
    drawn: int
    """Parts that were drawn, at random, and audited as far as nothing wrong was found before."""
    right: tuple[tuple[int, int], ...]
    """Intervals that were found right, as ranges from the first one up to, and without, the last; ascending."""
    wrong: WrongInterval | None

    def plain(self) -> dict[str, Any]:
        """The result as JSON has it."""
        wrong = self.wrong
        return {
            "job": self.job,
            "claim": self.claim,
            "parts": self.parts,
            "drawn": self.drawn,
            "right": [list(one) for one in self.right],
            "wrong": None
            if wrong is None
            else {"interval": wrong.interval, "root": "0x" + wrong.root.hex(), "stopped": wrong.stopped},
        }


def interval_ranges(intervals: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges, each from its first number up to, and without, its last."""
    found: list[tuple[int, int]] = []
    for one in intervals:
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return tuple(found)


def parse_audit_record(plain: object, intervals: int) -> AuditRecord:
    """The result in a file of a stranger, of a run of so many intervals. Raises ValueError, with a clause."""
    fields = _fields("audit", plain, "job", "claim", "parts", "drawn", "right", "wrong")
    for name in ("job", "claim"):
        if not isinstance(fields[name], str) or not re.fullmatch(f"[!-~]{{1,{MAX_ADDRESS}}}", fields[name]):
            raise ValueError(f"the {name} of its audit is no address")
    parts = _number("parts", fields["parts"], 1, intervals)
    drawn = _number("drawn", fields["drawn"], 1, parts)
    right, end = fields["right"], 0
    if not isinstance(right, list):
        raise ValueError("the right intervals of its audit are no list")
    for one in right:
        if not (isinstance(one, list) and len(one) == 2):
            raise ValueError("the right intervals of its audit are no ranges")
        first = _number("right", one[0], end, intervals - 1)
        end = _number("right", one[1], first + 1, intervals)
    wrong = _wrong(fields["wrong"], intervals)
    if wrong is not None and any(first <= wrong.interval < stop for first, stop in right):
        raise ValueError("an interval of its audit is right and wrong")
    return AuditRecord(
        job=fields["job"],
        claim=fields["claim"],
        parts=parts,
        drawn=drawn,
        right=tuple((first, stop) for first, stop in right),
        wrong=wrong,
    )


def _wrong(plain: object, intervals: int) -> WrongInterval | None:
    if plain is None:
        return None
    fields = _fields("wrong interval", plain, "interval", "root", "stopped")
    root, stopped = fields["root"], fields["stopped"]
    if not isinstance(root, str) or not re.fullmatch("0x[0-9a-f]{64}", root):
        raise ValueError("the root of its wrong interval is not 0x and 64 lower-case hex digits")
    if stopped is not None and not (isinstance(stopped, str) and re.fullmatch(f"[ -~]{{0,{MAX_REASON}}}", stopped)):
        raise ValueError(f"the reason of its wrong interval is not a text of at most {MAX_REASON} ASCII characters")
    interval = _number("interval", fields["interval"], 0, intervals - 1)
    return WrongInterval(interval=interval, root=bytes.fromhex(root[2:]), stopped=stopped)


def _fields(what: str, plain: object, *names: str) -> dict[str, Any]:
    if not isinstance(plain, dict) or plain.keys() != set(names):
        raise ValueError(f"its {what} has other keys than {', '.join(names)}")
    return plain


def _number(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} of its audit is not a number from {least} to {most}")
    return value
