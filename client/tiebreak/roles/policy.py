"""Policy: conditions that a job has to meet before a party puts a bond on it. The terms are not trusted; some are
traps.

The thinking time that a party needs in a game is computed from the trees, the time of a block and the speed of this
machine."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress
from roundlog.adjudication import segments
from roundlog.commitments import depth_of
from roundlog.descriptors import REDUCTIONS, describe
from roundlog.dispute import half_of
from roundlog.program import Program
from roundlog.spec import TrainingSpec

from tiebreak.contract.contract_calls import ANY_PLACE, sure_fee
from tiebreak.contract.structs import JobView, Terms
from tiebreak.quantities import in_ether, in_time

BLOCKS_A_MOVE = 2
"""Blocks for one move: one shows the opponent's move, one takes the answer."""

RESERVE = 3
"""Safety factor over measured times: blocks come late, fees rise, and other programs use the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPace:
    """Measured times, in seconds."""

    block: float
    """Time between two blocks."""
    step: float
    """Time of one training step of the job here."""


def most_moves(spec: TrainingSpec, chunks: int, segments: int) -> int:
    """Return most moves of one side in a game under a spec: half of every search, rounded up, and its openings, posts
    and proofs. chunks: of the largest output. segments: of the longest sum."""
    trace = depth_of(2 * half_of(spec.operator_count, spec.state_count))
    depths = (depth_of(spec.intervals), depth_of(spec.interval), trace, depth_of(chunks), depth_of(segments))
    # A leaf is opened below each level but the last; then a chunk is posted, an element named, a segment proven.
    return sum((depth + 1) // 2 for depth in depths) + len(depths) - 1 + 2


def largest_trees(program: Program) -> tuple[int, int]:
    """Return (chunks of the largest output, segments of the longest sum)."""
    chunks, longest = 1, 1
    for q, node in enumerate(program.nodes):
        descriptor = describe(program, q)
        chunks = max(chunks, -(-node.type.nbytes // 1024))
        if descriptor.family in REDUCTIONS:
            longest = max(longest, len(segments(descriptor)))
    return chunks, longest


def least_clock(
    program: Program, spec: TrainingSpec, pace: MeasuredPace, games: int = 1, intervals_apart: int = 1
) -> int:
    """Return least seconds of thinking time with which a party that is right cannot lose by the clock. intervals_apart:
    most intervals between two states that the party keeps.

    Each move waits for blocks. Each of `games` games that run at once needs executions from the state that is kept
    before it: up to the end of an interval for its roots, up to the disputed step for the state there, and the step
    itself for its trace and once more for the output of one operator."""
    moves = most_moves(spec, *largest_trees(program))
    executions = games * (2 * spec.interval * min(intervals_apart, spec.intervals) + 2) * pace.step
    return int(RESERVE * (moves * BLOCKS_A_MOVE * pace.block + executions)) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Conditions on a job before a bond is paid for it."""

    referees: frozenset[ChecksumAddress] | None = None
    """Trusted referees; None: any referee. A customer may name itself."""
    least_clock: int | None = None
    """Least seconds of thinking time in a game; None: the time that blocks and executions take here (function
    `least_clock`). With less a party that is right loses by the clock."""
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
        """Return the objection, in one clause, to a bond of `bond` wei on this job; None if there is none."""
        if self.referees is not None and posted.spec.referee not in self.referees:
            return f"its referee {posted.spec.referee} is not among the trusted ones"
        if self.least_clock is not None and (why := too_short(posted, self.least_clock)) is not None:
            return why
        if self.most_bond is not None and bond > self.most_bond:
            return f"its bond of {in_ether(bond)} is more than the {in_ether(self.most_bond)} allowed"
        return self.not_worth_it(posted)

    def not_worth_it(self, posted: JobView) -> str | None:
        """Return the objection, in one clause, to any work for this job; None if there is none."""
        if posted.terms.reward < self.least_reward:
            reward = in_ether(posted.terms.reward)
            return f"its reward of {reward} is less than the {in_ether(self.least_reward)} asked"
        if posted.terms.trainer_bond < self.least_bond:
            bond = in_ether(posted.terms.trainer_bond)
            return f"its trainer's bond of {bond} is less than the {in_ether(self.least_bond)} asked"
        return None

    def attesting_objection(self, posted: JobView) -> str | None:
        """Return the objection, in one clause, to a bonded attestation to the claim on this job, or to the seal of one,
        at the next place; None if there is none. It may take a challenger's bond besides, for an appeal."""
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
        """Return the last place, counted from 0, that a bond is put on."""
        return ANY_PLACE if self.without_fee and not self.least_fee else terms.attestations_needed - 1


def too_short(posted: JobView, needed: int) -> str | None:
    """Return the objection, in one clause, to clocks of less than `needed` seconds; None if they are long enough."""
    if posted.terms.clock_allowance >= needed:
        return None
    return f"its clocks run {in_time(posted.terms.clock_allowance)}, less than the {in_time(needed)} needed"


def stakes(posted: JobView, bond: int) -> str:
    """Return a clause for a party about to pay a bond of `bond` wei: who decides over it."""
    referee = posted.spec.referee
    sides = {"the customer": posted.customer, "the trainer": posted.claim.trainer}
    same = [name for name, address in sides.items() if address == referee]
    warning = f", and is {' and '.join(same)} of this job" if same else ""
    return f"the referee {referee} can decide over the bond of {in_ether(bond)} where the contract cannot{warning}"
