"""What a party puts its bond on: the terms of a job are a stranger's, and some of them are traps."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.chain.records import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The least that a job has to offer before a bond is paid for it."""

    referees: frozenset[ChecksumAddress] | None = None
    """Whose verdicts are trusted; None: whoever the job names. A customer may name itself."""
    least_clock: int = 60
    """Seconds of thinking time in a game. Below what a few replays of an interval and some fifty blocks take, the right
    side loses by the clock."""
    most_bond: int | None = None
    """Wei; None: whatever the job asks."""
    large_rows: bool = False
    """Whether jobs are posted and taken whose rows do not fit a transaction. The referee decides alone about what was
    loaded of them: if it is silent, the trainer gets no reward; if it lies, an honest party loses its bond."""

    def objection(self, posted: Job, bond: int) -> str | None:
        """Why no bond of `bond` wei is put on this job, in one clause; None if nothing is wrong with it."""
        if self.referees is not None and posted.spec.referee not in self.referees:
            return f"its referee {posted.spec.referee} is not among the trusted ones"
        if posted.terms.clock_allowance < self.least_clock:
            return f"its clocks run {posted.terms.clock_allowance} seconds, less than the {self.least_clock} needed"
        if self.most_bond is not None and bond > self.most_bond:
            return f"its bond of {bond} wei is more than the {self.most_bond} allowed"
        return None


def stakes(posted: Job, bond: int) -> str:
    """Who decides over a bond of `bond` wei on this job, in one clause, for whoever is about to pay it."""
    referee = posted.spec.referee
    sides = {"the customer": posted.customer, "the trainer": posted.claim.trainer}
    same = [name for name, address in sides.items() if address == referee]
    warning = f", and is {' and '.join(same)} of this job" if same else ""
    return f"the referee {referee} can decide over the bond of {bond} wei where the contract cannot{warning}"
