"""Coalitions of a customer, a trainer and puppets against honest auditors of one right claim, to the wei: what each
gets by the rule of the contract, and by the rule before it, which divided the fee among all attestations.

`simulate_audits.py` prints its tables. Gas and the cost of work are left out: they only make a coalition dearer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    SHARED = "shared by all"
    """The fee of a final claim is divided among all that attest; in every other end it returns to the customer."""
    PLACES = "shares of the first"
    """The first places have a fixed share each, in every end: `contracts/src/audits/Fees.sol`."""


class End(Enum):
    """The end that those in league give to the job."""

    WINDOW = "they let the window for challenges close"
    UNOPENED = "the trainer never opens its claim"
    SILENCE = "trainer and a puppet challenger are both silent"
    PURPOSE = "the trainer loses to a puppet, and an auditor's appeal is won"


@dataclass(frozen=True, kw_only=True, slots=True)
class Coalition:
    """One job. Amounts in wei. `places`: of all sealed audits in order: None if it is an honest auditor's, else whether
    that puppet opens it."""

    fee: int
    needed: int
    trainer_bond: int
    bond: int
    places: tuple[bool | None, ...]
    end: End

    @property
    def share(self) -> int:
        return self.fee // self.needed

    def promised(self, rule: Rule) -> dict[int, int]:
        """The wei that each honest auditor could count on; by the old rule, if only honest auditors attested."""
        honest = [place for place, puppet in enumerate(self.places) if puppet is None]
        if rule is Rule.PLACES:
            return {place: self.share if place < self.needed else 0 for place in honest}
        return dict.fromkeys(honest, self.fee // max(self.needed, len(honest)))

    def fees(self, rule: Rule) -> dict[int, int]:
        """The wei that each place is paid of the fee."""
        unopened = self.end is End.UNOPENED
        attest = [place for place, puppet in enumerate(self.places) if unopened or puppet is not False]
        if rule is Rule.PLACES:
            return dict.fromkeys(attest[: self.needed], self.share)
        is_final = self.end is End.WINDOW and len(attest) >= self.needed
        return dict.fromkeys(attest, self.fee // len(attest)) if is_final else {}

    def honest(self, rule: Rule) -> dict[int, int]:
        """The wei that each honest auditor is paid of the fee."""
        paid = self.fees(rule)
        return {place: paid.get(place, 0) for place, puppet in enumerate(self.places) if puppet is None}

    def costs(self, rule: Rule) -> int:
        """Wei that those in league lose together: what honest auditors get, and what is burnt."""
        burnt = 0
        if self.end is End.UNOPENED:
            burnt = self.trainer_bond // 2 - (sum(self.fees(rule).values()) if rule is Rule.PLACES else 0)
            return sum(self.honest(rule).values()) + burnt
        burnt += sum(self.bond // 2 for puppet in self.places if puppet is False)
        if self.end is End.SILENCE:
            burnt += self.trainer_bond // 2 + self.bond // 2
        elif self.end is End.PURPOSE:
            # The appellant has half of the puppet's bond, and a quarter of it is burnt.
            burnt += self.trainer_bond // 2 + self.bond - self.bond // 4
        return sum(self.honest(rule).values()) + burnt

    def gain(self, rule: Rule) -> int:
        """The wei that those in league have more than if all honest auditors had got what they could count on."""
        return sum(self.promised(rule).values()) - self.costs(rule)


def draw(chance: random.Random) -> Coalition:
    """A coalition at random, with terms that the contract allows, against one honest auditor or more."""
    needed = chance.randint(1, 8)
    honest, puppets = chance.randint(1, 6), chance.choice((0, 1, 3, 10, 97))
    opens = chance.choice((0.0, 0.5, 1.0, 1.0))
    places: list[bool | None] = [chance.random() < opens for _ in range(puppets)]
    for _ in range(honest):
        # Before all puppets, behind them, or anywhere.
        places.insert(chance.choice((0, len(places), chance.randint(0, len(places)))), None)
    fee = chance.randint(1, 10**18)
    trainer_bond = 2 * fee + chance.choice((0, chance.randint(0, 10**18)))
    return Coalition(
        fee=fee,
        needed=needed,
        trainer_bond=trainer_bond,
        bond=chance.randint(-(-trainer_bond // 4), trainer_bond),
        places=tuple(places),
        end=chance.choice(list(End)),
    )


def drawn(count: int, seed: int = 30) -> list[Coalition]:
    """Coalitions at random, the same on every machine."""
    chance = random.Random(seed)
    return [draw(chance) for _ in range(count)]


def attacks(fee: int, trainer_bond: int, bond: int) -> Iterator[tuple[str, Coalition]]:
    """The attacks of the page, on three honest auditors where three are needed."""

    def on(places: tuple[bool | None, ...], end: End) -> Coalition:
        return Coalition(fee=fee, needed=3, trainer_bond=trainer_bond, bond=bond, places=places, end=end)

    three = (None, None, None)
    yield "nobody is in league", on(three, End.WINDOW)
    yield "97 puppets with the root seal at the last second", on(three + (True,) * 97, End.WINDOW)
    yield "three puppets seal junk before them", on((False,) * 3 + three, End.WINDOW)
    yield "one of them is missing, so that the claim lapses", on(three[:2], End.WINDOW)
    yield End.UNOPENED.value, on(three, End.UNOPENED)
    yield End.SILENCE.value, on(three, End.SILENCE)
    yield End.PURPOSE.value, on(three, End.PURPOSE)


def report(fee: int, trainer_bond: int, bond: int, count: int) -> Iterator[str]:
    """The lines of both tables. count: coalitions that are drawn."""
    ether = 10**18
    old, new = Rule.SHARED, Rule.PLACES
    heads = [f"{what}: {rule.value}" for what in ("an honest auditor gets", "it costs them") for rule in (old, new)]
    yield f"| what those in league do | {' | '.join(heads)} |"
    yield "|---|---|---|---|---|"
    for name, one in attacks(fee, trainer_bond, bond):
        least = [min(one.honest(rule).values()) / ether for rule in (old, new)]
        costs = [one.costs(rule) / ether for rule in (old, new)]
        yield f"| {name} | {least[0]:.4f} | {least[1]:.4f} | {costs[0]:.4f} | {costs[1]:.4f} |"
    yield ""
    all_ = drawn(count)
    yield f"| of {count:,} random coalitions | {old.value} | {new.value} |"
    yield "|---|---|---|"
    short = [sum(_short(one, rule) for one in all_) for rule in (old, new)]
    yield f"| pay an honest auditor less than it could count on | {short[0] / count:.1%} | {short[1] / count:.1%} |"
    won = [sum(one.gain(rule) > 0 for one in all_) for rule in (old, new)]
    yield f"| gain by it | {won[0] / count:.1%} | {won[1] / count:.1%} |"
    best = [max(one.gain(rule) / one.fee for one in all_) for rule in (old, new)]
    yield f"| best gain, in fees | {best[0]:.4f} | {best[1]:.4f} |"


def _short(one: Coalition, rule: Rule) -> bool:
    """Whether an honest auditor gets less than it could count on."""
    paid = one.honest(rule)
    return any(paid[place] < wei for place, wei in one.promised(rule).items())
