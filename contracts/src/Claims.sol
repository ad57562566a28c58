// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisections, Children, Search, Side} from "./Bisection.sol";
import {Clock, ClockPair, Clocks} from "./Clock.sol";
import {GameId, IVerificationGame, JobId, JobStatus, Phase, Terms} from "./IVerificationGame.sol";
import {Level} from "./Level.sol";
import {Limits} from "./Limits.sol";
import {Merkle, Node} from "./Merkle.sol";
import {Queue} from "./Queue.sol";
import {Game, Job, Records} from "./Records.sol";
import {Time} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title New jobs and new challenges
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
library Claims {
    using Bisections for Search;
    using Clocks for ClockPair;
    using Queue for Job;
    using Records for Game;

    /// @notice `IVerificationGame.postJob`, paid already.
    function post(Job storage job, JobId id, TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) external {
        Limits.check(spec, terms, jobCid);
        job.status = JobStatus.OPEN;
        job.customer = msg.sender;
        job.postedAt = Time.now_();
        bytes32 specHash = keccak256(abi.encode(spec));
        job.specHash = specHash;
        job.spec = spec;
        job.terms = terms;
        job.jobCid = jobCid;
        emit IVerificationGame.JobPosted(id, msg.sender, specHash, spec, terms, jobCid);
    }

    /// @notice `IVerificationGame.challenge`, paid already.
    /// @dev All that the game starts with is written here, so that starting it costs little to the one who ends the game before it.
    function challenge(Job storage job, mapping(GameId => Game) storage games, JobId id, GameId gameId, Node[2] memory roots)
        external
    {
        // INVARIANT: the two roots of a search differ. Roots that others have challenged with already are welcome: a friend of the
        // trainer could take the right one and lose on purpose.
        if (roots[0] == roots[1]) revert IVerificationGame.RootIsTheTrainers(roots[1]);
        // Two processes with one key, which know nothing of each other, must not pay two bonds.
        GameId before = job.challenged[msg.sender][roots[1]];
        if (games[before].phase != Phase.NONE && games[before].phase != Phase.OVER) {
            revert IVerificationGame.AlreadyChallenged(before);
        }
        job.challenged[msg.sender][roots[1]] = gameId;
        Game storage game = games[gameId];
        (game.job, game.phase, game.bondHeld, game.challenger) = (id, Phase.QUEUED, true, msg.sender);
        Clock memory clock = Clocks.create(job.terms.clockAllowance);
        game.clocks = game.clocks.set(Side.TRAINER, clock).set(Side.CHALLENGER, clock);
        game.agreed = job.spec.initialStateRoot;
        game.roots[Level.CHECKPOINT] = roots;
        game.search.revealed = Children(job.claim.left, job.claim.right);
        game.search.begin(roots, Merkle.depth(game.leafCount(job.spec, Level.CHECKPOINT)));
        emit IVerificationGame.Challenged(id, gameId, msg.sender, roots[1]);
        job.enter(games, gameId);
        job.startNext(games);
    }
}
