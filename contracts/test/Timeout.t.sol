// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {ElementProof, LeafOpening, NextRoot} from "../src/game/Moves.sol";
import {Duration, Timestamp} from "../src/Time.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Finding} from "../src/adjudication/IAdjudicator.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";

contract TimeoutTest is Players {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        // 20 checkpoints: the first move does not find a leaf.
        _honest = honestRun(40, 2);
        _wrong = Runs.with(40, 2, Lie(8, Toy.SUM, 1, 1));
    }

    function remaining(GameId id, Side side) private view returns (uint256) {
        return Duration.unwrap(game.getGame(id).clocks[uint8(side)].remaining);
    }

    function running(GameId id, Side side) private view returns (bool) {
        return Timestamp.unwrap(game.getGame(id).deadlines[uint8(side)]) != 0;
    }

    // ------------------------------------------------------------------------------------------------------------- during a search

    function test_inASearch_oneClockRuns_theMoversOwn() public {
        (, GameId id) = dispute(_wrong, _honest);
        vm.assertTrue(running(id, Side.CHALLENGER) && !running(id, Side.TRAINER), "the challenger moves first");
        later(100);
        step(id, _wrong, _honest);
        vm.assertTrue(!running(id, Side.CHALLENGER) && running(id, Side.TRAINER), "then the trainer");
        vm.assertEq(remaining(id, Side.CHALLENGER), ALLOWANCE - 100, "the challenger's own delay");
        vm.assertEq(remaining(id, Side.TRAINER), ALLOWANCE, "the trainer has not been waited for yet");
    }

    function test_aMoveAtTheDeadline_isInTime() public {
        (, GameId id) = dispute(_wrong, _honest);
        later(ALLOWANCE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, START + ALLOWANCE, START + ALLOWANCE));
        game.claimTimeout(id);
        step(id, _wrong, _honest);
        vm.assertEq(remaining(id, Side.CHALLENGER), 0, "used up to the last second");
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function test_aMoveAfterTheDeadline_reverts_evenBeforeAnyoneClaims() public {
        (, GameId id) = dispute(_wrong, _honest);
        later(ALLOWANCE + 1);
        Descent memory move = nextBisection(id, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.ClockRanOut.selector, id, Side.CHALLENGER, START + ALLOWANCE));
        game.bisect(id, move);
    }

    function testFuzz_aTimeoutClaim_mayComeAtAnyTimeAfter_andTheOneWhoWaitedWins(uint256 late, uint256 moves) public {
        late = bound(late, 1, 3650 days);
        moves = bound(moves, 0, 1);
        (JobId job, GameId id) = dispute(_wrong, _honest);
        // The waiter has spent its own clock to the last second before.
        if (moves == 1) {
            later(ALLOWANCE);
            step(id, _wrong, _honest);
        }
        later(ALLOWANCE + late);
        game.claimTimeout(id);
        assertOver(id, moves == 1 ? Outcome.CHALLENGER_WON : Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertJob(job, moves == 1 ? JobStatus.REJECTED : JobStatus.CLAIMED);
        if (moves == 1) assertCredits(REWARD + TRAINER_BOND / 4, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
        else assertCredits(CHALLENGER_BOND / 4, CHALLENGER_BOND / 2, 0);
    }

    function test_theClocksOfTwoGames_doNotTouchEachOther() public {
        (JobId job, GameId id) = dispute(_wrong, _honest);
        later(1000);
        GameId other = challengeRun(job, stranger, _honest);
        later(ALLOWANCE - 500);
        step(other, _wrong, _honest);
        vm.assertEq(remaining(other, Side.CHALLENGER), 500, "counted from its own challenge");
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertPhase(other, Phase.BISECTION);
    }

    // ------------------------------------------------------------------------------------------------------------ during an opening

    function test_inAnOpening_theClockOfEachSideThatHasNotSpoken_runs() public {
        (, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        vm.assertTrue(running(id, Side.TRAINER) && running(id, Side.CHALLENGER), "both owe an opening");
        later(70);
        open(id, Side.CHALLENGER, _honest);
        vm.assertTrue(running(id, Side.TRAINER) && !running(id, Side.CHALLENGER), "only the trainer owes one");
        later(30);
        open(id, Side.TRAINER, _wrong);
        vm.assertEq(remaining(id, Side.CHALLENGER), ALLOWANCE - 70, "the challenger's own delay");
        vm.assertEq(remaining(id, Side.TRAINER), ALLOWANCE - 100, "the trainer's own delay");
    }

    /// @dev Every level in which both sides have to open something.
    function openingLevel(uint256 seed) private pure returns (Level) {
        return [Level.CHECKPOINT, Level.STEP, Level.OPERATOR, Level.PARTIAL][seed % 4];
    }

    function testFuzz_whoOpensInTime_winsAgainstWhoDoesNot_howeverLateTheClaim(bool trainerOpens, uint256 level, uint256 late)
        public
    {
        late = bound(late, 1, 3650 days);
        (, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, openingLevel(level), _wrong, _honest);
        open(id, trainerOpens ? Side.TRAINER : Side.CHALLENGER, trainerOpens ? _wrong : _honest);
        later(ALLOWANCE + late);
        game.claimTimeout(id);
        assertOver(id, trainerOpens ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function testFuzz_whenBothLetTheirTimeRunOut_theClaimIsRejected_andBothBondsAreGone(uint256 level, uint256 late) public {
        late = bound(late, 1, 3650 days);
        (JobId job, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, openingLevel(level), _wrong, _honest);
        later(ALLOWANCE + late);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD + (TRAINER_BOND + CHALLENGER_BOND) / 2, 0, 0);
    }

    // ------------------------------------------------------------------------------------------------------- posting and proving

    function testFuzz_aTrainerThatDoesNotPostItsChunk_loses(uint256 late) public {
        (, GameId id) = dispute(_wrong, _honest);
        playTo(id, Level.CHUNK, Phase.POSTING, _wrong, _honest);
        vm.assertTrue(running(id, Side.TRAINER) && !running(id, Side.CHALLENGER), "the trainer owes its bytes");
        later(ALLOWANCE + bound(late, 1, 3650 days));
        bytes memory chunk = chunkOf(game.getGame(id), _wrong);
        vm.expectRevert(
            abi.encodeWithSelector(
                IVerificationGame.ClockRanOut.selector, id, Side.TRAINER, game.getGame(id).deadlines[uint8(Side.TRAINER)]
            )
        );
        game.postChunk(id, chunk);
        game.claimTimeout(id);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function testFuzz_aChallengerThatProvesNothing_loses(uint256 place, bool atPartial, uint256 late) public {
        place = bound(place, 0, Toy.OPERATORS + Toy.SLOTS - 1);
        if (atPartial) place = Toy.SUM;
        Run memory wrong = Runs.with(40, 2, Lie(9, place, 1, 2));
        (JobId job, GameId id) = dispute(wrong, _honest);
        playTo(id, place < Toy.OPERATORS ? atPartial ? Level.PARTIAL : Level.CHUNK : Level.OPERATOR, Phase.PROVING, wrong, _honest);
        vm.assertTrue(!running(id, Side.TRAINER) && running(id, Side.CHALLENGER), "the challenger owes a proof");
        later(ALLOWANCE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), time()));
        game.claimTimeout(id);
        later(bound(late, 1, 3650 days));
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertJob(job, JobStatus.CLAIMED);
    }

    function test_aProofAtTheDeadline_isInTime_andNoLater() public {
        for (uint256 place = 0; place < Toy.OPERATORS + Toy.SLOTS; ++place) {
            Run memory wrong = Runs.with(40, 2, Lie(9, place, 1, 2));
            for (uint256 late = 0; late < 2; ++late) {
                (, GameId id) = dispute(wrong, _honest);
                while (game.getGame(id).phase != Phase.PROVING) step(id, wrong, _honest);
                proveAfter(id, late);
                if (place != Toy.SUM || late == 1) continue;
                // That has only named the sum; its segment is proven later.
                (, id) = dispute(wrong, _honest);
                playTo(id, Level.PARTIAL, Phase.PROVING, wrong, _honest);
                proveAfter(id, 0);
                (, id) = dispute(wrong, _honest);
                playTo(id, Level.PARTIAL, Phase.PROVING, wrong, _honest);
                proveAfter(id, 1);
            }
        }
    }

    function proveAfter(GameId id, uint256 late) private {
        later(ALLOWANCE + late);
        (bool ok, bytes memory why) = address(this).call(abi.encodeCall(this.proveExternally, (id)));
        vm.assertEq(ok ? 0 : 1, late, "in time");
        if (!ok) vm.assertEq(bytes32(bytes4(why)), bytes32(IVerificationGame.ClockRanOut.selector), "the clock");
    }

    function proveExternally(GameId id) external {
        vm.assertEq(msg.sender, address(this), "a test's own call");
        prove(id, _honest);
    }

    function test_aSideThatStillHasTime_isWaitedFor_afterTheOtherRanOut() public {
        (, GameId id) = dispute(_wrong, _honest);
        later(1000); // the challenger's; the trainer keeps more time
        step(id, _wrong, _honest);
        step(id, _wrong, _honest);
        assertPhase(id, Phase.OPENING);
        uint256 found = time();
        later(ALLOWANCE - 500);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), found + ALLOWANCE));
        game.claimTimeout(id);
        // The challenger is out and cannot open any more.
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, _honest), nextRoot(shown, _honest));
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.ClockRanOut.selector, id, Side.CHALLENGER, found + ALLOWANCE - 1000)
        );
        vm.prank(auditor);
        game.openLevel(id, Side.CHALLENGER, leaf, next);
        // The trainer opens in time and wins, although its claim came last.
        open(id, Side.TRAINER, _wrong);
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
    }

    // -------------------------------------------------------------------------------------------------------------- the referee

    function toReferee() private returns (JobId job, GameId id) {
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        _wrong = wrongRun(40, 2, 8, "wrong");
        (job, id) = dispute(_wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        ElementProof memory proof = elementProof(game.getGame(id), _honest, posted[id]);
        vm.prank(auditor);
        game.proveElement(id, proof);
        assertPhase(id, Phase.REFEREE);
    }

    function test_whileTheRefereeThinks_noPartysClockRuns() public {
        (, GameId id) = toReferee();
        vm.assertTrue(!running(id, Side.TRAINER) && !running(id, Side.CHALLENGER), "the referee's time is its own");
        vm.assertEq(Timestamp.unwrap(game.getGame(id).refereeDeadline), time() + REFEREE_ALLOWANCE, "the referee's deadline");
    }

    function test_aVerdictAtTheDeadline_isInTime() public {
        (, GameId id) = toReferee();
        later(REFEREE_ALLOWANCE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), time()));
        game.claimTimeout(id);
        adjudicate(id, Toy.float(19));
        assertOver(id, Outcome.CHALLENGER_WON, Reason.VERDICT);
    }

    function test_aVerdictAfterTheDeadline_reverts() public {
        (, GameId id) = toReferee();
        uint256 deadline = time() + REFEREE_ALLOWANCE;
        later(REFEREE_ALLOWANCE + 1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, deadline + 1, deadline));
        adjudicate(id, 0);
    }

    function testFuzz_whenTheRefereeIsSilent_theClaimIsRejected_andBothBondsReturn(uint256 late) public {
        (JobId job, GameId id) = toReferee();
        later(REFEREE_ALLOWANCE + bound(late, 1, 3650 days));
        game.claimTimeout(id);
        assertOver(id, Outcome.UNDECIDED, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD, TRAINER_BOND, CHALLENGER_BOND);
    }

    function test_aWholeDispute_endsWithinBothAllowancesAndTheReferees() public {
        (, GameId id) = dispute(_wrong, _honest);
        // Each side waits at every move, as long as that leaves it time for all others.
        while (game.getGame(id).phase != Phase.OVER) {
            later(ALLOWANCE / 14);
            vm.assertTrue(step(id, _wrong, _honest), "a move");
        }
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        vm.assertLe(time(), START + 2 * ALLOWANCE, "the longest that a game can last without a referee");
        vm.assertGt(time(), START + ALLOWANCE, "both sides' clocks were used");
    }
}
