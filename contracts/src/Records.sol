// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisections, Search, Side} from "./Bisection.sol";
import {Clock, ClockPair, Clocks} from "./Clock.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./IVerificationGame.sol";
import {Level} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {Duration, Timestamp} from "./Time.sol";
import {Trace} from "./Trace.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {ClaimView, ElementView, GameView, JobView, LevelView, OperatorView} from "./Views.sol";

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
    uint64 attestations;
    Terms terms;
    TrainingSpec spec;
    Claim claim;
    string jobCid;
    GameId[] games;
    mapping(address auditor => bool) attested;
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
    /// Bonds and allowances are copied when the game starts.
    address challenger;
    Duration refereeAllowance;
    uint128 trainerBond;
    uint128 challengerBond;
    ClockPair clocks;
    /// Of the present level.
    Search search;
    /// The leaves found at the levels above the present one, by Level.
    uint64[4] path;
    bytes32 agreed;
    /// By Side. A side's root of the next level stands here as soon as it has opened it.
    mapping(Level level => Node[2]) roots;
    OperatorView operator;
    ElementView disputed;
}

/// @title Records as one call shows them
library Records {
    using Bisections for Search;
    using Clocks for Clock;
    using Clocks for ClockPair;

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

    function show(Job storage job) internal view returns (JobView memory shown) {
        shown.status = job.status;
        shown.customer = job.customer;
        shown.spec = job.spec;
        shown.specHash = keccak256(abi.encode(shown.spec));
        shown.terms = job.terms;
        shown.jobCid = job.jobCid;
        shown.postedAt = job.postedAt;
        shown.commitDeadline = commitDeadline(job);
        if (job.claim.trainer != address(0)) shown.claim = showClaim(job);
        shown.liveGames = job.liveGames;
        shown.gameCount = uint64(job.games.length);
        shown.attestations = job.attestations;
    }

    function showClaim(Job storage job) private view returns (ClaimView memory shown) {
        Claim storage claim = job.claim;
        shown.trainer = claim.trainer;
        shown.checkpointRoot = claim.checkpointRoot;
        shown.finalStateRoot = claim.finalStateRoot;
        shown.logCid = claim.logCid;
        shown.modelCid = claim.modelCid;
        shown.committedAt = claim.committedAt;
        shown.challengeDeadline = challengeDeadline(job);
    }

    function show(Game storage game, Job storage job) internal view returns (GameView memory shown) {
        shown.job = game.job;
        shown.trainer = job.claim.trainer;
        shown.challenger = game.challenger;
        (shown.phase, shown.outcome, shown.reason) = (game.phase, game.outcome, game.reason);
        if (job.status == JobStatus.REJECTED && game.phase != Phase.OVER) {
            (shown.phase, shown.outcome, shown.reason) = (Phase.OVER, Outcome.VOID, Reason.CLAIM_REJECTED);
        }
        shown.trainerBond = game.trainerBond;
        shown.challengerBond = game.challengerBond;
        shown.bondHeld = game.bondHeld;
        for (uint8 side = 0; side < 2; ++side) {
            Clock memory clock = game.clocks.get(Side(side));
            shown.clocks[side] = clock;
            if (clock.isRunning()) shown.deadlines[side] = clock.deadline();
        }
        shown.refereeDeadline = game.refereeDeadline;
        shown.startedAt = game.startedAt;
        shown.agreed = game.agreed;
        shown.operator = game.operator;
        shown.disputed = game.disputed;
        Level level = game.level;
        if (level < Level.PARTIAL || game.phase != Phase.OPENING) shown.search = game.search.show();
        shown.levels = new LevelView[](uint8(level) + 1);
        for (uint8 i = 0; i < shown.levels.length; ++i) {
            Level above = Level(i);
            shown.levels[i] = LevelView({
                level: above,
                leafCount: leafCount(game, job.spec, above),
                roots: game.roots[above],
                index: above == level ? shown.search.index : game.path[i]
            });
        }
    }
}
