// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {ClockPair, Clocks} from "./Clock.sol";

/// @title Gas meters of the two sides
/// @notice Pure arithmetic: gas and prices are arguments. Each side's meter counts the wei of its moves, by any sender, and stands in the
///         word of the clocks, which a move writes anyway.
/// @dev Only gas that was burnt while the contract ran is counted, because that is all that a contract can know: call data and a
///      transaction's own 21,000 cost nothing extra to a caller that is a contract. So the meter never shows more gas than
///      was paid for.
library Meter {
    /// @notice A meter counts in units of a million wei, in 56 bits, and stays at its end (72,000 ether).
    uint256 internal constant UNIT = 1e6;
    uint256 internal constant FULL = type(uint56).max;
    uint256 private constant METER_BITS = 56;

    /// @notice Wei that a move has cost.
    /// @param gas burnt by the move
    /// @param gasPrice of the transaction
    /// @param baseFee of the block
    function cost(uint256 gas, uint256 gasPrice, uint256 baseFee) internal pure returns (uint256) {
        // INVARIANT: the base fee is nobody's choice. A tip is, and may flow back to its payer, so it counts up to the base fee only.
        uint256 most = 2 * baseFee;
        return gas * (gasPrice < most ? gasPrice : most);
    }

    /// @notice Wei that a side's meter shows.
    function read(ClockPair pair, Side side) internal pure returns (uint256) {
        return ((ClockPair.unwrap(pair) >> shift(side)) & FULL) * UNIT;
    }

    /// @notice The pair after a move of a side that cost `spent` wei.
    function add(ClockPair pair, Side side, uint256 spent) internal pure returns (ClockPair) {
        uint256 word = ClockPair.unwrap(pair);
        uint256 units = ((word >> shift(side)) & FULL) + spent / UNIT;
        if (units > FULL) units = FULL;
        return ClockPair.wrap((word & ~(FULL << shift(side))) | (units << shift(side)));
    }

    function shift(Side side) private pure returns (uint256) {
        return 2 * Clocks.CLOCK_BITS + (side == Side.TRAINER ? METER_BITS : 0);
    }
}
