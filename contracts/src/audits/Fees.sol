// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Audits, Job, Records} from "../Records.sol";
import {JobStatus} from "../Types.sol";

/// @title Shares of the audit fee
/// @notice A fee has as many equal shares as the job needs attestations, and the first that many have one each. First by the place of their
///         audit, which `sealAudit` or `attest` gives it for good: so the holder of a place knows what it is sure of, however many come later.
///         A place whose audit was not opened as an attestation counts no more, and those behind it move up.
/// @dev A share is paid whenever the bond of an opened attestation returns, and, of a sealed claim that is never opened, to the first places
///      all the same: then it comes out of the trainer's bond, whose half is at least the fee (`Limits`). So nobody who is in league with
///      the trainer takes a share back by ending the job in another way.
library Fees {
    using Records for Job;

    /// @notice What one attestation is paid, if it is paid.
    function share(Job storage job) internal view returns (uint256) {
        uint256 needed = job.terms.attestationsNeeded;
        return needed == 0 ? 0 : job.terms.auditFee / needed;
    }

    /// @notice What so many attestations are paid together.
    function owed(Job storage job, uint256 count) internal view returns (uint256) {
        uint256 needed = job.terms.attestationsNeeded;
        return share(job) * (count < needed ? count : needed);
    }

    /// @notice What the customer gets back of reward and fee where the reward is not paid, and the attestations are.
    function refund(Job storage job) internal view returns (uint256) {
        return job.escrowed() - owed(job, job.attestations);
    }

    /// @notice Notes that the audit of this account attests.
    function noteAttested(Audits storage audits, address auditor) internal {
        uint256 place = audits.place[auditor] - 1;
        audits.attested[place >> 8] |= 1 << (place & 255);
    }

    /// @notice The share of an account whose bond returns.
    function shareOf(Job storage job, address auditor) internal view returns (uint256) {
        uint256 needed = job.terms.attestationsNeeded;
        uint256 place = job.audits.place[auditor] - 1;
        // Where the claim was not opened no audit could be.
        bool paid = job.status == JobStatus.EXPIRED ? place < needed : attestedBefore(job.audits, place, needed) < needed;
        return paid ? share(job) : 0;
    }

    /// @dev Attestations at earlier places, counted up to `most`. A bit for each place, so that the first 256, which include all that are
    ///      sure of a share, read one word, however many come behind them; and to make others read one more costs 256 bonds.
    function attestedBefore(Audits storage audits, uint256 place, uint256 most) private view returns (uint256 count) {
        for (uint256 word = 0; word <= place >> 8; ++word) {
            uint256 bits = audits.attested[word];
            if (word == place >> 8) bits &= (1 << (place & 255)) - 1;
            for (; bits != 0; bits &= bits - 1) {
                if (++count == most) return count;
            }
        }
    }
}
