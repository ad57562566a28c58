// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Children, Side} from "../src/Bisection.sol";
import {
    GameId,
    GameView,
    IVerificationGame,
    JobId,
    JobStatus,
    LeafOpening,
    NextRoot,
    Outcome,
    Phase,
    Reason
} from "../src/IVerificationGame.sol";
import {Level} from "../src/Level.sol";
import {Duration, Timestamp} from "../src/Time.sol";
import {GameTest, Run} from "./support/GameTest.sol";

contract TimeoutTest is GameTest {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(20, 5);
        _wrong = wrongRun(20, 5, 8, "wrong");
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
        (Children memory opened, Children memory next) = nextBisection(game.getGame(id), _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.ClockRanOut.selector, id, Side.CHALLENGER, START + ALLOWANCE));
        game.bisect(id, opened, next);
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
        if (moves == 1) assertCredits(REWARD + TRAINER_BOND / 2, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
        else assertCredits(CHALLENGER_BOND / 2, CHALLENGER_BOND / 2, 0);
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

    function testFuzz_whoOpensInTime_winsAgainstWhoDoesNot_howeverLateTheClaim(bool trainerOpens, bool atStep, uint256 late)
        public
    {
        late = bound(late, 1, 3650 days);
        (, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, atStep ? Level.STEP : Level.CHECKPOINT, _wrong, _honest);
        open(id, trainerOpens ? Side.TRAINER : Side.CHALLENGER, trainerOpens ? _wrong : _honest);
        later(ALLOWANCE + late);
        game.claimTimeout(id);
        assertOver(id, trainerOpens ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function testFuzz_whenBothLetTheirTimeRunOut_theClaimIsRejected_andBothBondsAreGone(bool atStep, uint256 late) public {
        late = bound(late, 1, 3650 days);
        (JobId job, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, atStep ? Level.STEP : Level.CHECKPOINT, _wrong, _honest);
        later(ALLOWANCE + late);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD + TRAINER_BOND + CHALLENGER_BOND, 0, 0);
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
        (job, id) = dispute(_wrong, _honest);
        play(id, _wrong, _honest);
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
        adjudicate(id, _honest.states[8]);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.VERDICT);
    }

    function test_aVerdictAfterTheDeadline_reverts() public {
        (, GameId id) = toReferee();
        uint256 deadline = time() + REFEREE_ALLOWANCE;
        later(REFEREE_ALLOWANCE + 1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, deadline + 1, deadline));
        adjudicate(id, bytes32(0));
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
        // Each side always waits until the last second that still leaves it one second for every later move.
        while (true) {
            GameView memory shown = game.getGame(id);
            if (shown.phase == Phase.REFEREE) break;
            later(ALLOWANCE / 20);
            step(id, _wrong, _honest);
        }
        later(REFEREE_ALLOWANCE);
        adjudicate(id, _honest.states[8]);
        vm.assertLe(time(), START + 2 * ALLOWANCE + REFEREE_ALLOWANCE, "the longest that a game can last");
    }
}
