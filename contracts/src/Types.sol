// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Duration} from "./Time.sol";

/// @notice A posted training job. Counted from 1.
type JobId is uint64;

/// @notice One challenger's game against one claim. Counted from 1 over all jobs.
type GameId is uint64;

/// @notice Terms of a job: the customer's offer and conditions. Amounts in wei.
struct Terms {
    /// Escrowed with the job; the trainer's once the claim is final.
    uint128 reward;
    /// Sent with the claim.
    uint128 trainerBond;
    /// Sent with every challenge.
    uint128 challengerBond;
    /// From the posting to the last instant at which a trainer may commit.
    Duration commitWindow;
    /// From the claim to the last instant at which an auditor may challenge.
    Duration challengeWindow;
    /// Each side's whole thinking time in one game.
    Duration clockAllowance;
    /// The referee's time for one verdict.
    Duration refereeAllowance;
    /// Games that are played at a time; all others wait for their turn, and their clocks with them.
    uint32 concurrentGames;
    /// The only account that may commit; zero for anyone.
    address trainer;
    /// Bonded attestations without which a claim is not paid; zero: attestations are free, and the fields below are zero as well.
    uint32 attestationsNeeded;
    /// Blind audits: from the trainer's seal to the last instant at which an auditor may seal its audit. Zero: audits are open.
    Duration auditWindow;
    /// Blind audits: the trainer's time to open its claim after the audit window, and after that the auditors' to open their audits. Zero:
    /// audits are open.
    Duration openingWindow;
    /// Escrowed with the job; an equal share for each of the first `attestationsNeeded` attestations.
    uint128 auditFee;
    /// Sent with every attestation, or with its seal.
    uint128 attestationBond;
}

/// @notice Status of a job.
enum JobStatus {
    /// No such job.
    NONE,
    /// Posted; waits for a claim.
    OPEN,
    /// Blind audits: a trainer has sealed a claim; auditors may seal their audits, and after them the trainer opens.
    SEALED,
    /// A trainer has committed; may be challenged, and becomes FINAL, LAPSED or REJECTED.
    CLAIMED,
    /// A game ended against a claim with bonded attestations. The claim will not be paid; where the bonds go is decided once their
    /// owners had time to appeal. Becomes REJECTED.
    APPEALABLE,
    /// The claim stands; reward and bond are the trainer's, the audit fee belongs to those who attested first.
    FINAL,
    /// A game ended against the claim; the reward is the customer's again.
    REJECTED,
    /// Nobody claimed in time, or a sealed claim was not opened in time; the reward is the customer's again.
    EXPIRED,
    /// Nobody won against the claim, and too few attested to it; everybody has back what it paid in, but for the shares of those who did.
    LAPSED
}

/// @notice Status of an account's audit of a claim that needs attestations.
enum AuditStatus {
    /// No such audit.
    NONE,
    /// Blind audits: sealed, with its bond.
    SEALED,
    /// Attests to the claim, with its bond.
    ATTESTED,
    /// Was opened with another root; the bond is that of the challenge which this is.
    CHALLENGED,
    /// Its bond is credited or lost; nothing is left to collect.
    CLOSED
}

/// @notice Phase of a game.
enum Phase {
    /// No such game.
    NONE,
    /// Waits until an earlier game of the job is over; no clock runs.
    QUEUED,
    /// One side's clock runs: `bisect` is due from `turn`.
    BISECTION,
    /// The clock of each side that has not spoken yet runs: `openLevel` at levels CHECKPOINT and STEP, `openOperator` at OPERATOR,
    /// `openPartials` at PARTIAL.
    OPENING,
    /// The trainer's clock runs: `postChunk`.
    POSTING,
    /// The challenger's clock runs: `proveStore` at OPERATOR, `proveElement` or `disputeSum` at CHUNK, `proveSegment` at PARTIAL.
    PROVING,
    /// The referee's clock runs: `adjudicate`.
    REFEREE,
    /// Over; see `outcome`.
    OVER
}

/// @notice Outcome of a game.
enum Outcome {
    /// Still live.
    NONE,
    /// The challenger lost its bond; the claim stands as far as this game goes.
    TRAINER_WON,
    /// The trainer lost its bond; the claim is rejected.
    CHALLENGER_WON,
    /// Both sides' padding was wrong, or both let their time run out; the claim is rejected, and of both bonds half is the
    /// customer's and half is burnt.
    BOTH_LOST,
    /// The referee fell silent; the claim is rejected, both bonds return.
    UNDECIDED,
    /// Another game rejected the claim first; the challenger's bond returns.
    VOID
}

/// @notice Reason for which a game ended.
enum Reason {
    NONE,
    /// The contract has computed what was disputed: an element, a segment, or what a store keeps.
    PROOF,
    /// The referee's verdict.
    VERDICT,
    /// A clock ran out.
    TIMEOUT,
    /// The trees first differ in the padding, where only PAD is right.
    PADDING,
    /// Another game has rejected the claim, or, of an appeal, another appeal has decided.
    CLAIM_REJECTED
}
