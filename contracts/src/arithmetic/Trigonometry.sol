// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {FixedPoint, Interval} from "./FixedPoint.sol";

/// @title sin and cos
library Trigonometry {
    /// @dev floor(2 / pi * 2^264), 160 bits behind the point for arguments up to 2^128, as its upper bits and the 160 below.
    uint256 private constant TWO_OVER_PI_HIGH = 0xA2F9836E4E441529FC2757D1F5;
    uint256 private constant TWO_OVER_PI_LOW = (0x34DDC0DB << 128) | 0x6295993C439041FE5163ABDEBBC561B7;
    int256 private constant TWO_OVER_PI_EXPONENT = 104;
    /// @dev floor(pi / 2 * 2^124).
    uint256 private constant HALF_PI = 0x1921FB54442D18469898CC51701B839A;
    uint256 private constant ERROR = 128;
    uint256 private constant WINDOW = (1 << 162) - 1;
    uint256 private constant BEHIND_POINT = 160;

    /// @notice x = mantissa * 2^exponent is r plus `quadrant` quarter turns and whole turns, 0 <= r < pi / 2; r within 8 units.
    ///         -36 <= exponent <= 104.
    /// @dev Payne and Hanek 1983: whole turns are left out bit by bit. Of 2 / pi, only those 162 bits matter that give the quadrant and 160
    ///      bits behind the point. The cut table errs by 1 in the last of them, times the mantissa: 2^-136, far below a unit. The cut to
    ///      units, the product's shift and the error of HALF_PI make less than 2 + 1 + 1.
    function quarterTurns(uint256 mantissa, int256 exponent) internal pure returns (uint256 quadrant, uint256 r) {
        unchecked {
            uint256 shift = uint256(TWO_OVER_PI_EXPONENT - exponent);
            uint256 window = ((TWO_OVER_PI_HIGH << (160 - shift)) | (TWO_OVER_PI_LOW >> shift)) & WINDOW;
            uint256 product = (window * mantissa) & WINDOW;
            uint256 turned = (product & ((1 << BEHIND_POINT) - 1)) >> (BEHIND_POINT - FixedPoint.BITS);
            return (product >> BEHIND_POINT, (turned * HALF_PI) >> FixedPoint.BITS);
        }
    }

    /// @notice sin(r + quadrant * pi / 2).
    /// @dev The series of sine or cosine at r: 19 terms, whose divisions err by 1 unit each, times at most cosh(pi / 2) < 2.6 in what
    ///      follows, and r^2 by 1; r itself by 8: less than 19 * 3.6 + 8 + 2 < 128 units.
    function sine(uint256 quadrant, uint256 r) internal pure returns (Interval memory) {
        unchecked {
            uint256 square = (r * r) >> FixedPoint.BITS;
            bool odd = quadrant % 2 == 0;
            uint256 term = odd ? r : FixedPoint.ONE;
            int256 total = int256(term);
            bool minus = false;
            for (uint256 n = odd ? 3 : 2; term != 0; n += 2) {
                minus = !minus;
                term = (term * square) / ((n * (n - 1)) << FixedPoint.BITS);
                total += minus ? -int256(term) : int256(term);
            }
            return Interval(quadrant % 4 >= 2 ? -total : total, ERROR, -int256(FixedPoint.BITS));
        }
    }
}
