// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {Duration, Time, Timestamp} from "./Time.sol";

/// @notice One side's chess clock in one game.
struct Clock {
    /// Time left at the instant when the clock last started or stopped.
    Duration remaining;
    /// When it started to run; zero while it stands.
    Timestamp startedAt;
}

/// @notice Both sides' clocks in one word of storage: remaining time and start of the trainer's, then of the challenger's, 64 bits each.
type ClockPair is uint256;

/// @title Chess clocks
/// @notice Pure arithmetic: the instant is an argument. A clock belongs to one side, and nothing but that side's own delay uses it up.
/// @dev The instant of the deadline itself belongs to the owner of the clock: a move at the deadline is in time, and a clock is out
///      of time only strictly after it. A timeout claim reads the clock but never writes it, so it does not matter how late it comes.
library Clocks {
    /// @notice The clock has to run for this.
    error ClockNotRunning();
    /// @notice The clock must not run already.
    error ClockAlreadyRunning();

    function create(Duration allowance) internal pure returns (Clock memory) {
        return Clock({remaining: allowance, startedAt: Time.NEVER});
    }

    function isRunning(Clock memory clock) internal pure returns (bool) {
        return !clock.startedAt.isNever();
    }

    /// @notice The last instant at which the owner may still move. Only a running clock has one.
    function deadline(Clock memory clock) internal pure returns (Timestamp) {
        if (!isRunning(clock)) revert ClockNotRunning();
        return clock.startedAt.add(clock.remaining);
    }

    /// @notice Whether the owner has let its time run out. A standing clock never runs out.
    function isOut(Clock memory clock, Timestamp current) internal pure returns (bool) {
        return isRunning(clock) && current > deadline(clock);
    }

    function start(Clock memory clock, Timestamp current) internal pure returns (Clock memory) {
        // INVARIANT: starting a running clock again would give back the time that it has used.
        if (isRunning(clock)) revert ClockAlreadyRunning();
        return Clock({remaining: clock.remaining, startedAt: current});
    }

    /// @dev Reverts by checked arithmetic if the clock is out; callers check `isOut` first to say it better.
    function stop(Clock memory clock, Timestamp current) internal pure returns (Clock memory) {
        if (!isRunning(clock)) revert ClockNotRunning();
        return Clock({remaining: deadline(clock).since(current), startedAt: Time.NEVER});
    }

    /// @notice One side's clock of the two.
    function get(ClockPair pair, Side side) internal pure returns (Clock memory) {
        uint256 bits = ClockPair.unwrap(pair) >> (side == Side.TRAINER ? 128 : 0);
        // forge-lint: disable-next-line(unsafe-typecast)
        return Clock({remaining: Duration.wrap(uint64(bits >> 64)), startedAt: Timestamp.wrap(uint64(bits))});
    }

    /// @notice The pair with another clock for one side.
    function set(ClockPair pair, Side side, Clock memory clock) internal pure returns (ClockPair) {
        uint256 shift = side == Side.TRAINER ? 128 : 0;
        uint256 bits = (uint256(Duration.unwrap(clock.remaining)) << 64) | Timestamp.unwrap(clock.startedAt);
        return ClockPair.wrap((ClockPair.unwrap(pair) & ~(uint256(type(uint128).max) << shift)) | (bits << shift));
    }
}
