// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Clock, Clocks} from "../src/game/Clock.sol";
import {Duration, Time, Timestamp} from "../src/Time.sol";
import {Test} from "./support/Test.sol";

contract ClockHarness {
    using Clocks for Clock;

    function start(Clock memory clock, Timestamp current) external pure returns (Clock memory) {
        return clock.start(current);
    }

    function stop(Clock memory clock, Timestamp current) external pure returns (Clock memory) {
        return clock.stop(current);
    }

    function deadline(Clock memory clock) external pure returns (Timestamp) {
        return clock.deadline();
    }
}

contract ClockTest is Test {
    using Clocks for Clock;

    ClockHarness private _clocks;

    function setUp() public {
        _clocks = new ClockHarness();
    }

    function when(uint256 instant) private pure returns (Timestamp) {
        return Timestamp.wrap(uint64(instant));
    }

    function seconds_(uint256 length) private pure returns (Duration) {
        return Duration.wrap(uint64(length));
    }

    function testFuzz_aClockIsUsedUpByExactlyTheTimeThatItRuns(uint256 allowance, uint256 started, uint256 used) public pure {
        allowance = bound(allowance, 0, 365 days);
        started = bound(started, 1, 1 << 40);
        used = bound(used, 0, allowance);
        Clock memory clock = Clocks.create(seconds_(allowance)).start(when(started));
        vm.assertEq(Timestamp.unwrap(clock.deadline()), started + allowance, "deadline");
        clock = clock.stop(when(started + used));
        vm.assertEq(Duration.unwrap(clock.remaining), allowance - used, "remaining");
        vm.assertTrue(!clock.isRunning(), "stands");
    }

    function testFuzz_anyNumberOfMoves_usesUpTheSumOfTheirTimes(uint256[8] memory thinking, uint256[8] memory waiting) public pure {
        uint256 total = 0;
        uint256 instant = 1;
        Clock memory clock = Clocks.create(seconds_(1000));
        for (uint256 i = 0; i < 8; ++i) {
            instant += bound(waiting[i], 0, 1 << 30);
            clock = clock.start(when(instant));
            uint256 used = bound(thinking[i], 0, 125);
            (instant, total) = (instant + used, total + used);
            vm.assertTrue(!clock.isOut(when(instant)), "in time");
            clock = clock.stop(when(instant));
        }
        vm.assertEq(Duration.unwrap(clock.remaining), 1000 - total, "waiting costs nothing");
    }

    function testFuzz_theInstantOfTheDeadlineBelongsToTheOwner(uint256 allowance, uint256 started, uint256 late) public pure {
        allowance = bound(allowance, 0, 365 days);
        started = bound(started, 1, 1 << 40);
        late = bound(late, 1, 1 << 40);
        Clock memory clock = Clocks.create(seconds_(allowance)).start(when(started));
        vm.assertTrue(!clock.isOut(when(started + allowance)), "at the deadline: in time");
        vm.assertTrue(clock.isOut(when(started + allowance + late)), "after it: out");
    }

    function testFuzz_aStandingClockIsNeverOut(uint256 allowance, uint256 instant) public pure {
        Clock memory clock = Clocks.create(seconds_(bound(allowance, 0, 365 days)));
        vm.assertTrue(!clock.isOut(when(bound(instant, 0, type(uint64).max))), "a standing clock is never out");
    }

    function test_startingARunningClock_reverts() public {
        Clock memory clock = Clocks.create(seconds_(10)).start(when(1));
        vm.expectRevert(abi.encodeWithSelector(Clocks.ClockAlreadyRunning.selector));
        _clocks.start(clock, when(5));
    }

    function test_stoppingAStandingClock_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(Clocks.ClockNotRunning.selector));
        _clocks.stop(Clocks.create(seconds_(10)), when(5));
    }

    function test_stoppingAClockThatIsOut_reverts() public {
        Clock memory clock = Clocks.create(seconds_(10)).start(when(1));
        vm.expectRevert(abi.encodeWithSignature("Panic(uint256)", 0x11));
        _clocks.stop(clock, when(12));
    }

    function test_aStandingClockHasNoDeadline() public {
        vm.expectRevert(abi.encodeWithSelector(Clocks.ClockNotRunning.selector));
        _clocks.deadline(Clocks.create(seconds_(10)));
    }

    function test_now_isTheTimeOfTheBlock() public {
        vm.warp(1_900_000_000);
        vm.assertEq(Timestamp.unwrap(Time.now_()), 1_900_000_000, "block.timestamp");
    }
}
