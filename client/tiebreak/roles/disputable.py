"""Disputable jobs: in a dispute about one, the party that is right can show it to the contract."""

from __future__ import annotations

from roundlog.adjudication.size import largest_proof
from roundlog.arithmetic import FULL_BITS
from roundlog.program import Program
from roundlog.spec import POLICY_CERTIFIED, TrainingSpec

MOST_PROOF_BYTES = 120_000
"""Most bytes of a proof, a little less than the 128 KiB above which nodes do not relay a transaction."""


def unanswerable_spec(spec: TrainingSpec) -> str | None:
    """The reason, in one clause, why disputes under a spec could not be decided; None if they could."""
    if spec.rounding_policy != POLICY_CERTIFIED:
        return (
            "the spec's rounding_policy is 1 (threshold), under which the trainer's log decides and nobody can tell "
            "right from wrong: such a job is for use without a chain"
        )
    if spec.rounding_bits != FULL_BITS:
        return (
            f"the spec's rounding_bits are {spec.rounding_bits}, to which the contract does not round exact operators: "
            "such a job is for use without a chain"
        )
    return None


def unanswerable_program(program: Program, spec: TrainingSpec) -> str | None:
    """The reason, in one clause, why a party that is right about a program could not show it; None if it could."""
    size, operator = largest_proof(program, spec)
    if size > MOST_PROOF_BYTES:
        return (
            f"a proof of one element of {program.describe(operator)} can take {size} bytes, more than the "
            f"{MOST_PROOF_BYTES} of a transaction: make the lists that are joined smaller"
        )
    return None
