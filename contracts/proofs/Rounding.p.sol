// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Float32, Rounding} from "../src/arithmetic/Rounding.sol";

/// @notice The rounding of a number is the nearest one of the format, an even one of two.
contract RoundingProof {
    /// @dev Every number of 40 bits, at exponents around the smallest number and far from it; `which` makes a path of each.
    function check_noNeighbourIsNearer(uint40 magnitude, uint8 which) external pure {
        uint8[6] memory ups = [0, 20, 31, 32, 33, 100];
        uint8[3] memory formats = [23, 26, 32];
        for (uint256 i = 0; i < 18; ++i) {
            if (which == i) checkNearest(magnitude, ups[i / 3], formats[i % 3]);
        }
    }

    /// @dev Units of 2^-181, in which all numbers of the range are integers.
    function checkNearest(uint40 magnitude, uint256 up, uint256 bits) private pure {
        uint256 pattern = Float32.unwrap(Rounding.nearestOf(0, magnitude, int256(up) - 181, bits));
        uint256 step = 1 << (32 - bits);
        assert(pattern % step == 0);
        uint256 exact = uint256(magnitude) << up;
        uint256 found = value(pattern);
        bool odd = (pattern / step) % 2 == 1;
        if (exact >= found) {
            uint256 above = value(pattern + step);
            assert(odd ? exact == found || exact - found < above - exact : exact - found <= above - exact);
        } else {
            uint256 below = value(pattern - step);
            assert(odd ? found - exact < exact - below : found - exact <= exact - below);
        }
    }

    /// @dev IEEE 754-2019, 3.4, in units of 2^-181.
    function value(uint256 pattern) private pure returns (uint256) {
        uint256 exponent = pattern >> 23;
        uint256 fraction = pattern & 0x7FFFFF;
        return exponent == 0 ? fraction << 32 : (fraction | 1 << 23) << (exponent + 31);
    }
}
