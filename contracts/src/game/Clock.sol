// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {Duration, Time, Timestamp} from "../Time.sol";

/// @notice One side's chess clock in one game.
struct Clock {
    /// Time left at the instant when the clock last started or stopped.
    Duration remaining;
    /// When it started to run; zero while it stands.
    Timestamp startedAt;
}

/// @notice Both sides' clocks, and above them the gas meters of both (`Meter`), in one word of storage, because every move writes it. From
///         the lowest bit on: the challenger's start (40 bits) and remaining time (32), the trainer's, then 112 bits of the meters.
type ClockPair is uint256;

/// @title Chess clocks
/// @notice Pure arithmetic: the instant is an argument. A clock belongs to one side, and nothing but that side's own delay uses it up.
/// @dev Deadlines are inclusive: a move at the deadline is in time, and a clock is out of time only strictly after it. A timeout claim reads the clock but never writes it, so it does not matter how late it comes.
library Clocks {
    uint256 private constant START_BITS = 40;
    /// @notice Bits of one clock in a pair.
    uint256 internal constant CLOCK_BITS = 72;

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
        uint256 bits = ClockPair.unwrap(pair) >> (side == Side.TRAINER ? CLOCK_BITS : 0);
        return Clock({
            // forge-lint: disable-next-line(unsafe-typecast)
            remaining: Duration.wrap(uint32(bits >> START_BITS)),
            // forge-lint: disable-next-line(unsafe-typecast)
            startedAt: Timestamp.wrap(uint40(bits))
        });
    }

    /// @notice The pair with another clock for one side.
    function set(ClockPair pair, Side side, Clock memory clock) internal pure returns (ClockPair) {
        uint256 shift = side == Side.TRAINER ? CLOCK_BITS : 0;
        // INVARIANT: an allowance is 14 days at most (`Limits`), and 40 bits of seconds last for 34,000 years.
        uint256 bits = (uint256(Duration.unwrap(clock.remaining)) << START_BITS) | Timestamp.unwrap(clock.startedAt);
        return ClockPair.wrap((ClockPair.unwrap(pair) & ~(((uint256(1) << CLOCK_BITS) - 1) << shift)) | (bits << shift));
    }
}
