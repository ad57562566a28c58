"""Frauds: the lies that a trainer or a challenger can tell about one step, by kind.

Everything after the lie follows from it, so that it can be defended. A fraud names the first element that shows it,
where a game about it has to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tiebreak.contract.enums import Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.chains import LyingChain
from tiebreak_demo.adversary.engines import MakeExecution, lying


class FraudKind(StrEnum):
    """The kind of a fraud, by its subject."""

    GRADIENT = "one element of a gradient, by one ulp"
    STORED = "an optimizer slot holds what was not computed"
    LOADED = "an optimizer slot is read as what it does not hold"
    ROW = "a row of the data that is not its turn"
    RATE = "the learning rate"
    ROUNDING = "one rounding decision, in the log as well"
    MASK = "one random number of a dropout mask"
    FUNCTION = "one exponential of a softmax, by one ulp"
    PROGRAM = "another program than the posted one"
    ACTIVATION = "one BF16 activation, by one ulp"
    CONVERSION = "one weight as it is converted to BF16, by one ulp"
    MASTER = "one FP32 weight as it is updated, by one ulp"
    ACCUMULATOR = "one accumulator of a tensor core, by one ulp"
    LAST_ROUNDING = "the last rounding of a tensor core's product, toward zero"
    GROUP_ORDER = "two groups of a tensor core's product, in the other order"
    FP32_SUMS = "a tensor core's product by sums in FP32, to nearest"


@dataclass(frozen=True, kw_only=True)
class Fraud:
    """A fraud in one step. operator, element: the first operator whose output differs from that of the posted program
    in `step` (counted from 0), and the lowest such element. If a state slot differs from the computed value, they are
    the operator that stores it and the element of the slot. right, claimed: the bits of that element, right and
    claimed. execution: of the dishonest run. chain: of a lie about a product of tensor cores, the rule by which the
    liar goes on."""

    kind: FraudKind
    step: int
    operator: int
    element: int
    right: int
    claimed: int
    execution: MakeExecution
    chain: LyingChain | None = None


def fraudulent_trainer(context: RoleContext, job: int, fraud: Fraud) -> TrainerRole:
    """Return a trainer that trains with a fraud in one step, claims the result and defends it."""
    return TrainerRole(lying(context, fraud.execution, Side.TRAINER, fraud.chain), job)


def fraudulent_challenger(context: RoleContext, job: int, fraud: Fraud) -> AuditorRole:
    """Return an auditor that audits with a fraud in one step, challenges with the result and defends it."""
    return AuditorRole(lying(context, fraud.execution, Side.CHALLENGER, fraud.chain), job, use_log=False)
