// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32, Rounding} from "./Rounding.sol";

/// @notice A number that is known up to an error: it lies in (number +- margin) * 2^exponent.
struct Interval {
    int256 number;
    uint256 margin;
    int256 exponent;
}

/// @title Numbers with a known error
/// @notice The numbers in which elementary functions are computed, and the decision of their rounding.
library FixedPoint {
    /// @notice Fraction bits of a unit, 2^-124.
    uint256 internal constant BITS = 124;
    uint256 internal constant ONE = 1 << BITS;
    /// @notice Further bits of ln 2, since it is multiplied by an exponent.
    uint256 internal constant GUARD = 16;
    /// @notice floor(ln 2 * 2^140).
    uint256 internal constant LN2 = 0xB17217F7D1CF79ABC9E3B39803F2F6AF40F;

    /// @notice The pattern that the whole interval rounds to in a format (`Rounding.nearestOf`; every zero is +0), and whether there is one.
    /// @dev Rounding is monotone, so the interval's ends decide for everything between.
    function round(Interval memory self, uint256 bits) internal pure returns (uint32 pattern, bool decided) {
        int256 margin = int256(self.margin);
        pattern = roundOne(self.number - margin, self.exponent, bits);
        decided = pattern == roundOne(self.number + margin, self.exponent, bits);
    }

    function roundOne(int256 number, int256 exponent, uint256 bits) private pure returns (uint32 pattern) {
        unchecked {
            (uint256 sign, uint256 magnitude) = number < 0 ? (Rounding.SIGN, uint256(-number)) : (0, uint256(number));
            pattern = Float32.unwrap(Rounding.nearestOf(sign, magnitude, exponent, bits));
            if (pattern == Rounding.SIGN) pattern = 0;
        }
    }

    /// @notice mantissa * 2^exponent in units of 2^-bits, rounded down. Below 2^255 if that is.
    function fromScaled(uint256 mantissa, int256 exponent, uint256 bits) internal pure returns (uint256) {
        unchecked {
            int256 shift = exponent + int256(bits);
            // Shifting right by 256 or more gives 0 in the EVM.
            return shift >= 0 ? mantissa << uint256(shift) : mantissa >> uint256(-shift);
        }
    }
}
