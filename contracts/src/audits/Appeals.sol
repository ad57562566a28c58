// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "../game/Bisection.sol";
import {Bonds, Ledger, Shares} from "./Bonds.sol";
import {ClockPair} from "../game/Clock.sol";
import {Fees} from "./Fees.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {Meter} from "../game/Meter.sol";
import {Queue} from "../game/Queue.sol";
import {Audits, Game, Job, Records} from "../Records.sol";
import {Time} from "../Time.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome} from "../Types.sol";

/// @title Appeals against a verdict
/// @notice A trainer with the right root can lose a game on purpose, to a friend, because only the root is what the auditors have attested
///         to. So a verdict takes their bonds only after each of them could play the same game itself, on the trainer's side.
/// @dev The claim itself is rejected for good, whatever comes of the appeals: its trainer has lost a game.
library Appeals {
    using Bonds for Ledger;
    using Fees for Job;
    using Meter for ClockPair;
    using Queue for Job;
    using Records for Audits;
    using Records for Job;

    /// @notice Opens the time for appeals after a game that a challenger has won.
    /// @dev The winner's bond stays, since the winner has to defend the verdict.
    function begin(Job storage job, JobId id, GameId verdict) internal {
        job.status = JobStatus.APPEALABLE;
        (job.audits.verdict, job.audits.decidedAt) = (verdict, Time.now_());
        // Challenges that wait are void.
        job.started = uint64(job.games.length);
        emit IVerificationGame.VerdictAppealable(id, verdict, job.appealDeadline());
    }

    /// @notice Acts upon the outcome of an appeal, whose game is over already.
    function decide(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, GameId gameId, Outcome outcome)
        internal
    {
        Game storage game = games[gameId];
        game.bondHeld = false;
        if (outcome == Outcome.TRAINER_WON || outcome == Outcome.BOTH_LOST) {
            overturn(job, games, ledger, gameId, outcome);
            return;
        }
        --job.liveGames;
        uint256 bond = job.terms.challengerBond;
        if (outcome == Outcome.CHALLENGER_WON) {
            // INVARIANT: an appeal that is lost takes nothing from the other attestations, whose owners have appeals of their own.
            Shares memory lost = Bonds.split(bond, game.clocks.read(Side.CHALLENGER));
            ledger.credit(game.challenger, lost.gas + lost.half);
            ledger.credit(job.customer, lost.quarter);
            ledger.burn(gameId, lost.burnt);
        } else {
            // The referee was silent, so nothing is shown about this auditor, and nothing for it about the winner.
            job.audits.auditOf(game.appellant).status = AuditStatus.CLOSED;
            --job.audits.atStake;
            uint256 fee = job.shareOf(game.appellant);
            job.audits.feesPaid += uint128(fee);
            ledger.credit(game.appellant, bond + job.terms.attestationBond + fee);
        }
        // INVARIANT: the verdict still stands, so the next appeal starts now, in its turn.
        // slither-disable-next-line unused-return
        job.startNext(games);
    }

    /// @dev The winner has lost, so its root is shown to be none that convicts an auditor: all attestations are free, and so are all other
    ///      appeals. The trainer's bond goes to nobody who played, because it may have played against itself.
    function overturn(Job storage job, mapping(GameId => Game) storage games, Ledger storage ledger, GameId gameId, Outcome outcome)
        private
    {
        Game storage game = games[gameId];
        games[job.audits.verdict].bondHeld = false;
        job.status = JobStatus.REJECTED;
        job.liveGames = 0;
        emit IVerificationGame.VerdictOverturned(game.job, gameId);
        ledger.forfeit(gameId, job.customer, job.terms.trainerBond);
        uint256 bond = job.terms.challengerBond;
        if (outcome == Outcome.TRAINER_WON) {
            Shares memory lost = Bonds.split(bond, game.clocks.read(Side.TRAINER));
            ledger.credit(game.appellant, bond + lost.gas + lost.half);
            ledger.credit(job.customer, lost.quarter);
            ledger.burn(gameId, lost.burnt);
        } else {
            ledger.forfeit(gameId, job.customer, bond);
            ledger.forfeit(gameId, job.customer, bond);
        }
        ledger.credit(job.customer, job.refund());
    }
}
