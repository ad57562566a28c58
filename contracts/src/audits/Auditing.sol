// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bonds, Ledger} from "./Bonds.sol";
import {Fees} from "./Fees.sol";
import {Guards} from "../Guards.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {Limits} from "../Limits.sol";
import {Node} from "../Merkle.sol";
import {Audit, Audits, Job, Records} from "../Records.sol";
import {Seals} from "./Seals.sol";
import {AuditStatus, GameId, JobId, JobStatus} from "../Types.sol";

/// @title Attestations, sealed audits, and what they come to
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
/// @dev Nobody is shut out. Who may not attest, the trainer or a friend of it, would attest from another account; and a limit on their number
///      would let the first ones keep all others out, and a job from getting what it needs.
library Auditing {
    using Bonds for Ledger;
    using Fees for Audits;
    using Fees for Job;
    using Records for Audits;
    using Records for Job;

    /// @notice `IVerificationGame.attest`, of a job in status CLAIMED.
    function attest(
        Job storage job,
        JobId id,
        Node checkpointRoot,
        string calldata logCid,
        string calldata modelCid,
        uint64 lastPlace
    ) external {
        Guards.requireNotAfter(job.challengeDeadline());
        requireCommitted(job, checkpointRoot);
        if (job.isBlind()) revert IVerificationGame.AuditsAreBlind(id);
        Guards.requirePayment(job.terms.attestationBond);
        if (job.attested[msg.sender]) revert IVerificationGame.AlreadyAttested(id, msg.sender);
        if (job.terms.attestationsNeeded != 0) {
            stand(job, enter(job, id, lastPlace), logCid, modelCid);
        } else {
            // Without a bond the addresses are no promise. They may be empty, and are not kept.
            Limits.checkOptionalCid(logCid);
            Limits.checkOptionalCid(modelCid);
        }
        count(job, id, logCid, modelCid);
    }

    /// @notice `IVerificationGame.sealAudit`, of a job in status SEALED.
    function sealAudit(Job storage job, JobId id, bytes32 seal, uint64 lastPlace) external {
        Guards.requireNotAfter(job.auditDeadline());
        Guards.requirePayment(job.terms.attestationBond);
        if (job.audits.place[msg.sender] != 0) revert IVerificationGame.AlreadyAttested(id, msg.sender);
        Audit storage audit = enter(job, id, lastPlace);
        (audit.status, audit.seal) = (AuditStatus.SEALED, seal);
        emit IVerificationGame.AuditSealed(id, msg.sender, seal);
    }

    /// @notice `IVerificationGame.replaceSeal`, of a job in status SEALED.
    function replaceSeal(Job storage job, JobId id, bytes32 seal) external {
        Guards.requireNotAfter(job.auditDeadline());
        requireAudit(job, id, msg.sender, AuditStatus.SEALED).seal = seal;
        emit IVerificationGame.AuditSealed(id, msg.sender, seal);
    }

    /// @notice `IVerificationGame.openAudit`, of a job in status CLAIMED.
    /// @return whether it attests; if not, the bond is that of a challenge with this root
    function open(Job storage job, JobId id, Node checkpointRoot, string calldata logCid, string calldata modelCid, bytes32 salt)
        external
        returns (bool)
    {
        // INVARIANT: no game has started before this deadline (`Queue`), so the claim is still to be decided.
        Guards.requireNotAfter(job.auditOpeningDeadline());
        Audit storage audit = requireAudit(job, id, msg.sender, AuditStatus.SEALED);
        Seals.requireSame(Seals.ofAudit(id, checkpointRoot, salt), audit.seal);
        if (checkpointRoot != job.claim.checkpointRoot) {
            audit.status = AuditStatus.CHALLENGED;
            return false;
        }
        stand(job, audit, logCid, modelCid);
        count(job, id, logCid, modelCid);
        return true;
    }

    /// @notice `IVerificationGame.collect`.
    function collect(Job storage job, Ledger storage ledger, JobId id, address auditor) external {
        Audit storage audit = job.audits.auditOf(auditor);
        (AuditStatus audited, JobStatus status) = (audit.status, job.status);
        uint256 amount = job.terms.attestationBond;
        if (audited == AuditStatus.SEALED && status > JobStatus.SEALED && status != JobStatus.EXPIRED) {
            // The claim was opened, and this audit was not.
            Guards.requireAfter(job.auditOpeningDeadline());
            audit.status = AuditStatus.CLOSED;
            emit IVerificationGame.SealForfeited(id, auditor);
            ledger.forfeit(GameId.wrap(0), job.customer, amount);
            return;
        }
        bool returns_ = audited == AuditStatus.SEALED
            ? status == JobStatus.EXPIRED
            : audited == AuditStatus.ATTESTED && status > JobStatus.APPEALABLE && !job.audits.lost;
        if (!returns_) revert IVerificationGame.NothingToCollect(id, auditor);
        amount += job.shareOf(auditor);
        audit.status = AuditStatus.CLOSED;
        emit IVerificationGame.Collected(id, auditor, amount);
        ledger.credit(auditor, amount);
    }

    /// @dev A new audit, at the next place. Its sender says up to which place it is worth its while, so that nobody who gets in front
    ///      of it, in the same block or by a reorganisation, makes it pay a bond for a place without a share.
    function enter(Job storage job, JobId id, uint64 lastPlace) private returns (Audit storage) {
        uint256 place = job.audits.all.length;
        if (place > lastPlace) revert IVerificationGame.PlaceTaken(id, place, lastPlace);
        return job.audits.add();
    }

    /// @dev From now on the bond stands for the claim.
    function stand(Job storage job, Audit storage audit, string calldata logCid, string calldata modelCid) private {
        Limits.checkCid(logCid);
        Limits.checkCid(modelCid);
        (audit.status, audit.logCid, audit.modelCid) = (AuditStatus.ATTESTED, logCid, modelCid);
        ++job.audits.atStake;
        job.audits.noteAttested(audit.auditor);
    }

    function count(Job storage job, JobId id, string calldata logCid, string calldata modelCid) private {
        job.attested[msg.sender] = true;
        ++job.attestations;
        emit IVerificationGame.Attested(id, msg.sender, logCid, modelCid);
    }

    function requireAudit(Job storage job, JobId id, address auditor, AuditStatus expected)
        internal
        view
        returns (Audit storage audit)
    {
        audit = job.audits.auditOf(auditor);
        AuditStatus actual = audit.status;
        if (actual != expected) revert IVerificationGame.WrongAuditStatus(id, auditor, actual, expected);
    }

    function requireCommitted(Job storage job, Node given) internal view {
        Node committed = job.claim.checkpointRoot;
        if (given != committed) revert IVerificationGame.AnotherRootWasCommitted(given, committed);
    }
}
