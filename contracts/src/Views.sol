// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisection} from "./game/Bisection.sol";
import {Clock} from "./game/Clock.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./Types.sol";
import {Level} from "./game/Level.sol";
import {Node} from "./Merkle.sol";
import {Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @notice A job as `getJob` shows it.
struct JobView {
    JobStatus status;
    address customer;
    TrainingSpec spec;
    bytes32 specHash;
    Terms terms;
    string jobCid;
    Timestamp postedAt;
    /// Last instant for `commit`.
    Timestamp commitDeadline;
    ClaimView claim;
    /// Games still being played; has to be zero before `finalize`. Zero again once the claim is rejected.
    uint64 liveGames;
    /// Games that wait for their turn; while there are any, `terms.concurrentGames` others are live. Zero again once the claim is rejected.
    uint64 queuedGames;
    /// All challenges ever made to the claim, and appeals.
    uint64 gameCount;
    uint64 attestations;
    AuditsView audits;
}

/// @notice Blind audits and appeals of a job. Deadlines are zero as long as they are not known.
struct AuditsView {
    /// Audits ever sealed, and attestations that are bonded: as many as `auditsOf` pages through.
    uint64 count;
    /// Last instant for `sealAudit`; `openClaim` works strictly after it.
    Timestamp auditDeadline;
    /// Last instant for `openClaim`; `reclaim` works strictly after it.
    Timestamp openingDeadline;
    /// Last instant for `openAudit`; games start strictly after it.
    Timestamp auditOpeningDeadline;
    /// The game that ended against the claim, once there may be appeals; else zero.
    GameId verdict;
    /// Last instant for `appeal`.
    Timestamp appealDeadline;
    /// Whether the verdict was upheld and has taken the bonds of the attestations.
    bool lost;
}

/// @notice An account's audit of a claim that needs attestations.
struct AuditView {
    address auditor;
    AuditStatus status;
    /// The appeal that this auditor has made; zero: none.
    GameId appeal;
    /// The seal as it was sent last; zero if audits are open.
    bytes32 seal;
    /// Where the auditor serves the log, once it attests.
    string logCid;
    /// Where the auditor serves the model, once it attests.
    string modelCid;
}

/// @notice The claim of a job; all zero while the job waits for one, and all but the trainer while it is sealed.
struct ClaimView {
    address trainer;
    Node checkpointRoot;
    bytes32 finalStateRoot;
    string logCid;
    string modelCid;
    Timestamp committedAt;
    /// Last instant for `challenge`; `finalize` works strictly after it.
    Timestamp challengeDeadline;
}

/// @notice What has become of a job, as `Display.verdictOf` shows it to registries of attestations.
struct VerdictView {
    /// FINAL, REJECTED, LAPSED or EXPIRED once the job is over; before that, how far it is.
    JobStatus outcome;
    address customer;
    address trainer;
    bytes32 specHash;
    Node checkpointRoot;
    bytes32 finalStateRoot;
    /// Wei that the customer has offered; the trainer's if the outcome is FINAL.
    uint128 reward;
    /// Wei that the trainer has risked for its claim.
    uint128 trainerBond;
    uint64 attestations;
    /// All challenges ever made to the claim, and appeals.
    uint64 gameCount;
}

/// @notice One level of a game, as far as it has come.
struct LevelView {
    Level level;
    uint64 leafCount;
    /// The two sides' roots, by Side. At level PARTIAL a root is zero until its side has opened it.
    Node[2] roots;
    /// The leaf that the search has found; of the present level, the leftmost leaf below the place reached.
    uint64 index;
}

/// @notice The disputed operator, from its descriptor; all zero until a side has opened it.
struct OperatorView {
    /// keccak256 of the descriptor's encoding.
    bytes32 descriptorHash;
    /// Bytes of an element.
    uint8 width;
    uint64 elements;
    /// Leaves of a tree at level CHUNK.
    uint64 chunks;
    /// Leaves of a tree at level PARTIAL if there is more than one; 0 for an operator without a sum.
    uint64 segments;
}

/// @notice The one element that the challenger has named: what level PARTIAL is about, or the referee's question.
struct ElementView {
    bool known;
    /// Flat index in the operator's output.
    uint64 element;
    /// The trainer's bits.
    uint64 claimed;
}

/// @notice A game as `getGame` shows it.
struct GameView {
    JobId job;
    /// The account on the trainer's side: of an appeal, the auditor that has made it.
    address trainer;
    address challenger;
    bool isAppeal;
    Phase phase;
    Outcome outcome;
    Reason reason;
    /// In phase QUEUED, how many games start before this one.
    uint64 ahead;
    uint128 trainerBond;
    uint128 challengerBond;
    /// Whether the bond of the party that began the game, challenger or appellant, is still escrowed; once the outcome is VOID,
    /// `releaseBond` returns it.
    bool bondHeld;
    /// By Side.
    Clock[2] clocks;
    /// Last instant for a move of each side whose clock runs, else zero; by Side. In phase OPENING: zero for a side that has opened.
    Timestamp[2] deadlines;
    /// Wei that the gas of each side's moves has cost, as far as it counts (`Meter`); by Side.
    uint256[2] spent;
    /// Last instant for the verdict; zero before the referee's clock has started.
    Timestamp refereeDeadline;
    /// When the clocks started; zero in phase QUEUED.
    Timestamp startedAt;
    /// Agreed so far: the spec's initial state, then the state root before the disputed interval, and from level OPERATOR on the one
    /// before the disputed step.
    bytes32 agreed;
    /// The search of the present level. At level PARTIAL until both sides have opened their roots, the hash of the row of the first only.
    Bisection search;
    /// From CHECKPOINT down to the present level.
    LevelView[] levels;
    OperatorView operator;
    ElementView disputed;
}

/// @notice Result of one call in a `batch`.
struct Answer {
    bool success;
    /// The value that the call returned, or its error.
    bytes data;
}
