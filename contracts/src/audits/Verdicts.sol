// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Appeals} from "./Appeals.sol";
import {Side} from "../game/Bisection.sol";
import {Bonds, Ledger, Shares} from "./Bonds.sol";
import {ClockPair} from "../game/Clock.sol";
import {Fees} from "./Fees.sol";
import {Guards} from "../Guards.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {Meter} from "../game/Meter.sol";
import {Queue} from "../game/Queue.sol";
import {Game, Job, Records} from "../Records.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason} from "../Types.sol";

/// @title Payments at the end of a game, and of a job
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
library Verdicts {
    using Appeals for Job;
    using Bonds for Ledger;
    using Fees for Job;
    using Meter for ClockPair;
    using Queue for Job;
    using Records for Game;
    using Records for Job;

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
        emit IVerificationGame.GameOver(game.job, gameId, outcome, reason);
        if (game.isAppeal) {
            job.decide(games, ledger, gameId, outcome);
            return;
        }
        if (outcome == Outcome.TRAINER_WON) {
            game.bondHeld = false;
            job.remove(games, game);
            Shares memory lost = Bonds.split(job.terms.challengerBond, game.clocks.read(Side.TRAINER));
            ledger.credit(job.claim.trainer, lost.gas + lost.half);
            ledger.credit(job.customer, lost.quarter);
            ledger.burn(gameId, lost.burnt);
            // INVARIANT: the claim still stands, so the next game starts now, in its turn.
            // slither-disable-next-line unused-return
            job.startNext(games);
            return;
        }
        // INVARIANT: one lost game rejects the claim. From now on every other challenge of this job is void: its moves ask for a claim
        // that is not rejected.
        job.liveGames = 0;
        emit IVerificationGame.ClaimRejected(game.job, gameId);
        if (outcome == Outcome.CHALLENGER_WON && job.audits.atStake > 0) {
            job.begin(game.job, gameId);
            return;
        }
        // INVARIANT: the trainer's bond and the reward leave here, once.
        job.status = JobStatus.REJECTED;
        game.bondHeld = false;
        if (outcome == Outcome.CHALLENGER_WON) payChallengers(job, games, ledger, gameId);
        else if (outcome == Outcome.BOTH_LOST) payCustomer(job, ledger, gameId);
        else payBack(job, ledger, game);
    }

    /// @notice `IVerificationGame.finalize`.
    function finalize(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, JobId id) external {
        JobStatus status = job.status;
        bool isAppealable = status == JobStatus.APPEALABLE;
        if (status != JobStatus.CLAIMED && !isAppealable) {
            revert IVerificationGame.WrongJobStatus(id, status, JobStatus.CLAIMED);
        }
        Guards.requireAfter(isAppealable ? job.appealDeadline() : job.challengeDeadline());
        uint64 undecided = job.liveGames + job.waiting();
        if (undecided != 0) revert IVerificationGame.LiveGames(id, undecided);
        if (isAppealable) uphold(job, games, ledger, id);
        else if (job.attestations >= job.terms.attestationsNeeded) payTrainer(job, ledger, id);
        else lapse(job, ledger, id);
    }

    /// @notice `IVerificationGame.releaseBond`.
    function releaseBond(Job storage job, Game storage game, Ledger storage ledger, GameId gameId) external {
        if (!game.bondHeld) revert IVerificationGame.BondNotHeld(gameId);
        if (!game.isVoid(job)) {
            // The bond of a challenger that has won stays until nobody can appeal any more.
            if (game.phase == Phase.OVER) revert IVerificationGame.BondNotHeld(gameId);
            revert IVerificationGame.WrongJobStatus(game.job, job.status, JobStatus.REJECTED);
        }
        (game.phase, game.outcome, game.reason) = (Phase.OVER, Outcome.VOID, Reason.CLAIM_REJECTED);
        game.bondHeld = false;
        emit IVerificationGame.GameOver(game.job, gameId, Outcome.VOID, Reason.CLAIM_REJECTED);
        ledger.credit(game.isAppeal ? game.appellant : game.challenger, job.terms.challengerBond);
    }

    function uphold(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, JobId id) private {
        GameId verdict = job.audits.verdict;
        job.status = JobStatus.REJECTED;
        job.audits.lost = true;
        games[verdict].bondHeld = false;
        emit IVerificationGame.VerdictUpheld(id, verdict);
        payChallengers(job, games, ledger, verdict);
    }

    function payTrainer(Job storage job, Ledger storage ledger, JobId id) private {
        job.status = JobStatus.FINAL;
        address trainer = job.claim.trainer;
        emit IVerificationGame.ClaimFinal(id, trainer, job.claim.finalStateRoot);
        ledger.credit(trainer, uint256(job.terms.reward) + job.terms.trainerBond);
        if (job.terms.attestationsNeeded == 0) return;
        uint256 rest = job.refund() - job.terms.reward;
        if (rest != 0) ledger.credit(job.customer, rest);
    }

    function lapse(Job storage job, Ledger storage ledger, JobId id) private {
        job.status = JobStatus.LAPSED;
        address trainer = job.claim.trainer;
        emit IVerificationGame.ClaimLapsed(id, trainer);
        ledger.credit(trainer, job.terms.trainerBond);
        ledger.credit(job.customer, job.refund());
    }

    /// @dev Half of the fine goes to the first challenger with the root that has won: so a trainer that sees that it loses cannot take it
    ///      back by beating itself with that root. The winner of the game gets its bond, and what its moves have cost.
    function payChallengers(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, GameId gameId) private {
        Game storage game = games[gameId];
        // INVARIANT: who attested to a wrong claim loses with its trainer.
        uint256 fine = job.terms.trainerBond + uint256(job.audits.atStake) * job.terms.attestationBond;
        Shares memory lost = Bonds.split(fine, game.clocks.read(Side.CHALLENGER));
        (address winner, address first) = (game.challenger, games[job.earliest(game)].challenger);
        uint256 toWinner = job.terms.challengerBond + lost.gas;
        if (first == winner) {
            ledger.credit(winner, toWinner + lost.half);
        } else {
            ledger.credit(winner, toWinner);
            ledger.credit(first, lost.half);
        }
        ledger.credit(job.customer, job.escrowed() - job.audits.feesPaid + lost.quarter);
        ledger.burn(gameId, lost.burnt);
    }

    /// @dev Nobody was right: half of both bonds to the customer, half to nobody, so that not even the customer gains by it for sure.
    function payCustomer(Job storage job, Ledger storage ledger, GameId gameId) private {
        uint256 both = uint256(job.terms.trainerBond) + job.terms.challengerBond;
        uint256 burnt = job.terms.trainerBond / 2 + job.terms.challengerBond / 2;
        ledger.credit(job.customer, job.refund() + both - burnt);
        ledger.burn(gameId, burnt);
    }

    function payBack(Job storage job, Ledger storage ledger, Game storage game) private {
        ledger.credit(job.customer, job.refund());
        ledger.credit(job.claim.trainer, job.terms.trainerBond);
        ledger.credit(game.challenger, job.terms.challengerBond);
    }
}
