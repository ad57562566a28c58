// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {AuditStatus, JobStatus, Outcome, Reason} from "../src/Types.sol";
import {Merkle} from "../src/Merkle.sol";
import {AuditView, GameView, JobView} from "../src/Views.sol";
import {Lie} from "./support/Runs.sol";
import {Test} from "./support/Test.sol";
import {MarketWorld} from "./support/MarketWorld.sol";
import {World} from "./support/World.sol";

contract InvariantTest is Test {
    MarketWorld private _world;
    address private _honestTrainer;
    address private _honestAuditor;

    function setUp() public {
        _world = new MarketWorld();
        _world.setUp();
        (_honestTrainer, _honestAuditor) = _world.honestParties();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_world);
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[] memory selectors = new bytes4[](34);
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
        selectors[18] = MarketWorld.postMarketJob.selector;
        selectors[19] = MarketWorld.commitRightly.selector;
        selectors[20] = MarketWorld.sealHonestly.selector;
        selectors[21] = MarketWorld.sealUnreliably.selector;
        selectors[22] = MarketWorld.openUnreliably.selector;
        selectors[23] = MarketWorld.attestHonestly.selector;
        selectors[24] = MarketWorld.attestUnreliably.selector;
        selectors[25] = MarketWorld.sealAuditHonestly.selector;
        selectors[26] = MarketWorld.sealAuditUnreliably.selector;
        selectors[27] = MarketWorld.openAuditUnreliably.selector;
        selectors[28] = MarketWorld.appealUnreliably.selector;
        selectors[29] = MarketWorld.startGame.selector;
        selectors[30] = MarketWorld.collect.selector;
        selectors[31] = MarketWorld.cheatAtMarket.selector;
        selectors[32] = MarketWorld.reserveHonestly.selector;
        selectors[33] = MarketWorld.reserveUnreliably.selector;
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
            // In blind jobs whoever wants to starts them, and nobody before all audits are open.
            bool blind = !shown.terms.openingWindow.isZero();
            if (blind && _world.instantNow() <= shown.audits.auditOpeningDeadline) {
                vm.assertEq(shown.liveGames, 0, "no game before all audits are open");
            }
            if (shown.queuedGames > 0 && !blind) vm.assertEq(shown.liveGames, shown.terms.concurrentGames, "no place stays empty");
        }
    }

    /// @notice Solvency, to the wei: what lies in the contract is what it owes.
    function theBalanceIsExactlyEscrowsAndCredits() private view {
        (uint256 jobs, uint256 games) = _world.counts();
        uint256 owed = _world.credits() + _world.burnt();
        for (uint256 job = 1; job <= jobs; ++job) {
            JobView memory shown = _world.getJob(job);
            bool isOver = shown.status > JobStatus.APPEALABLE;
            if (!isOver) owed += uint256(shown.terms.reward) + shown.terms.auditFee;
            if (!isOver && shown.status != JobStatus.OPEN) owed += shown.terms.trainerBond;
            AuditView[] memory audits = _world.auditsIn(job);
            for (uint256 i = 0; i < audits.length; ++i) {
                owed += heldBy(shown, audits, i);
            }
        }
        for (uint256 id = 1; id <= games; ++id) {
            GameView memory shown = _world.getGame(id);
            if (shown.bondHeld) owed += shown.challengerBond;
        }
        vm.assertEq(_world.funds(), owed, "balance");
    }

    /// @dev What lies in the contract for the audit at a place: its bond, and its share once the job is over.
    function heldBy(JobView memory job, AuditView[] memory audits, uint256 place) private pure returns (uint256) {
        AuditStatus status = audits[place].status;
        if (status == AuditStatus.ATTESTED && job.audits.lost) return 0;
        if (status != AuditStatus.SEALED && status != AuditStatus.ATTESTED) return 0;
        return job.terms.attestationBond + (job.status > JobStatus.APPEALABLE ? shareOf(job, audits, place) : 0);
    }

    /// @dev The rule, counted out: what the audit at a place has of the fee of a job that is over and whose verdict was not upheld.
    function shareOf(JobView memory job, AuditView[] memory audits, uint256 place) private pure returns (uint256) {
        bool neverOpened = job.status == JobStatus.EXPIRED;
        if (!neverOpened && bytes(audits[place].modelCid).length == 0) return 0;
        uint256 before = 0;
        for (uint256 i = 0; i < place; ++i) {
            if (neverOpened || bytes(audits[i].modelCid).length > 0) ++before;
        }
        return before < job.terms.attestationsNeeded ? job.terms.auditFee / job.terms.attestationsNeeded : 0;
    }

    /// @dev What the honest auditor was sure of when it got its places: a share for each of the first ones, however its job has ended.
    function promised() private view returns (uint256 sum) {
        (uint256 jobs,) = _world.counts();
        for (uint256 job = 1; job <= jobs; ++job) {
            JobView memory shown = _world.getJob(job);
            AuditView[] memory audits = _world.auditsIn(job);
            for (uint256 i = 0; i < audits.length && i < shown.terms.attestationsNeeded; ++i) {
                bool mine = audits[i].auditor == _honestAuditor;
                bool challenged = audits[i].status == AuditStatus.CHALLENGED;
                if (mine && !challenged) sum += shown.terms.auditFee / shown.terms.attestationsNeeded;
            }
        }
    }

    function anHonestTimelyParty_neverLoses() private view {
        (uint256 jobs, uint256 games) = _world.counts();
        for (uint256 job = 1; job <= jobs; ++job) {
            (bool honest,,,, bool challenged) = _world.claims(job);
            JobStatus status = _world.getJob(job).status;
            if (honest) {
                bool stands = status != JobStatus.REJECTED && status != JobStatus.APPEALABLE && status != JobStatus.EXPIRED;
                vm.assertTrue(stands, "an honest claim is never rejected");
            }
            if (challenged) {
                bool stopped = status != JobStatus.FINAL && status != JobStatus.LAPSED;
                vm.assertTrue(stopped, "a wrong claim with one honest challenger is never final");
            }
        }
        for (uint256 id = 1; id <= games; ++id) {
            (uint256 job, bool honest,,) = _world.challenges(id);
            Outcome outcome = _world.getGame(id).outcome;
            if (honest) {
                vm.assertTrue(
                    outcome == Outcome.NONE || outcome == Outcome.CHALLENGER_WON || outcome == Outcome.VOID, "an honest challenger"
                );
            }
            if (_world.defendedHonestly(id)) {
                vm.assertTrue(
                    outcome == Outcome.NONE || outcome == Outcome.TRAINER_WON || outcome == Outcome.VOID, "an honest appellant"
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
            vm.assertTrue(status > JobStatus.APPEALABLE, "every job ends");
            JobView memory shown = _world.getJob(job);
            bool lapses = status == JobStatus.LAPSED && shown.attestations < shown.terms.attestationsNeeded;
            if (honest) {
                vm.assertTrue(status == JobStatus.FINAL || lapses, "an honest claim becomes final if enough attest to it");
            }
            if (challenged) vm.assertTrue(status == JobStatus.REJECTED, "one honest challenger stops a wrong claim");
        }
        vm.assertEq(_world.funds(), _world.burnt(), "everything is paid out but for what is burnt");
        vm.assertLe(1_000_000 ether, _world.wealth(_honestTrainer), "an honest trainer never ends up poorer");
        vm.assertLe(1_000_000 ether + promised(), _world.wealth(_honestAuditor), "an honest auditor has what its places promised");
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

    function outcomeOf(uint256 game) private view returns (Outcome) {
        return _world.getGame(game).outcome;
    }

    function letTimeRunOut() private {
        _world.wait_(6 hours - 8);
        _world.wait_(6 hours - 8);
    }

    /// @notice The market is tested as well: an honest auditor defends what it attested to, and what it has won.
    function test_theMarket_reachesAppealsThatAreWon_andLost() public {
        _world.postMarketJob(0, false);
        _world.commitRightly(0);
        _world.attestHonestly(0);
        _world.attestUnreliably(0, false);
        _world.challengeUnreliably(0, Lie(3, 2, 1, 0));
        // It finds the leaf and opens it.
        _world.move(0, false);
        _world.move(0, false);
        letTimeRunOut();
        _world.claimTimeout(0);
        vm.assertTrue(outcomeOf(1) == Outcome.CHALLENGER_WON, "a right claim is lost by silence");
        vm.assertTrue(_world.getJob(1).status == JobStatus.APPEALABLE, "not paid yet");
        _world.appealUnreliably(0, false);
        letTimeRunOut();
        vm.assertTrue(_world.defendedHonestly(3) && !_world.defendedHonestly(2), "the auditor appeals as well");
        _world.claimTimeout(2);
        vm.assertTrue(outcomeOf(3) == Outcome.TRAINER_WON, "its appeal is won");
        vm.assertTrue(_world.getJob(1).status == JobStatus.REJECTED && !_world.getJob(1).audits.lost, "overturned");

        _world.postMarketJob(0, false);
        _world.commitWrongly(1, Lie(3, 2, 1, 0));
        _world.attestHonestly(1);
        vm.assertEq(_world.auditsIn(2).length, 0, "an honest auditor attests to nothing that is wrong");
        _world.attestUnreliably(1, true);
        _world.attestUnreliably(1, false);
        _world.challengeHonestly(1);
        _world.playOn(3, 15);
        _world.playOn(3, 15);
        vm.assertTrue(outcomeOf(4) == Outcome.CHALLENGER_WON, "a wrong claim is proven wrong");
        _world.appealUnreliably(1, true);
        _world.playOn(4, 15);
        _world.playOn(4, 15);
        vm.assertTrue(_world.getGame(5).isAppeal && outcomeOf(5) == Outcome.CHALLENGER_WON, "and again in the appeal");
        for (uint256 kind = 0; kind < _world.ILLEGAL_AT_MARKET(); ++kind) {
            for (uint256 job = 0; job < 2; ++job) {
                _world.cheatAtMarket(job, kind, keccak256("junk"));
            }
        }
        noRule_isBroken();
        anHonestTimelyParty_neverLoses();
        theBalanceIsExactlyEscrowsAndCredits();
        afterInvariant();
        vm.assertTrue(_world.getJob(2).audits.lost, "the verdict is upheld");
    }

    function test_theMarket_reachesBlindAttestationsChallengesAndLostSeals() public {
        _world.postMarketJob(0, true);
        _world.sealHonestly(0);
        _world.postMarketJob(0, true);
        _world.sealUnreliably(1, Lie(3, 2, 1, 0));
        _world.postMarketJob(0, true);
        _world.sealUnreliably(2, Lie(6, 0, 0, 0));
        for (uint256 job = 0; job < 3; ++job) {
            _world.sealAuditHonestly(job);
            // The trainer's root, which somebody leaked, and one that is nobody's.
            _world.sealAuditUnreliably(job, false, true, Lie(0, 0, 0, 0));
            _world.sealAuditUnreliably(job, true, false, Lie(2, 2, 2, 0));
        }
        letTimeRunOut();
        _world.answerHonestly();
        _world.openUnreliably(1);
        vm.assertTrue(_world.getJob(3).status == JobStatus.SEALED, "one trainer does not open");
        _world.openAuditUnreliably(0, false);
        _world.openAuditUnreliably(1, true);
        theBalanceIsExactlyEscrowsAndCredits();
        letTimeRunOut();
        vm.assertEq(_world.getJob(1).attestations, 2, "the honest auditor and the lazy one");
        vm.assertTrue(_world.auditOf(2, _honestAuditor).status == AuditStatus.CHALLENGED, "the honest one found it wrong");
        for (uint256 kind = 0; kind < _world.ILLEGAL_AT_MARKET(); ++kind) {
            for (uint256 job = 0; job < 3; ++job) {
                _world.cheatAtMarket(job, kind, keccak256("junk"));
            }
        }
        noRule_isBroken();
        anHonestTimelyParty_neverLoses();
        theBalanceIsExactlyEscrowsAndCredits();
        afterInvariant();
        vm.assertTrue(_world.getJob(1).status == JobStatus.FINAL, "paid");
        vm.assertTrue(_world.getJob(2).status == JobStatus.REJECTED, "rejected");
        vm.assertTrue(_world.getJob(3).status == JobStatus.EXPIRED, "never opened");
        vm.assertGt(_world.burnt(), 0, "seals were lost");
    }
}
