"""Calls of the contract that change something, as typed methods that make requests; nothing is sent here. Moves of a
game are classes of their own (`tiebreak.game.moves`).

`IVerificationGame.sol` says when each call is due. `VerificationGame.send` sends one and waits, `Sender.submit` and a
role's queue send without waiting, and a batch carries several.

Payments are computed as the contract does (`contracts/src/audits/Fees.sol`, `Bonds.sol`): shares of the audit fee and
of a lost bond; docs/economics.md says why. The first attestations have one share of the audit fee each, as many as a
job needs, by the places of their audits. A place is counted from 0 here, as in the contract, and from 1 where people
read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.struct_bases import PostedSpec
from tiebreak.contract.structs import AuditView, JobView, NextRoot, Terms

ANY_PLACE = 2**64 - 1
"""The last place, for an auditor that takes any."""


def fee_share(terms: Terms) -> int:
    """Wei of one share of the audit fee."""
    return terms.audit_fee // terms.attestations_needed if terms.attestations_needed else 0


def sure_fee(terms: Terms, place: int) -> int:
    """Wei of the audit fee that an attestation at a place is sure of, whatever other auditors do."""
    return fee_share(terms) if place < terms.attestations_needed else 0


def place_of(audits: Sequence[AuditView], auditor: ChecksumAddress) -> int | None:
    """The place of an account's audit among all of a job; None if it has none."""
    return next((place for place, audit in enumerate(audits) if audit.auditor == auditor), None)


def fee_at(job: JobView, audits: Sequence[AuditView], place: int) -> int:
    """Wei of the audit fee that the audit at a place has as things stand: of a job that is over, in the end. Audits
    that are still sealed before it count as attestations while they can be opened."""
    if job.audits.lost or place >= len(audits):
        return 0
    if job.status in (JobStatus.SEALED, JobStatus.EXPIRED):
        return sure_fee(job.terms, place)
    if not _attests(job, audits[place]):
        return 0
    before = sum(_attests(job, audit) for audit in audits[:place])
    return sure_fee(job.terms, before)


def _attests(job: JobView, audit: AuditView) -> bool:
    """Whether an audit attests to the claim, or may still. Only an attestation has addresses, which it keeps."""
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


