"""What the demo found: each expectation beside what really was. The table and the JSON are two views of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, held against what was observed; equality is all that counts."""

    text: str
    expected: Any
    observed: Any

    @property
    def holds(self) -> bool:
        return bool(self.expected == self.observed)


@dataclass(frozen=True, slots=True)
class Account:
    """One party's money over a story, in wei. `fees`: what its transactions cost; `moved`: all that the contract took
    from it and gave it."""

    name: str
    before: int
    after: int
    fees: int

    @property
    def moved(self) -> int:
        return self.after - self.before + self.fees


@dataclass(kw_only=True, slots=True)
class Story:
    """How a story went. `rounds`: moves in all its games, from challenge to verdict; `gas` of all its transactions."""

    number: int
    title: str
    root: bytes = b""
    rounds: int = 0
    gas: int = 0
    transactions: int = 0
    log_bytes: int = 0
    verdict: str = ""
    seconds: float = 0.0
    accounts: list[Account] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def ended_as_it_should(self) -> bool:
        return bool(self.checks) and all(check.holds for check in self.checks)


@dataclass(kw_only=True, slots=True)
class Contrast:
    """The same training by plain PyTorch on two machines. Hashes as 64 hex digits."""

    initial: dict[str, str] = field(default_factory=dict)
    trained: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Report:
    """The whole demo."""

    machines: dict[str, str]
    steps: int
    interval: int
    seconds: float = 0.0
    contrast: Contrast = field(default_factory=Contrast)
    stories: list[Story] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything was as expected, and nothing was left out."""
        return (
            len(self.stories) == 3
            and all(story.ended_as_it_should for story in self.stories)
            and bool(self.contrast.checks)
            and all(check.holds for check in self.contrast.checks)
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data. Roots are 0x-hex, amounts of wei decimal strings (they exceed what JSON readers keep exactly)."""
        return {
            "ok": self.ok,
            "machines": self.machines,
            "steps": self.steps,
            "interval": self.interval,
            "seconds": round(self.seconds, 1),
            "plain_pytorch": {
                "initial": self.contrast.initial,
                "trained": self.contrast.trained,
                "checks": [_check(check) for check in self.contrast.checks],
            },
            "stories": [_story(story) for story in self.stories],
        }


def _story(story: Story) -> dict[str, Any]:
    plain = asdict(story)
    plain |= {
        "root": "0x" + story.root.hex(),
        "seconds": round(story.seconds, 1),
        "ok": story.ended_as_it_should,
        "accounts": [
            {
                "name": account.name,
                "before_wei": str(account.before),
                "after_wei": str(account.after),
                "fees_wei": str(account.fees),
                "moved_wei": str(account.moved),
            }
            for account in story.accounts
        ],
        "checks": [_check(check) for check in story.checks],
    }
    return plain


def _check(check: Check) -> dict[str, Any]:
    return {"text": check.text, "ok": check.holds, "expected": str(check.expected), "observed": str(check.observed)}
