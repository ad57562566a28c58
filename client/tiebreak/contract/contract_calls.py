"""Calls of the contract as records, and payments as the contract computes them (`contracts/src/audits/Fees.sol`,
`Bonds.sol`): shares of the audit fee and of a lost bond; docs/economics.md says why.

The first attestations have one share of the audit fee each, as many as a job needs, by the places of their audits. A
place is counted from 0 here, as in the contract, and from 1 where people read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.structs import AuditView, JobView, Terms

ANY_PLACE = 2**64 - 1
"""The last place, for an auditor that takes any."""


def fee_share(terms: Terms) -> int:
    """Return the wei of one share of the audit fee."""
    return terms.audit_fee // terms.attestations_needed if terms.attestations_needed else 0


def sure_fee(terms: Terms, place: int) -> int:
    """Return the wei of the audit fee that an attestation at a place is sure of, whatever other auditors do."""
    return fee_share(terms) if place < terms.attestations_needed else 0


def place_of(audits: Sequence[AuditView], auditor: ChecksumAddress) -> int | None:
    """Return the place of an account's audit among all of a job; None if it has none."""
    return next((place for place, audit in enumerate(audits) if audit.auditor == auditor), None)


def fee_at(job: JobView, audits: Sequence[AuditView], place: int) -> int:
    """Return the wei of the audit fee that the audit at a place has as things stand: of a job that is over, in the end.
    Audits that are still sealed before it count as attestations while they can be opened."""
    if job.audits.lost or place >= len(audits):
        return 0
    if job.status in (JobStatus.SEALED, JobStatus.EXPIRED):
        return sure_fee(job.terms, place)
    if not _attests(job, audits[place]):
        return 0
    before = sum(_attests(job, audit) for audit in audits[:place])
    return sure_fee(job.terms, before)


def _attests(job: JobView, audit: AuditView) -> bool:
    """Return whether an audit attests to the claim, or may still. Only an attestation has addresses, which it keeps."""
    may = audit.status is AuditStatus.SEALED and job.status is JobStatus.CLAIMED
    return bool(audit.model_cid) or may


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Parts of a lost bond, in wei, as `contracts/src/audits/Bonds.sol` divides it. They come to the bond."""

    gas: int
    """Part of the winner, for the gas of its moves."""
    half: int
    """Part of the winning side: the trainer, or the earliest challenger with the root that won."""
    quarter: int
    """Part of the customer."""
    burnt: int

    @staticmethod
    def of(bond: int, spent: int) -> Shares:
        """spent: wei on the winner's meter (`GameView.spent`)."""
        gas = min(spent, bond // 4)
        rest = bond - gas
        half, quarter = rest // 2, rest // 4
        return Shares(gas=gas, half=half, quarter=quarter, burnt=rest - half - quarter)

    @property
    def winners(self) -> int:
        """Wei for a winner that is the trainer, or the earliest challenger as well."""
        return self.gas + self.half


@dataclass(frozen=True, slots=True)
class ContractCall:
    """One call of the contract: its function by the name in Solidity, and the arguments. `value`: wei that go with it;
    `purpose`: a name under which it is made once (`Sender.submit`); None: it may be repeated."""

    function: str
    arguments: tuple[object, ...]
    value: int = 0
    purpose: str | None = None

    @staticmethod
    def of(function: str, *arguments: object, value: int = 0, purpose: str | None = None) -> ContractCall:
        return ContractCall(function, arguments, value, purpose)
