// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice The levels of a dispute, from the coarsest tree to the finest. `Trace` and `Transitions` say how many leaves each has.
enum Level {
    /// Leaves are the state roots after steps k, 2k, ..., T. The roots are the claim itself and the challenge.
    CHECKPOINT,
    /// Leaves are the k state roots inside the disputed interval.
    STEP,
    /// Leaves are the tensor roots of all that the disputed step has computed, and of the state after it: `Trace`.
    OPERATOR,
    /// Leaves are the chunks of the disputed operator's output.
    CHUNK,
    /// Leaves are the running results of the disputed element, which is a sum of several segments of terms.
    PARTIAL
}
