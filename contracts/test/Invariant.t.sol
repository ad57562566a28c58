// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {JobStatus, Outcome, Reason} from "../src/IVerificationGame.sol";
import {Merkle} from "../src/Merkle.sol";
import {GameView, JobView} from "../src/Views.sol";
import {Lie} from "./support/Runs.sol";
import {Test} from "./support/Test.sol";
import {World} from "./support/World.sol";

contract InvariantTest is Test {
    World private _world;
    address private _honestTrainer;
    address private _honestAuditor;

    function setUp() public {
        _world = new World();
        _world.setUp();
        (_honestTrainer, _honestAuditor) = _world.honestParties();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_world);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](18);
        selectors[0] = World.postJob.selector;
        selectors[1] = World.commitHonestly.selector;
        selectors[2] = World.commitWrongly.selector;
        selectors[3] = World.challengeHonestly.selector;
        selectors[4] = World.challengeUnreliably.selector;
        selectors[5] = World.move.selector;
        selectors[6] = World.wait_.selector;
        selectors[7] = World.claimTimeout.selector;
        selectors[8] = World.finalize.selector;
        selectors[9] = World.reclaim.selector;
        selectors[10] = World.releaseBond.selector;
        selectors[11] = World.withdraw.selector;
        selectors[12] = World.cheatSomehow.selector;
        selectors[13] = World.answerHonestly.selector;
        // More often than the rest, so that games get somewhere.
        selectors[14] = World.playOn.selector;
        selectors[15] = World.playOn.selector;
        selectors[16] = World.playOn.selector;
        selectors[17] = World.cheatSomehow.selector;
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(_world), selectors);
    }

    /// @dev One invariant and not four, because forge would play every sequence four times.
    function invariant_solvent_sound_bounded_andLawful() public view {
        theBalanceIsExactlyEscrowsAndCredits();
        anHonestTimelyParty_neverLoses();
        aGame_takesAtMostDepthMovesALevel_andItsOpenings();
        noRule_isBroken();
        gamesWait_onlyWhileAsManyAsMayBe_areLive();
    }

    function gamesWait_onlyWhileAsManyAsMayBe_areLive() private view {
        (uint256 jobs,) = _world.counts();
        for (uint256 job = 1; job <= jobs; ++job) {
            JobView memory shown = _world.getJob(job);
            vm.assertLe(shown.liveGames, shown.terms.concurrentGames, "no more than may be are live");
            if (shown.queuedGames > 0) vm.assertEq(shown.liveGames, shown.terms.concurrentGames, "no place stays empty");
        }
    }

    /// @notice Solvency, to the wei: what lies in the contract is what it owes.
    function theBalanceIsExactlyEscrowsAndCredits() private view {
        (uint256 jobs, uint256 games) = _world.counts();
        uint256 owed = _world.credits() + _world.burnt();
        for (uint256 job = 1; job <= jobs; ++job) {
            JobView memory shown = _world.getJob(job);
            if (shown.status == JobStatus.OPEN) owed += shown.terms.reward;
            if (shown.status == JobStatus.CLAIMED) owed += uint256(shown.terms.reward) + shown.terms.trainerBond;
        }
        for (uint256 id = 1; id <= games; ++id) {
            GameView memory shown = _world.getGame(id);
            if (shown.bondHeld) owed += shown.challengerBond;
        }
        vm.assertEq(_world.funds(), owed, "balance");
    }

    function anHonestTimelyParty_neverLoses() private view {
        (uint256 jobs, uint256 games) = _world.counts();
        for (uint256 job = 1; job <= jobs; ++job) {
            (bool honest,,,, bool challenged) = _world.claims(job);
            JobStatus status = _world.getJob(job).status;
            if (honest) vm.assertTrue(status != JobStatus.REJECTED, "an honest claim is never rejected");
            if (challenged) vm.assertTrue(status != JobStatus.FINAL, "a wrong claim with one honest challenger is never final");
        }
        for (uint256 id = 1; id <= games; ++id) {
            (uint256 job, bool honest,,) = _world.challenges(id);
            Outcome outcome = _world.getGame(id).outcome;
            if (honest) {
                vm.assertTrue(
                    outcome == Outcome.NONE || outcome == Outcome.CHALLENGER_WON || outcome == Outcome.VOID, "an honest challenger"
                );
            }
            (bool honestTrainer,,,,) = _world.claims(job);
            if (honestTrainer) vm.assertTrue(outcome == Outcome.NONE || outcome == Outcome.TRAINER_WON, "an honest trainer");
        }
    }

    function aGame_takesAtMostDepthMovesALevel_andItsOpenings() private view {
        (, uint256 games) = _world.counts();
        for (uint256 id = 1; id <= games; ++id) {
            (uint256 job,,, uint256 moves) = _world.challenges(id);
            (,, uint64 steps, uint64 interval,) = _world.claims(job);
            // Depths of a trace, of an output and of running results: 4, 2 and 2; a chunk, a named element and a proof.
            vm.assertLe(moves, uint256(Merkle.depth(steps / interval)) + Merkle.depth(interval) + 4 + 2 + 2 + 4 * 2 + 3, "moves");
        }
    }

    function noRule_isBroken() private view {
        vm.assertEq(_world.broken(), "", "illegal calls, searches, clocks");
    }

    /// @notice From any state, everything comes to an end, and nobody's money stays behind.
    function afterInvariant() public {
        _world.finish();
        (uint256 jobs,) = _world.counts();
        for (uint256 job = 1; job <= jobs; ++job) {
            (bool honest,,,, bool challenged) = _world.claims(job);
            JobStatus status = _world.getJob(job).status;
            vm.assertTrue(
                status == JobStatus.FINAL || status == JobStatus.REJECTED || status == JobStatus.EXPIRED, "every job ends"
            );
            if (honest) vm.assertTrue(status == JobStatus.FINAL, "an honest claim becomes final");
            if (challenged) vm.assertTrue(status == JobStatus.REJECTED, "one honest challenger stops a wrong claim");
        }
        vm.assertEq(_world.funds(), _world.burnt(), "everything is paid out but for what is burnt");
        vm.assertLe(1_000_000 ether, _world.wealth(_honestTrainer), "an honest trainer never ends up poorer");
        vm.assertLe(1_000_000 ether, _world.wealth(_honestAuditor), "an honest auditor never ends up poorer");
    }

    /// @notice The world itself is tested: one walk through it that ends in each verdict.
    function test_theWorld_reachesVerdictsTimeoutsAndVoidGames() public {
        // A sum, a store and an element.
        uint256[3] memory places = [uint256(3), 7, 2];
        uint256[3] memory levels = [uint256(5), 3, 4];
        for (uint256 i = 0; i < 3; ++i) {
            _world.postJob(0);
            _world.commitWrongly(i, Lie(3, places[i], 1, 1));
            _world.challengeHonestly(i);
            _world.challengeUnreliably(i, Lie(3, 4, 1, 0));
            _world.playOn(2 * i, 15);
            _world.playOn(2 * i, 15);
            uint256 game = 2 * i + 1;
            vm.assertTrue(_world.getGame(game).outcome == Outcome.CHALLENGER_WON, "a verdict");
            vm.assertTrue(_world.getGame(game).reason == Reason.PROOF, "a computed one");
            vm.assertEq(_world.getGame(game).levels.length, levels[i], "as deep as it takes");
            vm.assertTrue(_world.getGame(game + 1).outcome == Outcome.VOID, "a void game");
        }
        _world.postJob(4);
        _world.commitHonestly(3);
        _world.challengeUnreliably(3, Lie(3, 2, 1, 0));
        for (uint256 kind = 0; kind < _world.ILLEGAL_KINDS(); ++kind) {
            _world.cheatSomehow(6, kind, keccak256("junk"));
        }
        vm.assertEq(_world.illegalAttempts(), 16, "illegal attempts");
        _world.wait_(6 hours - 8);
        _world.wait_(6 hours - 8);
        _world.claimTimeout(6);
        vm.assertTrue(_world.getGame(7).outcome == Outcome.TRAINER_WON, "a timeout");
        noRule_isBroken();
        afterInvariant();
    }
}
