// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Search, Side} from "./Bisection.sol";
import {ClockPair} from "./Clock.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./IVerificationGame.sol";
import {Level} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {Ends} from "./Queue.sol";
import {Timestamp} from "./Time.sol";
import {Trace} from "./Trace.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {ElementView, OperatorView} from "./Views.sol";

/// @notice A trainer's claim.
struct Claim {
    address trainer;
    Timestamp committedAt;
    Node checkpointRoot;
    /// The left and the right child of `checkpointRoot`, known from the proof of its last leaf; they spare every game a move.
    Node left;
    Node right;
    bytes32 finalStateRoot;
    string logCid;
    string modelCid;
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
    mapping(address auditor => bool) attested;
    /// The latest game of an account with this root.
    mapping(address challenger => mapping(Node root => GameId)) challenged;
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
}

/// @title Values that follow from the records
library Records {
    function commitDeadline(Job storage job) internal view returns (Timestamp) {
        return job.postedAt.add(job.terms.commitWindow);
    }

    function challengeDeadline(Job storage job) internal view returns (Timestamp) {
        return job.claim.committedAt.add(job.terms.challengeWindow);
    }

    function party(Job storage job, Game storage game, Side side) internal view returns (address) {
        return side == Side.TRAINER ? job.claim.trainer : game.challenger;
    }

    /// @notice Leaves of a tree at a level. The spec and the descriptor of the disputed operator bind it, no party chooses it.
    function leafCount(Game storage game, TrainingSpec storage spec, Level level) internal view returns (uint64) {
        if (level == Level.CHECKPOINT) return spec.steps / spec.interval;
        if (level == Level.STEP) return spec.interval;
        if (level == Level.OPERATOR) return Trace.leafCount(spec);
        return level == Level.CHUNK ? game.operator.chunks : game.operator.segments;
    }
}
