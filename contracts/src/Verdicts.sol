// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {Bonds, Ledger, Shares} from "./Bonds.sol";
import {ClockPair} from "./Clock.sol";
import {GameId, IVerificationGame, JobStatus, Outcome, Phase, Reason} from "./IVerificationGame.sol";
import {Meter} from "./Meter.sol";
import {Queue} from "./Queue.sol";
import {Game, Job} from "./Records.sol";

/// @title Payments at the end of a game
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
library Verdicts {
    using Bonds for Ledger;
    using Meter for ClockPair;
    using Queue for Job;

    /// @notice Ends a game. The only place where one ends with a winner or a loser, and the only one that moves a trainer's bond in a dispute.
    function end(
        Job storage job,
        mapping(GameId => Game) storage games,
        Ledger storage ledger,
        GameId gameId,
        Outcome outcome,
        Reason reason
    ) external {
        Game storage game = games[gameId];
        (game.phase, game.outcome, game.reason) = (Phase.OVER, outcome, reason);
        game.bondHeld = false;
        emit IVerificationGame.GameOver(game.job, gameId, outcome, reason);
        if (outcome == Outcome.TRAINER_WON) {
            job.remove(games, game);
            Shares memory lost = Bonds.split(job.terms.challengerBond, game.clocks.read(Side.TRAINER));
            ledger.credit(job.claim.trainer, lost.gas + lost.half);
            ledger.credit(job.customer, lost.quarter);
            ledger.burn(gameId, lost.burnt);
            // INVARIANT: the claim still stands, so the next game starts now, in its turn.
            job.startNext(games);
            return;
        }
        // INVARIANT: one lost game rejects the claim. The trainer's bond and the reward leave here, once, because from now on
        // every other game of this job is void: its moves ask for a claim that is not rejected.
        job.status = JobStatus.REJECTED;
        job.liveGames = 0;
        emit IVerificationGame.ClaimRejected(game.job, gameId);
        if (outcome == Outcome.CHALLENGER_WON) payChallengers(job, games, ledger, gameId);
        else if (outcome == Outcome.BOTH_LOST) payCustomer(job, ledger, gameId);
        else payBack(job, ledger, game);
    }

    /// @dev Half of the fine goes to the first challenger with the root that has won: so a trainer that sees that it loses cannot take it
    ///      back by beating itself with that root. The winner of the game gets its bond, and what its moves have cost.
    function payChallengers(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, GameId gameId) private {
        Game storage game = games[gameId];
        Shares memory lost = Bonds.split(job.terms.trainerBond, game.clocks.read(Side.CHALLENGER));
        (address winner, address first) = (game.challenger, games[job.earliest(game)].challenger);
        uint256 toWinner = job.terms.challengerBond + lost.gas;
        if (first == winner) {
            ledger.credit(winner, toWinner + lost.half);
        } else {
            ledger.credit(winner, toWinner);
            ledger.credit(first, lost.half);
        }
        ledger.credit(job.customer, job.terms.reward + lost.quarter);
        ledger.burn(gameId, lost.burnt);
    }

    /// @dev Nobody was right: half of both bonds to the customer, half to nobody, so that not even the customer gains by it for sure.
    function payCustomer(Job storage job, Ledger storage ledger, GameId gameId) private {
        uint256 both = uint256(job.terms.trainerBond) + job.terms.challengerBond;
        uint256 burnt = job.terms.trainerBond / 2 + job.terms.challengerBond / 2;
        ledger.credit(job.customer, job.terms.reward + both - burnt);
        ledger.burn(gameId, burnt);
    }

    function payBack(Job storage job, Ledger storage ledger, Game storage game) private {
        ledger.credit(job.customer, job.terms.reward);
        ledger.credit(job.claim.trainer, job.terms.trainerBond);
        ledger.credit(game.challenger, job.terms.challengerBond);
    }
}
