"""Income from audits: a month of an honest auditor, of a lazy one and of colluders, by the rules of the contract.

    .venv/bin/python scripts/simulate_audits.py [--months 2000] [--reward 1] [--fee 0.15] [--audit 0.02]

Every month an auditor audits `--jobs` blind jobs, of which a share is fraud. It has taken one of the `--needed` first
places in each, and the others are other honest auditors'. Of an honest claim each place has its share of the fee; of a
fraud the first that opens has the half of all bonds that are lost, and the others get their bonds back. The last two
tables are about coalitions against honest auditors (`audit_coalitions.py`).

Gas is that of `contracts/.gas-snapshot`, a dispute's that of `docs/protocol.md`. Shares are divided as the contract
does, to the wei. What is random is which claims are fraud, who opens first, and the coalitions; seeds are fixed, so the
tables are the same on every machine.

Amounts are in ether; `--ether` is what one is worth in dollars.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from audit_coalitions import report as coalitions

ROOT = Path(__file__).resolve().parents[1]
GAS = ROOT / "contracts" / ".gas-snapshot" / "MarketGasTest.json"
ETHER = 10**18
GWEI = 10**9
DISPUTE_GAS = 1_900_000
"""Gas of the challenger's half of a dispute of `docs/protocol.md`, which an auditor sends that proves a fraud."""
METERED = 0.6
"""Part of a dispute's gas that burns in the contract, and is paid back; the rest is call data and base cost."""
FRAUD_RATES = (0.0, 0.01, 0.05, 0.1, 0.2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The four shares of a fine in wei, which add up to it."""

    gas: int
    half: int
    quarter: int
    burnt: int


def split(fine: int, spent: int) -> Shares:
    """The shares of a fine of which the winner has spent `spent` wei for gas: `Bonds.split` of the contract."""
    gas = min(spent, fine // 4)
    rest = fine - gas
    return Shares(gas=gas, half=rest // 2, quarter=rest // 4, burnt=rest - rest // 2 - rest // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Market:
    """The terms of every job in wei, and what surrounds them."""

    reward: int
    fee: int
    trainer_bond: int
    bond: int
    """A challenger's, and so an attestation's."""
    audit: int
    """Cost of repeating one run."""
    gas_price: int
    needed: int
    """Attestations that the job needs, which is the number of shares of its fee, and of its honest auditors."""
    jobs: int
    """Jobs that the auditor audits in a month."""

    def gas(self, *calls: str) -> int:
        """Wei that calls cost, by the measured gas."""
        measured = json.loads(GAS.read_text())
        return sum(int(measured[call]) for call in calls) * self.gas_price

    @property
    def share(self) -> int:
        return self.fee // self.needed

    @property
    def dispute(self) -> int:
        return DISPUTE_GAS * self.gas_price


def honest(market: Market, fraud: bool, first: bool) -> int:
    """Wei that one blind audit brings an honest auditor, its own costs counted. first: whether it opens before the
    other honest auditors."""
    costs = market.audit + market.gas("sealAudit", "replaceSeal")
    if not fraud:
        return market.share - costs - market.gas("openAudit (attestation)", "collect")
    costs += market.gas("openAudit (challenge)")
    if not first:
        return -costs
    shares = split(market.trainer_bond, int(METERED * market.dispute))
    return shares.gas + shares.half - market.dispute - costs


def copier(market: Market, fraud: bool) -> int:
    """Wei that a blind audit brings somebody who has one of the first places, seals the trainer's root, which was
    leaked, and computes nothing."""
    gas = market.gas("sealAudit", "openAudit (attestation)")
    if fraud:
        return -market.bond - gas
    return market.share - gas - market.gas("collect")


def latecomer(market: Market, fraud: bool) -> int:
    """Wei that it brings if all places that have a share are taken already."""
    return copier(market, fraud) - (0 if fraud else market.share)


def idler(market: Market, fraud: bool) -> int:
    """Wei that a blind audit brings somebody who has neither computed nor heard anything, and seals junk."""
    return -market.bond - market.gas("sealAudit")


def follower(market: Market, fraud: bool) -> int:
    """Wei that an *open* audit brings somebody who attests at once, before anybody can have audited."""
    gas = market.gas("attest")
    return -market.bond - gas if fraud else market.share - gas - market.gas("collect")


def months(market: Market, rate: float, count: int, seed: int = 14) -> list[int]:
    """Earnings of an honest auditor in each of `count` months, in wei."""
    chance = random.Random(f"{seed}/{rate}")
    outcome = {(fraud, first): honest(market, fraud, first) for fraud in (False, True) for first in (False, True)}
    return [
        sum(outcome[chance.random() < rate, chance.random() * market.needed < 1] for _ in range(market.jobs))
        for _ in range(count)
    ]


def break_even(market: Market) -> float:
    """The share of frauds among claims above which sealing a leaked root loses money, if one honest auditor looks."""
    gain, loss = copier(market, False), -copier(market, True)
    return max(0.0, gain / (gain + loss))


def fines(market: Market, attesters: int) -> dict[str, int]:
    """Cost of a caught fraud to those in league, in wei, without gas. attesters: accounts of theirs that attested."""
    fine = market.trainer_bond + attesters * market.bond
    shares = split(fine, 0)
    appealed = market.trainer_bond // 2 + split(market.bond, 0).burnt
    return {
        "trainer and attesters, caught by an honest auditor": fine,
        "and a puppet that wins first, with a root of its own": fine - shares.half,
        "and the customer": shares.burnt,
        **({"the same, ended by an appeal that the puppet loses": appealed} if attesters else {}),
        "a sealed claim that is never opened, alone": market.trainer_bond,
        "a sealed claim that is never opened, with the customer": market.trainer_bond // 2,
        "and with puppets in all places that have a share": market.trainer_bond // 2 - market.share * market.needed,
    }


def ether(wei: float) -> str:
    return f"{wei / ETHER:+.4f}"


def report(market: Market, count: int, dollars: float) -> Iterator[str]:
    """The lines of all tables."""
    yield "| frauds among claims | a month: mean | 5 % of months below | 95 % below | in dollars, mean |"
    yield "|---|---|---|---|---|"
    for rate in FRAUD_RATES:
        earned = sorted(months(market, rate, count))
        low, high = earned[count * 5 // 100], earned[count * 95 // 100]
        mean = statistics.fmean(earned)
        yield f"| {rate:.0%} | {ether(mean)} | {ether(low)} | {ether(high)} | {mean / ETHER * dollars:+,.0f} |"
    yield ""
    yield "| who, of one job | claim is right | claim is wrong |"
    yield "|---|---|---|"
    for who, right, wrong in rows(market):
        yield f"| {who} | {ether(right)} | {ether(wrong)} |"
    yield ""
    yield f"Sealing a leaked root pays as long as fewer than {break_even(market):.1%} of all claims are wrong."
    yield ""
    yield "| a caught fraud costs | with no attester | with two |"
    yield "|---|---|---|"
    none = fines(market, 0)
    for name, two in fines(market, 2).items():
        yield f"| {name} | {f'{none[name] / ETHER:.4f}' if name in none else '-'} | {two / ETHER:.4f} |"


def rows(market: Market) -> Iterator[tuple[str, int, int]]:
    """Income of each kind of auditor from one job, in wei: if the claim is right, and if it is wrong."""
    yield "honest auditor, blind, first to open", honest(market, False, True), honest(market, True, True)
    yield "honest auditor, blind, not the first", honest(market, False, False), honest(market, True, False)
    yield "seals junk", idler(market, False), idler(market, True)
    yield "seals a leaked root in time for a share", copier(market, False), copier(market, True)
    yield "seals a leaked root behind the shares", latecomer(market, False), latecomer(market, True)
    yield "open audits: attests at once, without looking", follower(market, False), follower(market, True)


def market_of(options: argparse.Namespace) -> Market:
    wei = {name: round(getattr(options, name) * ETHER) for name in ("reward", "fee", "audit", "trainer_bond", "bond")}
    return Market(**wei, gas_price=round(options.gas_price * GWEI), needed=options.needed, jobs=options.jobs)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--months", type=int, default=2000, help="months that are simulated")
    found.add_argument("--jobs", type=int, default=20, help="jobs that the auditor audits in a month")
    found.add_argument("--needed", type=int, default=3, help="attestations that a job needs")
    found.add_argument("--coalitions", type=int, default=20_000, help="coalitions that are drawn")
    found.add_argument("--reward", type=float, default=1.0)
    found.add_argument("--fee", type=float, default=0.15)
    found.add_argument("--trainer-bond", type=float, default=2.0)
    found.add_argument("--bond", type=float, default=0.5, help="of a challenger, and of an attestation")
    found.add_argument("--audit", type=float, default=0.02, help="what repeating a run costs")
    found.add_argument("--gas-price", type=float, default=2.0, help="in gwei")
    found.add_argument("--ether", type=float, default=2500.0, help="dollars for one")
    return found


def main() -> None:
    options = parser().parse_args()
    market = market_of(options)
    print("\n".join(report(market, options.months, options.ether)))
    print()
    print("\n".join(coalitions(market.fee, market.trainer_bond, market.bond, options.coalitions)))


if __name__ == "__main__":
    main()
