"""Roots that a party keeps secret until it opens them, their seals (`contracts/src/audits/Seals.sol`) and salts.

A salt follows from the account's key where that is at hand. So a party that has lost its disk repeats its run, comes to
the same root, and can still open the seal. A remote signer gives no such secret; there the salt is random. In either
case everything that a seal hides is on disk, readable by this account's user only, before the seal is sent.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from eth_abi.abi import encode
from eth_typing import ChecksumAddress
from eth_utils.crypto import keccak
from pydantic import Field, TypeAdapter
from roundlog.storage import StorageError, reading, replace_file

from tiebreak.contract.structs import JobView, NextRoot
from tiebreak.roles.notices import What
from tiebreak.transactions.journal import HEX

if TYPE_CHECKING:
    from tiebreak.roles.job_role import JobRole
    from tiebreak.roles.long_work import LongWork, PublishedAddresses
    from tiebreak.strategy import Leaves

_MOST_BYTES = 1 << 16
_WHOSE = ("uint256", "address", "uint64", "address")
"""Types of chain, contract, job and account, for which alone a seal counts."""


def audit_seal(
    chain_id: int,
    contract: ChecksumAddress,
    job: int,
    auditor: ChecksumAddress,
    *,
    checkpoint_root: bytes,
    salt: bytes,
) -> bytes:
    """Return the seal of an auditor's root, 32 bytes."""
    return keccak(encode([*_WHOSE, "bytes32", "bytes32"], [chain_id, contract, job, auditor, checkpoint_root, salt]))


Hash = Annotated[bytes, Field(min_length=32, max_length=32)]
"""32 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The content of a seal; of an audit's, the root and the salt alone. `proof`: of the final state in the claim;
    `row`: of the claim's root."""

    __pydantic_config__: ClassVar = HEX
    checkpoint_root: Hash
    salt: Hash
    final_state_root: bytes = b""
    proof: tuple[Hash, ...] = ()
    row: tuple[Hash, ...] = ()
    log_cid: str = ""
    model_cid: str = ""

    @property
    def claimed(self) -> NextRoot:
        """The claim's root, as the contract takes it."""
        return NextRoot(root=self.checkpoint_root, last_leaf_proof=self.proof, row=self.row)


_SECRETS = TypeAdapter(Secret)
"""Reads and writes secrets as JSON."""


class Sealing:
    """The one seal of a role in a job: of a trainer's claim, of an auditor's audit, or of nothing, which takes a place
    before the audit is done."""

    def __init__(self, role: JobRole, long_work: LongWork, kind: str) -> None:
        """kind: "claim", "audit" or "place"; part of the file's name and of the salt."""
        self._role = role
        self._long_work = long_work
        self._kind = kind

    def of_claim(self, posted: JobView, claim: Leaves, addresses: PublishedAddresses) -> Secret:
        """Return the content of the seal of a claim."""
        return Secret(
            checkpoint_root=claim.root,
            salt=self._salt(posted),
            final_state_root=claim.payloads[-1],
            proof=claim.as_next_root().last_leaf_proof,
            row=claim.as_next_root().row,
            log_cid=addresses.log_cid,
            model_cid=addresses.model_cid,
        )

    def of_audit(self, posted: JobView, root: bytes) -> Secret:
        """Return the content of the seal of an audit; of a place's, the root is zero, which is nobody's."""
        return Secret(checkpoint_root=root, salt=self._salt(posted))

    def seal(self, secret: Secret) -> bytes:
        """Return the seal itself, 32 bytes."""
        role = self._role
        about = role.chain_id, role.calls.address, role.job, role.address
        if self._kind != "claim":
            return audit_seal(*about, checkpoint_root=secret.checkpoint_root, salt=secret.salt)
        said = secret.checkpoint_root, secret.final_state_root, secret.log_cid, secret.model_cid, secret.salt
        return keccak(encode([*_WHOSE, "bytes32", "bytes32", "string", "string", "bytes32"], [*about, *said]))

    def keep(self, posted: JobView, secret: Secret) -> Secret:
        """Write the content of a seal to disk, before the seal is sent. What is there already stays and is returned:
        its seal may be on its way. Raises OSError."""
        if (known := self.kept(posted)) is not None:
            return known
        path = self._path(posted)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path, private=True) as file:
            file.write(_SECRETS.dump_json(secret, indent=1) + b"\n")
        return secret

    def kept(self, posted: JobView) -> Secret | None:
        """Return the content of the seal as it is on disk; None if it is not there, or damaged, which is told."""
        path = self._path(posted)
        if not path.exists():
            return None
        try:
            with reading(path) as file:
                return _SECRETS.validate_json(file.read(_MOST_BYTES))
        except (StorageError, ValueError):
            self._long_work.tell(What.WARNING, f"{path} is damaged: what it sealed is computed again")
            return None

    def _salt(self, posted: JobView) -> bytes:
        name = f"{self._kind}, {self._role.chain_id}, {self._role.calls.job_name(self._role.job, posted.spec_hash)}"
        # Random without the key: who guesses the root would find it in a seal whose salt is known.
        return self._long_work.context.sender.secret(name.encode()) or secrets.token_bytes(32)

    def _path(self, posted: JobView) -> Path:
        return self._long_work.room(posted) / f"sealed-{self._kind}.json"
