// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../src/game/Bisection.sol";
import {Clock, ClockPair, Clocks} from "../src/game/Clock.sol";
import {Meter} from "../src/game/Meter.sol";
import {Duration, Timestamp} from "../src/Time.sol";

/// @notice Nobody but the owner of a clock can use it up.
contract ClockProof {
    using Clocks for Clock;
    using Clocks for ClockPair;
    using Meter for ClockPair;

    function check_aMoveCostsExactlyItsOwnDelay(uint64 remaining, uint64 started, uint64 current) external pure {
        if (started == 0 || current < started || uint256(started) + remaining > type(uint64).max) return;
        Clock memory standing = Clock({remaining: Duration.wrap(remaining), startedAt: Timestamp.wrap(0)});
        // A standing clock is never out, whenever somebody asks.
        assert(!standing.isOut(Timestamp.wrap(current)));
        Clock memory running = standing.start(Timestamp.wrap(started));
        // The instant of the deadline is the owner's.
        assert(running.isOut(Timestamp.wrap(current)) == (current - started > remaining));
        if (running.isOut(Timestamp.wrap(current))) return;
        Clock memory stopped = running.stop(Timestamp.wrap(current));
        assert(Duration.unwrap(stopped.remaining) == remaining - (current - started));
        assert(!stopped.isRunning());
    }

    function check_settingOneSidesClock_leavesTheOthers(uint256 word, bool trainers, uint32 remaining, uint40 started)
        external
        pure
    {
        ClockPair pair = ClockPair.wrap(word);
        (Side mine, Side theirs) = trainers ? (Side.TRAINER, Side.CHALLENGER) : (Side.CHALLENGER, Side.TRAINER);
        Clock memory clock = Clock({remaining: Duration.wrap(remaining), startedAt: Timestamp.wrap(started)});
        ClockPair after_ = pair.set(mine, clock);
        (Clock memory kept, Clock memory set, Clock memory before) = (after_.get(theirs), after_.get(mine), pair.get(theirs));
        assert(Duration.unwrap(kept.remaining) == Duration.unwrap(before.remaining));
        assert(Timestamp.unwrap(kept.startedAt) == Timestamp.unwrap(before.startedAt));
        // The meters, which stand above the clocks, keep what they show.
        assert(after_.read(mine) == pair.read(mine) && after_.read(theirs) == pair.read(theirs));
        assert(Duration.unwrap(set.remaining) == remaining);
        assert(Timestamp.unwrap(set.startedAt) == started);
    }
}
