"""A job as a bond may be put on it: so deep in the chain that no reorganisation gives its number to another one."""

from __future__ import annotations

from tiebreak.chain.errors import ContractError, InvalidAnswer, NotConfirmed
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import Job


def bound_job(contract: VerificationGame, job: int, spec_hash: bytes | None = None) -> Job:
    """The job with this number as it stood `confirmations` blocks ago, if it is the same job now.

    spec_hash: 32 bytes, of the job that the work was done for. Raises NotConfirmed where the chain shows another job,
    or none yet, which may change; and the errors of Node.
    """
    newest = _shown(contract, job, None)
    if newest is None:
        raise NotConfirmed(f"{contract.node.name} shows no job {job}: look again, or check the number.")
    if spec_hash is not None and newest.spec_hash != spec_hash:
        raise NotConfirmed(
            f"job {job} is now the one with spec 0x{newest.spec_hash.hex()}, not 0x{spec_hash.hex()}: a reorganisation "
            "has moved it, wait until the chain has settled."
        )
    depth = contract.node.confirmations
    if depth == 0:
        return newest
    deep = _shown(contract, job, max(0, contract.node.head().number - depth))
    if deep is None or deep.spec_hash != newest.spec_hash:
        raise NotConfirmed(f"job {job} does not lie under {depth} blocks yet: wait for them.")
    return deep


def _shown(contract: VerificationGame, job: int, block: int | None) -> Job | None:
    try:
        return contract.job(job, block=block)
    except ContractError as error:
        if error.name == "WrongJobStatus":
            return None
        raise
    except InvalidAnswer:
        if block is None:
            raise
        return None  # where the contract was not there yet, a call returns nothing
