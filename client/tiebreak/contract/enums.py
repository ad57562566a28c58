"""Enums of the contract. Made by scripts/make_contract_records.py, not by hand."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class SideMethods(IntEnum):
    """Methods of `Side`."""

    @property
    def other(self) -> Self:
        return type(self)(1 - self)


class AuditStatus(IntEnum):
    """Status of an account's audit of a claim that needs attestations."""

    NONE = 0
    """No such audit."""
    SEALED = 1
    """Blind audits: sealed, with its bond."""
    ATTESTED = 2
    """Attests to the claim, with its bond."""
    CHALLENGED = 3
    """Was opened with another root; the bond is that of the challenge which this is."""
    CLOSED = 4
    """Its bond is credited or lost; nothing is left to collect."""


class Fault(IntEnum):
    """Fault of a malformed descriptor."""

    AXES = 0
    """More than 16 iteration and reduction axes, or view axes."""
    TOO_MANY_INPUTS = 1
    """More than 64 inputs."""
    PARAMETERS = 2
    """Another number of parameters than the family has."""
    NEGATIVE = 3
    """A parameter that counts something is negative."""
    INPUTS = 4
    """Another number of inputs than the family or code has."""
    DTYPE = 5
    """An input of another dtype than the family or code has."""
    SEGMENT = 6
    """Segments of no terms, or of more than 4096; of CHAIN, of another number than a power of two from a group's to
    2048."""
    SIZE = 7
    """More than 2^40 elements or terms."""
    AFFINE = 8
    """Not offset, divisor and a coefficient an axis, for every view axis."""
    DIVISOR = 9
    """A divisor below 1."""
    REDUCTION = 10
    """Reduction axes where the family has none."""
    GATHER_AXIS = 11
    """A gather along an axis that input 0 has not."""
    CODE = 12
    """The family has no such code."""
    FAMILY = 13
    """The family cannot do this."""
    EMPTY = 14
    """A batch of samples without items."""
    LABEL = 15
    """A label that is no int64."""
    RANGE = 16
    """A number beyond int64 or the dtype, a stream beyond 32 bits, a field of data of too many elements, a column
    outside of the schedule."""
    ALIAS = 17
    """One value as two operands of different dtype or size."""


class Finding(IntEnum):
    """Finding of a computation."""

    VALUE = 0
    """The bits are those of the element."""
    STOPS = 1
    """An honest run stops here (an index out of range; NaN or an infinity as the loss or in the next state), so a claim
    of any value is wrong."""
    UNDECIDED = 2
    """The contract cannot tell, because its precision does not decide the rounding of a function: the referee does. The
    bits are those of the argument."""


class JobStatus(IntEnum):
    """Status of a job."""

    NONE = 0
    """No such job."""
    OPEN = 1
    """Posted; waits for a claim."""
    SEALED = 2
    """Blind audits: a trainer has sealed a claim; auditors may seal their audits, and after them the trainer opens."""
    CLAIMED = 3
    """A trainer has committed; may be challenged, and becomes FINAL, LAPSED or REJECTED."""
    APPEALABLE = 4
    """A game ended against a claim with bonded attestations. The claim will not be paid; where the bonds go is decided
    once their owners had time to appeal. Becomes REJECTED."""
    FINAL = 5
    """The claim stands; reward and bond are the trainer's, the audit fee belongs to those who attested first."""
    REJECTED = 6
    """A game ended against the claim; the reward is the customer's again."""
    EXPIRED = 7
    """Nobody claimed in time, or a sealed claim was not opened in time; the reward is the customer's again."""
    LAPSED = 8
    """Nobody won against the claim, and too few attested to it; everybody has back what it paid in, but for the shares
    of those who did."""


class Level(IntEnum):
    """The levels of a dispute, from the coarsest tree to the finest. `Trace` and `Transitions` say how many leaves each
    has."""

    CHECKPOINT = 0
    """Leaves are the state roots after steps k, 2k, ..., T. The roots are the claim itself and the challenge."""
    STEP = 1
    """Leaves are the k state roots inside the disputed interval."""
    OPERATOR = 2
    """Leaves are the tensor roots of all that the disputed step has computed, and of the state after it: `Trace`."""
    CHUNK = 3
    """Leaves are the chunks of the disputed operator's output."""
    PARTIAL = 4
    """Leaves are the running results of the disputed element, which is a sum of several segments of terms."""


class Outcome(IntEnum):
    """Outcome of a game."""

    NONE = 0
    """Still live."""
    TRAINER_WON = 1
    """The challenger lost its bond; the claim stands as far as this game goes."""
    CHALLENGER_WON = 2
    """The trainer lost its bond; the claim is rejected."""
    BOTH_LOST = 3
    """Both sides' padding was wrong, or both let their time run out; the claim is rejected, and of both bonds half is
    the customer's and half is burnt."""
    UNDECIDED = 4
    """The referee fell silent; the claim is rejected, both bonds return."""
    VOID = 5
    """Another game rejected the claim first; the challenger's bond returns."""


class Phase(IntEnum):
    """Phase of a game."""

    NONE = 0
    """No such game."""
    QUEUED = 1
    """Waits until an earlier game of the job is over; no clock runs."""
    BISECTION = 2
    """One side's clock runs: `bisect` is due from `turn`."""
    OPENING = 3
    """The clock of each side that has not spoken yet runs: `openLevel` at levels CHECKPOINT and STEP, `openOperator` at
    OPERATOR, `openPartials` at PARTIAL."""
    POSTING = 4
    """The trainer's clock runs: `postChunk`."""
    PROVING = 5
    """The challenger's clock runs: `proveStore` at OPERATOR, `proveElement` or `disputeSum` at CHUNK, `proveSegment` at
    PARTIAL."""
    REFEREE = 6
    """The referee's clock runs: `adjudicate`."""
    OVER = 7
    """Over; see `outcome`."""


class Reason(IntEnum):
    """Reason for which a game ended."""

    NONE = 0
    PROOF = 1
    """The contract has computed what was disputed: an element, a segment, or what a store keeps."""
    VERDICT = 2
    """The referee's verdict."""
    TIMEOUT = 3
    """A clock ran out."""
    PADDING = 4
    """The trees first differ in the padding, where only PAD is right."""
    CLAIM_REJECTED = 5
    """Another game has rejected the claim, or, of an appeal, another appeal has decided."""


class Side(SideMethods):
    """The two parties of a game. Also the index into every two-element array of the contract."""

    TRAINER = 0
    CHALLENGER = 1
