"""Policy: conditions that a job has to meet before a party puts a bond on it. The terms are not trusted; some are
traps."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.payouts import ANY_PLACE, sure_fee
from tiebreak.contract.structs import JobView, Terms
from tiebreak.quantities import in_ether, in_time


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Conditions on a job before a bond is paid for it."""

    referees: frozenset[ChecksumAddress] | None = None
    """Trusted referees; None: any referee. A customer may name itself."""
    least_clock: int | None = None
    """Least seconds of thinking time in a game; None: the time that blocks and executions take here (`time_to_answer`).
    With less a party that is right loses by the clock."""
    most_bond: int | None = None
    """Most wei of a bond; None: any bond."""
    least_reward: int = 0
    """Least reward in wei. Work for less is not begun, so that worthless jobs cannot keep the machine busy."""
    least_bond: int = 0
    """Least bond of the trainer in wei. An auditor that catches a fraud gets a part of it."""
    least_fee: int = 0
    """Least wei of the audit fee that an attestation with a bond has to be sure of, however many others come."""
    without_fee: bool = False
    """Whether attestations are given, with a bond, where others have the places that have a share of the audit fee."""

    def objection(self, posted: JobView, bond: int) -> str | None:
        """The objection, in one clause, to a bond of `bond` wei on this job; None if there is none."""
        if self.referees is not None and posted.spec.referee not in self.referees:
            return f"its referee {posted.spec.referee} is not among the trusted ones"
        if self.least_clock is not None and (why := too_short(posted, self.least_clock)) is not None:
            return why
        if self.most_bond is not None and bond > self.most_bond:
            return f"its bond of {in_ether(bond)} is more than the {in_ether(self.most_bond)} allowed"
        return self.not_worth_it(posted)

    def not_worth_it(self, posted: JobView) -> str | None:
        """The objection, in one clause, to any work for this job; None if there is none."""
        if posted.terms.reward < self.least_reward:
            reward = in_ether(posted.terms.reward)
            return f"its reward of {reward} is less than the {in_ether(self.least_reward)} asked"
        if posted.terms.trainer_bond < self.least_bond:
            bond = in_ether(posted.terms.trainer_bond)
            return f"its trainer's bond of {bond} is less than the {in_ether(self.least_bond)} asked"
        return None

    def attesting_objection(self, posted: JobView) -> str | None:
        """The objection, in one clause, to a bonded attestation to the claim on this job, or to the seal of one, at the
        next place; None if there is none. It may take a challenger's bond besides, for an appeal."""
        terms, others = posted.terms, posted.audits.count
        if (why := self.objection(posted, max(terms.attestation_bond, terms.challenger_bond))) is not None:
            return why
        sure, least = sure_fee(terms, others), in_ether(self.least_fee)
        if sure < self.least_fee:
            return f"place {others + 1} is sure of {in_ether(sure)} of its audit fee, less than the {least} asked"
        if others >= terms.attestations_needed and not self.without_fee:
            return f"it has the {terms.attestations_needed} that it needs, and is sure to pay for no other"
        return None

    def last_place(self, terms: Terms) -> int:
        """The last place, counted from 0, that a bond is put on."""
        return ANY_PLACE if self.without_fee and not self.least_fee else terms.attestations_needed - 1

    def clock_objection(self, posted: JobView, needed: int) -> str | None:
        """The objection, in one clause, to clocks of less than `needed` seconds; None if they are long enough, or this
        policy sets a `least_clock` itself."""
        return too_short(posted, needed) if self.least_clock is None else None


def too_short(posted: JobView, needed: int) -> str | None:
    """The objection, in one clause, to clocks of less than `needed` seconds; None if they are long enough."""
    if posted.terms.clock_allowance >= needed:
        return None
    return f"its clocks run {in_time(posted.terms.clock_allowance)}, less than the {in_time(needed)} needed"


def stakes(posted: JobView, bond: int) -> str:
    """A clause for a party about to pay a bond of `bond` wei: who decides over it."""
    referee = posted.spec.referee
    sides = {"the customer": posted.customer, "the trainer": posted.claim.trainer}
    same = [name for name, address in sides.items() if address == referee]
    warning = f", and is {' and '.join(same)} of this job" if same else ""
    return f"the referee {referee} can decide over the bond of {in_ether(bond)} where the contract cannot{warning}"
