// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {TrainingSpec} from "./TrainingSpec.sol";

/// @notice The levels of a dispute, from the coarsest tree to the finest. Deeper ones are appended here and described in `Levels`.
enum Level {
    /// Leaves are the state roots after steps k, 2k, ..., T. The roots are the claim itself and the challenge.
    CHECKPOINT,
    /// Leaves are the k state roots inside the disputed interval.
    STEP
}

/// @title What tells one level from another
/// @notice Bisection itself is the same at every level; a level only says how many leaves its tree has and what comes below it.
library Levels {
    /// @notice Leaves of a tree at this level. The spec binds it, no party chooses it.
    function leafCount(Level level, TrainingSpec storage spec) internal view returns (uint64) {
        if (level == Level.CHECKPOINT) return spec.steps / spec.interval;
        return spec.interval;
    }

    /// @notice Below the last level there is no tree: what is left is adjudicated.
    function isLast(Level level) internal pure returns (bool) {
        return level == type(Level).max;
    }

    /// @dev Reverts (panic 0x21) at the last level.
    function next(Level level) internal pure returns (Level) {
        return Level(uint8(level) + 1);
    }
}
