// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice Seconds since the Unix epoch, as `block.timestamp` gives them. Zero stands for "never".
type Timestamp is uint64;

/// @notice A number of seconds.
type Duration is uint64;

using {isLater as >, isNotLater as <=} for Timestamp global;
using Time for Timestamp global;
using Time for Duration global;

function isLater(Timestamp a, Timestamp b) pure returns (bool) {
    return Timestamp.unwrap(a) > Timestamp.unwrap(b);
}

function isNotLater(Timestamp a, Timestamp b) pure returns (bool) {
    return Timestamp.unwrap(a) <= Timestamp.unwrap(b);
}

/// @title Instants and durations that cannot be mixed up
/// @notice The only place that reads `block.timestamp`; everything else takes the instant as an argument.
library Time {
    Timestamp internal constant NEVER = Timestamp.wrap(0);
    Duration internal constant NO_TIME = Duration.wrap(0);

    function now_() internal view returns (Timestamp) {
        return Timestamp.wrap(uint64(block.timestamp));
    }

    function add(Timestamp start, Duration length) internal pure returns (Timestamp) {
        return Timestamp.wrap(Timestamp.unwrap(start) + Duration.unwrap(length));
    }

    /// @dev Reverts by checked arithmetic if `start` is later than `end`.
    function since(Timestamp end, Timestamp start) internal pure returns (Duration) {
        return Duration.wrap(Timestamp.unwrap(end) - Timestamp.unwrap(start));
    }

    function isNever(Timestamp instant) internal pure returns (bool) {
        return Timestamp.unwrap(instant) == 0;
    }

    function isZero(Duration length) internal pure returns (bool) {
        return Duration.unwrap(length) == 0;
    }
}
