"""What rank 0 does in the tests where another rank speaks the protocol and lies in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from roundlog.execution.ranks import Ranks
from roundlog.training.helpers import help_with_runs

from tests.engine.ranks.on_helpers import LIMITS, Lead

Lie = Callable[[bytes], bytes]

SIZES = {"a huge length": 2**62, "a negative length": -(2**40)}

MESSAGES: dict[str, Lie] = {
    "no JSON": lambda told: b"\xff{[" + told,
    "another kind of JSON": lambda told: b"[[1]]",
    "lists in lists": lambda told: b"[" * 200_000,
    "a large number": lambda told: b'{"findings": [], "followed": ' + b"9" * 5000 + b"}",
    "a finding of nothing": lambda told: b'{"findings": [{"kind": "x"}], "followed": 1}',
    "no bytes": lambda told: b"",
    "ten megabytes": lambda told: bytes(10**7),
    "an earlier message": lambda told: told,
}

LIES = (*SIZES, *MESSAGES)


def run_lied_to(ranks: Ranks, place: str, lie: str, at: int) -> Any:
    """[roots, warnings] where rank 1 tells a lie from some message on."""
    if ranks.rank:
        _lie(lie, at)
        try:
            help_with_runs(ranks, LIMITS)
        finally:
            # What becomes of the liar is nobody's business.
            print("0", flush=True)
            os._exit(0)
    lead = Lead(ranks, place)
    roots = [lead.train("linear"), lead.train("conv")]
    lead.helpers.dismiss()
    return [roots, lead.warnings]


def _lie(lie: str, at: int) -> None:
    gather_bytes, left, kept = Ranks.gather_bytes, [at], list[bytes]()

    def is_due() -> bool:
        left[0] -= 1
        return left[0] < 0

    def bytes_bent(self: Ranks, data: bytes) -> list[bytes]:
        kept.append(data)
        if not is_due():
            return gather_bytes(self, data)
        if lie in MESSAGES:
            return gather_bytes(self, kept[0] if lie == "an earlier message" else MESSAGES[lie](data))
        self.numbers(SIZES[lie])
        raise SystemExit

    Ranks.gather_bytes = bytes_bent  # type: ignore[method-assign]
