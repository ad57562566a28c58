"""Confirmation of a stop by the reference, before a bond is put on it."""

from __future__ import annotations

from roundlog.adjudication.adjudicate import NoAnswer
from roundlog.training.stops import noted_stop

from tiebreak.roles.evidence import Evidence


def confirm_stop(evidence: Evidence) -> str | None:
    """The reason why no bond may be paid on evidence of a run that stopped; None if it did not stop, or the stop is
    confirmed.

    After a stop (NaN, an infinity, an index out of range) a run has fabricated values. A game about it ends with the
    contract's answer on one element: the first one without a value here. If the contract has a value there, the bond is
    lost, however honest the run was. So the reference (`roundlog.adjudication`), which computes as the contract does
    and shares nothing with the engine's kernels, computes this element from its openings. The step is executed again as
    a whole: call this only if one fits into memory.

    Call it before every bond on `evidence`; it executes nothing if the run did not stop. After a restart it reads the
    stop from the run's directory. Raises OSError, and StorageError for a damaged directory."""
    if not evidence.fabricated.needed:
        return None
    noted = noted_stop(evidence.run_dir)
    if noted is None:
        return f"the run stopped, but {evidence.run_dir} does not say where: empty it and audit again"
    step, stop = noted
    program = evidence.job.program
    where = f"step {step}: {program.describe(stop.operator)}"
    found = evidence.trace(step).stop
    if found != stop:
        again = "goes through" if found is None else f"stops at operator {found.operator}, element {found.element}"
        return f"{where} stopped at element {stop.element}, and {again} when it is executed again: check this machine"
    answer = evidence.output(step, stop.operator).answer(stop.element)
    if answer is NoAnswer.NO_VALUE:
        return None
    value = "leaves it to the referee" if isinstance(answer, NoAnswer) else f"has {answer:#x} there"
    return (
        f"{where} stops here at element {stop.element}, but the contract {value}: this machine or this release is "
        "wrong, so report it, and audit with another"
    )
