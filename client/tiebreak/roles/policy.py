"""What a party puts its bond on: the terms of a job are a stranger's, and some of them are traps."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.chain.records import JobView


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The least that a job has to offer before a bond is paid for it."""

    referees: frozenset[ChecksumAddress] | None = None
    """Whose verdicts are trusted; None: whoever the job names. A customer may name itself."""
    least_clock: int | None = None
    """Seconds of thinking time in a game; None: what blocks and executions take here (`time_to_answer`). With less the
    right side loses by the clock."""
    most_bond: int | None = None
    """Wei; None: whatever the job asks."""
    large_rows: bool = False
    """Whether jobs are posted and taken whose rows do not fit a transaction. The referee decides alone about what was
    loaded of them: if it is silent, the trainer gets no reward; if it lies, an honest party loses its bond."""
    least_reward: int = 0
    """Wei. Work for less is not begun, so that worthless jobs cannot keep the machine busy."""
    least_bond: int = 0
    """Wei that the trainer has at stake. An auditor that catches it gets a part of this."""

    def objection(self, posted: JobView, bond: int) -> str | None:
        """Why no bond of `bond` wei is put on this job, in one clause; None if nothing is wrong with it."""
        if self.referees is not None and posted.spec.referee not in self.referees:
            return f"its referee {posted.spec.referee} is not among the trusted ones"
        if self.least_clock is not None and (why := too_short(posted, self.least_clock)) is not None:
            return why
        if self.most_bond is not None and bond > self.most_bond:
            return f"its bond of {bond} wei is more than the {self.most_bond} allowed"
        return self.not_worth_it(posted)

    def not_worth_it(self, posted: JobView) -> str | None:
        """Why no work is done for this job at all, in one clause; None if it is worth it."""
        if posted.terms.reward < self.least_reward:
            return f"its reward of {posted.terms.reward} wei is less than the {self.least_reward} asked"
        if posted.terms.trainer_bond < self.least_bond:
            return f"its trainer's bond of {posted.terms.trainer_bond} wei is less than the {self.least_bond} asked"
        return None

    def clock_objection(self, posted: JobView, needed: int) -> str | None:
        """Why the clocks are too short where `needed` seconds were computed; None if they are not, or if this policy
        says itself what is enough."""
        return too_short(posted, needed) if self.least_clock is None else None


def too_short(posted: JobView, needed: int) -> str | None:
    """Why clocks below so many seconds are too short, in one clause; None if they are not."""
    if posted.terms.clock_allowance >= needed:
        return None
    return f"its clocks run {posted.terms.clock_allowance} seconds, less than the {needed} needed"


def stakes(posted: JobView, bond: int) -> str:
    """Who decides over a bond of `bond` wei on this job, in one clause, for whoever is about to pay it."""
    referee = posted.spec.referee
    sides = {"the customer": posted.customer, "the trainer": posted.claim.trainer}
    same = [name for name, address in sides.items() if address == referee]
    warning = f", and is {' and '.join(same)} of this job" if same else ""
    return f"the referee {referee} can decide over the bond of {bond} wei where the contract cannot{warning}"
