"""The report of the demo: each expectation beside what was observed. The table and the JSON are two views of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class StoryName(StrEnum):
    """The stories of the demo. `market`, about paid audits, has to be asked for."""

    HONEST = "honest"
    POISONED = "poisoned"
    ALARMS = "alarms"
    MARKET = "market"


USUAL = (StoryName.HONEST, StoryName.POISONED, StoryName.ALARMS)


@dataclass(frozen=True, slots=True)
class Check:
    """An expectation beside what was observed; it holds if both are equal."""

    text: str
    expected: Any
    observed: Any

    @property
    def holds(self) -> bool:
        return bool(self.expected == self.observed)


def hold(checks: Sequence[Check]) -> bool:
    """Return whether there are checks, and all hold."""
    return bool(checks) and all(check.holds for check in checks)


@dataclass(frozen=True, slots=True)
class AccountReport:
    """A party's money over a story, in wei. `fees`: the price of its transactions; `moved`: the balance of what the
    contract took and gave."""

    name: str
    before: int
    after: int
    fees: int

    @property
    def moved(self) -> int:
        return self.after - self.before + self.fees


@dataclass(kw_only=True, slots=True)
class Story:
    """A story as it was played. `rounds`: moves in all its games, challenge to verdict; `gas`: of all its
    transactions."""

    name: StoryName
    title: str
    root: bytes = b""
    rounds: int = 0
    gas: int = 0
    transactions: int = 0
    log_bytes: int = 0
    verdict: str = ""
    seconds: float = 0.0
    accounts: list[AccountReport] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Contrast:
    """One training by plain PyTorch on two machines, as hashes of 64 hex digits."""

    initial: dict[str, str] = field(default_factory=dict)
    trained: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Report:
    """The whole demo."""

    machines: dict[str, str]
    steps: int
    interval: int
    asked: tuple[StoryName, ...] = USUAL
    seconds: float = 0.0
    contrast: Contrast | None = None
    """The comparison by plain PyTorch; None if single stories were asked for."""
    stories: list[Story] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if everything was as expected and nothing was left out."""
        parts: list[Story | Contrast] = [*self.stories] if self.contrast is None else [*self.stories, self.contrast]
        return {story.name for story in self.stories} == set(self.asked) and all(hold(part.checks) for part in parts)

    def as_json(self) -> dict[str, Any]:
        """Return plain data. Roots are 0x-hex, amounts of wei decimal strings (they exceed what JSON readers keep
        exactly)."""
        return {
            "ok": self.ok,
            "asked": list(self.asked),
            "machines": self.machines,
            "steps": self.steps,
            "interval": self.interval,
            "seconds": round(self.seconds, 1),
            "plain_pytorch": _plain(self.contrast),
            "stories": _plain(self.stories),
        }


def _plain(value: Any) -> Any:
    """Return a part of the report as JSON values."""
    match value:
        case Check():
            expected, observed = (
                f"0x{one.hex()}" if isinstance(one, bytes) else str(one) for one in (value.expected, value.observed)
            )
            return {"text": value.text, "ok": value.holds, "expected": expected, "observed": observed}
        case AccountReport():
            wei = {f"{name}_wei": str(getattr(value, name)) for name in ("before", "after", "fees", "moved")}
            return {"name": value.name} | wei
        case Story() | Contrast():
            plain = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
            return plain | {"ok": hold(value.checks)} if isinstance(value, Story) else plain
        case list():
            return [_plain(one) for one in value]
        case bytes():
            return f"0x{value.hex()}"
        case float():
            return round(value, 1)
    return value
