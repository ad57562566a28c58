// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisection, Bisections, Search, Side} from "./game/Bisection.sol";
import {Clock, ClockPair, Clocks} from "./game/Clock.sol";
import {IVerificationGame} from "./IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason} from "./Types.sol";
import {Level} from "./game/Level.sol";
import {Meter} from "./game/Meter.sol";
import {Audit, Audits, Claim, Game, Job, Records} from "./Records.sol";
import {AuditView, AuditsView, ClaimView, GameView, JobView, LevelView, VerdictView} from "./Views.sol";

/// @title Views of jobs and games
/// @notice A contract of its own for the sake of the limit on code; it reads the storage of the game that calls it. Answers are encoded here,
///         so that the game passes them on without reading them.
library Display {
    using Bisections for Search;
    using Clocks for Clock;
    using Clocks for ClockPair;
    using Meter for ClockPair;
    using Records for Game;
    using Records for Job;

    /// @notice A job as `IVerificationGame.getJob` returns it.
    function jobView(Job storage job) external view returns (bytes memory) {
        return abi.encode(showJob(job));
    }

    function showJob(Job storage job) private view returns (JobView memory shown) {
        shown.status = job.status;
        shown.customer = job.customer;
        shown.spec = job.spec;
        shown.specHash = job.specHash;
        shown.terms = job.terms;
        shown.jobCid = job.jobCid;
        shown.postedAt = job.postedAt;
        shown.commitDeadline = job.commitDeadline();
        if (job.claim.trainer != address(0)) shown.claim = showClaim(job);
        shown.liveGames = job.liveGames;
        shown.gameCount = uint64(job.games.length);
        if (job.status == JobStatus.CLAIMED || job.status == JobStatus.APPEALABLE) {
            shown.queuedGames = shown.gameCount - job.started;
        }
        shown.attestations = job.attestations;
        shown.audits = showAudits(job);
    }

    function showAudits(Job storage job) private view returns (AuditsView memory shown) {
        Audits storage audits = job.audits;
        shown.count = uint64(audits.all.length);
        if (!audits.sealedAt.isNever()) {
            (shown.auditDeadline, shown.openingDeadline) = (job.auditDeadline(), job.openingDeadline());
            if (!job.claim.committedAt.isNever()) shown.auditOpeningDeadline = job.auditOpeningDeadline();
        }
        if (!audits.decidedAt.isNever()) (shown.verdict, shown.appealDeadline) = (audits.verdict, job.appealDeadline());
        shown.lost = audits.lost;
    }

    /// @notice Audits as `IVerificationGame.auditsOf` returns them.
    function auditsOf(Job storage job, uint256 offset, uint256 limit) external view returns (bytes memory) {
        Audit[] storage all = job.audits.all;
        AuditView[] memory page = new AuditView[](pageSize(all.length, offset, limit));
        for (uint256 i = 0; i < page.length; ++i) {
            Audit storage audit = all[offset + i];
            page[i] = AuditView(audit.auditor, audit.status, audit.appeal, audit.seal, audit.logCid, audit.modelCid);
        }
        return abi.encode(page);
    }

    /// @notice Games as `IVerificationGame.gamesOf` returns them.
    function gamesOf(Job storage job, uint256 offset, uint256 limit) external view returns (bytes memory) {
        GameId[] storage all = job.games;
        GameId[] memory page = new GameId[](pageSize(all.length, offset, limit));
        for (uint256 i = 0; i < page.length; ++i) {
            page[i] = all[offset + i];
        }
        return abi.encode(page);
    }

    function pageSize(uint256 count, uint256 offset, uint256 limit) private pure returns (uint256) {
        uint256 left = offset < count ? count - offset : 0;
        return limit < left ? limit : left;
    }

    /// @notice What has become of a job: outcome, roots and amounts. For contracts of others, which call this one: a function more in the game
    ///         would cost all its moves gas. Reverts as `getJob` does.
    function verdictOf(address game, uint64 id) external view returns (VerdictView memory shown) {
        JobView memory job = IVerificationGame(game).getJob(JobId.wrap(id));
        shown.outcome = job.status;
        shown.customer = job.customer;
        shown.trainer = job.claim.trainer;
        shown.specHash = job.specHash;
        shown.checkpointRoot = job.claim.checkpointRoot;
        shown.finalStateRoot = job.claim.finalStateRoot;
        shown.reward = job.terms.reward;
        shown.trainerBond = job.terms.trainerBond;
        shown.attestations = job.attestations;
        shown.gameCount = job.gameCount;
    }

    function showClaim(Job storage job) private view returns (ClaimView memory shown) {
        Claim storage claim = job.claim;
        shown.trainer = claim.trainer;
        if (claim.committedAt.isNever()) return shown;
        shown.checkpointRoot = claim.checkpointRoot;
        shown.finalStateRoot = claim.finalStateRoot;
        shown.logCid = claim.logCid;
        shown.modelCid = claim.modelCid;
        shown.committedAt = claim.committedAt;
        shown.challengeDeadline = job.challengeDeadline();
    }

    /// @notice A game as `IVerificationGame.getGame` returns it.
    function gameView(Game storage game, Job storage job) external view returns (bytes memory) {
        return abi.encode(showGame(game, job));
    }

    function showGame(Game storage game, Job storage job) private view returns (GameView memory shown) {
        shown.job = game.job;
        (shown.trainer, shown.challenger) = (job.party(game, Side.TRAINER), game.challenger);
        shown.isAppeal = game.isAppeal;
        (shown.phase, shown.outcome, shown.reason) = (game.phase, game.outcome, game.reason);
        if (game.isVoid(job)) {
            (shown.phase, shown.outcome, shown.reason) = (Phase.OVER, Outcome.VOID, Reason.CLAIM_REJECTED);
        }
        if (shown.phase == Phase.QUEUED) shown.ahead = game.place - job.started;
        shown.trainerBond = job.terms.trainerBond;
        shown.challengerBond = job.terms.challengerBond;
        shown.bondHeld = game.bondHeld;
        for (uint8 side = 0; side < 2; ++side) {
            Clock memory clock = game.clocks.get(Side(side));
            shown.clocks[side] = clock;
            if (clock.isRunning()) shown.deadlines[side] = clock.deadline();
            shown.spent[side] = game.clocks.read(Side(side));
        }
        shown.refereeDeadline = game.refereeDeadline;
        shown.startedAt = game.startedAt;
        shown.agreed = game.agreed;
        shown.operator = game.operator;
        shown.disputed = game.disputed;
        Level level = game.level;
        shown.search = game.search.show();
        if (level == Level.PARTIAL && game.phase == Phase.OPENING) {
            // What stands there is still of level CHUNK, but for the row of a side that has opened.
            // slither-disable-next-line uninitialized-local
            Bisection memory opened;
            for (uint8 side = 0; side < 2; ++side) {
                if (!shown.deadlines[side].isNever()) continue;
                (opened.nodes[side], opened.shownIn) = (shown.search.nodes[side], shown.search.shownIn);
            }
            shown.search = opened;
        }
        shown.levels = new LevelView[](uint8(level) + 1);
        for (uint8 i = 0; i < shown.levels.length; ++i) {
            Level above = Level(i);
            shown.levels[i] = LevelView({
                level: above,
                leafCount: game.leafCount(job.spec, above),
                roots: game.roots[above],
                index: above == level ? shown.search.index : game.path[i]
            });
        }
    }
}