class GameCalls(ABC):
    """Calls of the verification game at `address`."""

    address: ChecksumAddress

    @abstractmethod
    def encode(self, call: ContractCall) -> bytes:
        """Selector and arguments. Raises ValueError when an argument does not fit its type."""

    # The job and its claim.

    def post_job(self, spec: PostedSpec, terms: Terms, job_cid: str, *, purpose: str | None = None) -> ContractCall:
        """Posts a job, and pays its reward and audit fee into escrow. Without a `purpose` the same job may be posted
        again."""
        return ContractCall("postJob", (spec, terms, job_cid), value=terms.reward + terms.audit_fee, purpose=purpose)

    def reclaim(self, job: int) -> ContractCall:
        """Returns the reward of a job to which nobody committed in time, or whose sealed claim was not opened."""
        return ContractCall("reclaim", (job,))

    def commit(
        self,
        job: int,
        *,
        spec_hash: bytes,
        claimed: NextRoot,
        final_state_root: bytes,
        log_cid: str,
        model_cid: str,
        bond: int,
    ) -> ContractCall:
        """Claims a result. `spec_hash`: of the job that was trained; `claimed`: the checkpoint root with its row and
        the proof of its last leaf; `bond`: the job's trainer_bond."""
        arguments = (job, spec_hash, claimed, final_state_root, log_cid, model_cid)
        return ContractCall("commit", arguments, bond, self._purpose("commit to", job, spec_hash))

    def seal_claim(self, job: int, *, spec_hash: bytes, seal: bytes, bond: int) -> ContractCall:
        """Claims a result that nobody knows yet. `seal`: `sealing.claim_seal`; `bond`: the job's trainer_bond."""
        return ContractCall("sealClaim", (job, spec_hash, seal), bond, self._purpose("seal a claim on", job, spec_hash))

    def open_claim(
        self, job: int, *, claimed: NextRoot, final_state_root: bytes, log_cid: str, model_cid: str, salt: bytes
    ) -> ContractCall:
        """Opens the sender's sealed claim, after the audit deadline. `salt`: of the seal; the rest as of `commit`."""
        return ContractCall("openClaim", (job, claimed, final_state_root, log_cid, model_cid, salt))

    def finalize(self, job: int) -> ContractCall:
        """Ends a claim that stands, or pays a verdict that nobody can appeal against any more."""
        return ContractCall("finalize", (job,))

    def withdraw(self) -> ContractCall:
        """Pays out everything that is credited to the sender."""
        return ContractCall("withdraw", ())

    # Audits.

    def attest(
        self,
        job: int,
        *,
        spec_hash: bytes,
        checkpoint_root: bytes,
        log_cid: str = "",
        model_cid: str = "",
        bond: int = 0,
        last_place: int = ANY_PLACE,
        purpose: str | None = None,
    ) -> ContractCall:
        """States in public that an audit of this spec gave the committed root. Where the job needs attestations it also
        says that the sender serves log and model by these addresses; `bond`: the job's attestation_bond. `last_place`:
        the last place among the audits that is taken, counted from 0; ContractError (PlaceTaken) where it is not
        free."""
        if bond and purpose is None:
            purpose = self._purpose("attest to", job, spec_hash)
        arguments = (job, spec_hash, checkpoint_root, log_cid, model_cid, last_place)
        return ContractCall("attest", arguments, bond, purpose)

    def seal_audit(
        self, job: int, *, spec_hash: bytes, seal: bytes, bond: int, last_place: int = ANY_PLACE
    ) -> ContractCall:
        """States a root that nobody knows yet, or takes a place. `seal`: `sealing.audit_seal`, or any bytes, for
        `replace_seal`; `bond`: the job's attestation_bond; `last_place`: as of `attest`."""
        purpose = self._purpose("seal an audit of", job, spec_hash)
        return ContractCall("sealAudit", (job, spec_hash, seal, last_place), bond, purpose)

    def replace_seal(self, job: int, *, seal: bytes) -> ContractCall:
        """Puts another seal in the place of the sender's, by the audit deadline."""
        return ContractCall("replaceSeal", (job, seal))

    def open_audit(
        self, job: int, *, checkpoint_root: bytes, log_cid: str, model_cid: str, salt: bytes
    ) -> ContractCall:
        """Opens the sender's sealed audit, after the claim was opened. It is a challenge if the root is not the
        trainer's."""
        return ContractCall("openAudit", (job, checkpoint_root, log_cid, model_cid, salt))

    def collect(self, job: int, auditor: ChecksumAddress) -> ContractCall:
        """Credits an auditor's bond, with its share of the fee, or takes the bond of an audit that was not opened."""
        return ContractCall("collect", (job, auditor))

    # Games.

    def challenge(
        self,
        job: int,
        *,
        spec_hash: bytes,
        claimed_root: bytes,
        checkpoint_root: bytes,
        bond: int,
        purpose: str | None = None,
    ) -> ContractCall:
        """Challenges a claim with the root that the challenger computed. The game may have to wait for its turn (phase
        QUEUED). `claimed_root`: what the trainer committed to; `bond`: the job's challenger_bond."""
        if purpose is None:
            roots = f"0x{claimed_root.hex()} with 0x{checkpoint_root.hex()}"
            purpose = f"{self._purpose('challenge', job, spec_hash)}: {roots}"
        return ContractCall("challenge", (job, spec_hash, claimed_root, checkpoint_root), bond, purpose)

    def appeal(self, job: int, *, spec_hash: bytes, bond: int, purpose: str | None = None) -> ContractCall:
        """Plays the game that the trainer has lost again, on its side. `bond`: the job's challenger_bond."""
        if purpose is None:
            purpose = self._purpose("appeal in", job, spec_hash)
        return ContractCall("appeal", (job, spec_hash), bond, purpose)

    def start_game(self, job: int) -> ContractCall:
        """Starts the next game of a job with blind audits, once all of them are open."""
        return ContractCall("startGame", (job,))

    def in_turn(self, calls: Sequence[ContractCall]) -> ContractCall:
        """Makes several moves, all or none of them. Raises ValueError for a call that pays, which would fail."""
        return ContractCall("inTurn", (self._encoded(calls),))

    def batch(self, calls: Sequence[ContractCall]) -> ContractCall:
        """Makes several calls in one transaction, each as if it had been sent alone. One that fails undoes only itself:
        look at the events of the receipt, or at the contract, for what came of each. Raises ValueError for a call that
        pays, which would fail."""
        return ContractCall("batch", (self._encoded(calls),))

    def claim_timeout(self, game: int) -> ContractCall:
        """Ends a game in which a clock has run out."""
        return ContractCall("claimTimeout", (game,))

    def release_bond(self, game: int) -> ContractCall:
        """Credits the bond of a void game to the account that began it."""
        return ContractCall("releaseBond", (game,))

    def adjudicate(self, game: int, bits: int) -> ContractCall:
        """Gives the referee's verdict: the bits of the disputed element."""
        return ContractCall("adjudicate", (game, bits))

    def _encoded(self, calls: Sequence[ContractCall]) -> list[bytes]:
        for call in calls:
            if call.value:
                raise ValueError(f"{call.function} pays {call.value} wei, and cannot be in a batch: send it alone.")
        return [self.encode(call) for call in calls]

    def _purpose(self, what: str, job: int, spec_hash: bytes) -> str:
        """The name of a payment. A job's number alone is not unique: other contracts use it, too, and a reorganisation
        may give it to another job."""
        return f"{what} job {job} of {self.address} with spec 0x{spec_hash.hex()}"
