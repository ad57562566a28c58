// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Search, Side} from "./game/Bisection.sol";
import {ClockPair} from "./game/Clock.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./Types.sol";
import {Level} from "./game/Level.sol";
import {Node} from "./Merkle.sol";
import {Ends} from "./game/Queue.sol";
import {Timestamp} from "./Time.sol";
import {Trace} from "./game/Trace.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {ElementView, OperatorView} from "./Views.sol";

/// @notice A trainer's claim.
struct Claim {
    address trainer;
    /// When it was made, or, with blind audits, opened.
    Timestamp committedAt;
    /// Number of the block in which that was.
    uint32 shownIn;
    Node checkpointRoot;
    /// What was shown of it, as `Bisections.begin` takes it; it spares every game a move.
    bytes32 row;
    bytes32 finalStateRoot;
    string logCid;
    string modelCid;
}

/// @notice An account's audit of a claim that needs attestations.
struct Audit {
    address auditor;
    AuditStatus status;
    /// The appeal that this auditor has made; zero: none.
    GameId appeal;
    bytes32 seal;
    string logCid;
    string modelCid;
}

/// @notice What blind audits and appeals add to a job.
struct Audits {
    /// When the trainer sealed its claim.
    Timestamp sealedAt;
    /// When a game ended against the claim.
    Timestamp decidedAt;
    /// That game, once there may be appeals.
    GameId verdict;
    /// Whether the verdict was upheld, and has taken the bonds of the attestations.
    bool lost;
    /// Attestations whose bonds the verdict may take.
    uint64 atStake;
    /// Shares of the fee in wei that were paid before the job was over: a silent referee has freed their owners.
    uint128 feesPaid;
    bytes32 claimSeal;
    /// In the order in which they came.
    Audit[] all;
    /// Index in `all`, plus one.
    mapping(address auditor => uint256) place;
    /// A bit for each audit in `all` that was opened as an attestation. See `Fees`.
    mapping(uint256 word => uint256) attested;
    /// Placeholder for the audit of an account that has none; never written.
    Audit none;
}

struct Job {
    address customer;
    JobStatus status;
    Timestamp postedAt;
    uint64 liveGames;
    /// Number of `games` that have started: the first ones.
    uint64 started;
    uint64 attestations;
    bytes32 specHash;
    Terms terms;
    TrainingSpec spec;
    Claim claim;
    string jobCid;
    /// In the order of their challenges.
    GameId[] games;
    /// Ends of the list of games that have this root of the challenger's and are not lost. See `Queue`.
    mapping(Node root => Ends) withRoot;
    /// The same of challenges that were sealed before the claim was opened.
    mapping(Node root => Ends) sealedWithRoot;
    mapping(address auditor => bool) attested;
    /// The latest game of an account with this root.
    mapping(address challenger => mapping(Node root => GameId)) challenged;
    Audits audits;
}

/// @notice A game. The order of the fields is that of the words of storage which a move touches.
struct Game {
    JobId job;
    Timestamp startedAt;
    Timestamp refereeDeadline;
    Phase phase;
    Outcome outcome;
    Reason reason;
    Level level;
    bool bondHeld;
    bool isAppeal;
    /// Whether the challenge was sealed before the claim was opened.
    bool wasSealed;
    address challenger;
    ClockPair clocks;
    /// Search of the present level.
    Search search;
    /// The leaves found at the levels above the present one, by Level.
    uint64[4] path;
    bytes32 agreed;
    /// By Side. A side's root of the next level stands here as soon as it has opened it.
    mapping(Level level => Node[2]) roots;
    OperatorView operator;
    ElementView disputed;
    /// Index in the job's games.
    uint64 place;
    /// The neighbours among the games with the same root.
    GameId previous;
    GameId next;
    /// Of an appeal: the auditor on the trainer's side.
    address appellant;
}

/// @title Values that follow from the records
library Records {
    /// @notice What the customer has paid in: reward and audit fee.
    function escrowed(Job storage job) internal view returns (uint256) {
        return uint256(job.terms.reward) + job.terms.auditFee;
    }

    function commitDeadline(Job storage job) internal view returns (Timestamp) {
        return job.postedAt.add(job.terms.commitWindow);
    }

    function challengeDeadline(Job storage job) internal view returns (Timestamp) {
        return job.claim.committedAt.add(job.terms.challengeWindow);
    }

    /// @notice The last instant at which auditors may seal their audits.
    function auditDeadline(Job storage job) internal view returns (Timestamp) {
        return job.audits.sealedAt.add(job.terms.auditWindow);
    }

    /// @notice The last instant at which the trainer may open its sealed claim.
    function openingDeadline(Job storage job) internal view returns (Timestamp) {
        return auditDeadline(job).add(job.terms.openingWindow);
    }

    /// @notice The last instant at which auditors may open their sealed audits.
    function auditOpeningDeadline(Job storage job) internal view returns (Timestamp) {
        return job.claim.committedAt.add(job.terms.openingWindow);
    }

    /// @notice The last instant for an appeal: as long after the verdict as there was for challenges.
    function appealDeadline(Job storage job) internal view returns (Timestamp) {
        return job.audits.decidedAt.add(job.terms.challengeWindow);
    }

    /// @notice Whether audits are sealed before the claim is known.
    function isBlind(Job storage job) internal view returns (bool) {
        return !job.terms.openingWindow.isZero();
    }

    function party(Job storage job, Game storage game, Side side) internal view returns (address) {
        if (side == Side.CHALLENGER) return game.challenger;
        return game.isAppeal ? game.appellant : job.claim.trainer;
    }

    /// @notice Whether another game has decided, so that this one never will.
    function isVoid(Game storage game, Job storage job) internal view returns (bool) {
        if (game.phase == Phase.OVER) return false;
        return job.status == JobStatus.REJECTED || (job.status == JobStatus.APPEALABLE && !game.isAppeal);
    }

    /// @notice Leaves of a tree at a level. The spec and the descriptor of the disputed operator bind it, no party chooses it.
    function leafCount(Game storage game, TrainingSpec storage spec, Level level) internal view returns (uint64) {
        if (level == Level.CHECKPOINT) return spec.steps / spec.interval;
        if (level == Level.STEP) return spec.interval;
        if (level == Level.OPERATOR) return Trace.leafCount(spec);
        return level == Level.CHUNK ? game.operator.chunks : game.operator.segments;
    }

    /// @notice An account's audit, in status NONE if there is none.
    function auditOf(Audits storage audits, address auditor) internal view returns (Audit storage) {
        uint256 place = audits.place[auditor];
        return place == 0 ? audits.none : audits.all[place - 1];
    }

    /// @notice A new audit of the sender's.
    function add(Audits storage audits) internal returns (Audit storage audit) {
        audit = audits.all.push();
        audit.auditor = msg.sender;
        audits.place[msg.sender] = audits.all.length;
    }
}
