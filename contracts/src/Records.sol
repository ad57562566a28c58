// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisection, Children, Side} from "./Bisection.sol";
import {Clock, Clocks} from "./Clock.sol";
import {
    ClaimView,
    GameId,
    GameView,
    JobId,
    JobStatus,
    JobView,
    LevelView,
    Outcome,
    Phase,
    Reason,
    Terms
} from "./IVerificationGame.sol";
import {Level, Levels} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {Duration, Time, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @notice A trainer's claim.
struct Claim {
    address trainer;
    Timestamp committedAt;
    Node checkpointRoot;
    /// The children of `checkpointRoot`, known from the proof of its last leaf; they spare every game a move.
    Children children;
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

/// @notice One level of one game. Kept when the game goes deeper, so that the whole dispute can be read afterwards.
struct LevelRecord {
    Bisection search;
    /// By Side.
    Node[2] roots;
    /// Whether a side has opened the disputed leaf; by Side.
    bool[2] opened;
    /// By Side; zero until opened.
    bytes32[2] payloads;
    /// What both sides agree on before leaf 0.
    bytes32 agreedBefore;
}

struct Game {
    address challenger;
    Phase phase;
    Outcome outcome;
    Reason reason;
    Level level;
    bool bondHeld;
    JobId job;
    /// Bonds and allowances are copied when the game starts.
    uint128 trainerBond;
    uint128 challengerBond;
    Timestamp startedAt;
    Duration refereeAllowance;
    Timestamp refereeDeadline;
    /// By Side.
    Clock[2] clocks;
    bytes32 agreed;
    mapping(Level level => LevelRecord) levels;
}

/// @title Records as one call shows them
library Records {
    using Clocks for Clock;
    using Levels for Level;

    function commitDeadline(Job storage job) internal view returns (Timestamp) {
        return job.postedAt.add(job.terms.commitWindow);
    }

    function challengeDeadline(Job storage job) internal view returns (Timestamp) {
        return job.claim.committedAt.add(job.terms.challengeWindow);
    }

    function party(Job storage job, Game storage game, Side side) internal view returns (address) {
        return side == Side.TRAINER ? job.claim.trainer : game.challenger;
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
        for (uint256 side = 0; side < 2; ++side) {
            Clock memory clock = game.clocks[side];
            shown.clocks[side] = clock;
            if (clock.isRunning()) shown.deadlines[side] = clock.deadline();
        }
        shown.refereeDeadline = game.refereeDeadline;
        shown.startedAt = game.startedAt;
        shown.agreed = game.agreed;
        uint8 depth = uint8(game.level) + 1;
        shown.levels = new LevelView[](depth);
        for (uint8 i = 0; i < depth; ++i) {
            shown.levels[i] = showLevel(game.levels[Level(i)], Level(i), job.spec);
        }
    }

    function showLevel(LevelRecord storage record, Level level, TrainingSpec storage spec)
        private
        view
        returns (LevelView memory shown)
    {
        shown.level = level;
        shown.leafCount = level.leafCount(spec);
        shown.roots = record.roots;
        shown.nodes = record.search.nodes;
        shown.revealed = record.search.revealed;
        shown.index = record.search.index;
        shown.height = record.search.height;
        shown.turn = record.search.turn;
        shown.opened = record.opened;
        shown.payloads = record.payloads;
        shown.agreedBefore = record.agreedBefore;
    }
}
