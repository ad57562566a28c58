// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {FixedPoint, Interval} from "./FixedPoint.sol";

/// @title Error function erf
library ErrorFunction {
    uint256 private constant BITS = 112;
    /// @dev floor(2 / sqrt(pi) * 2^120).
    uint256 private constant TWO_OVER_ROOT_PI = 0x120DD750429B6D11AE3A914FED7FD86;
    uint256 private constant ERROR_BELOW_4 = 1 << 32;
    uint256 private constant ERROR_BELOW_1 = 512;

    /// @notice erf |x| = 2 / sqrt(pi) * |x| * S, S = sum of (-w)^n / (n! (2 n + 1)), w = x^2 < 16; x is not 0.
    /// @dev In units of 2^-112, w errs by 1, S by 1/3 of that. A term's division errs by 1 unit, which the later terms multiply by at most
    ///      e^w < 2^23.1 altogether; the divisions by 2 n + 1 by 1 each; 97 terms: less than 98 * (2^23.1 + 1) < 2^30 units, and below
    ///      |x| = 1 less than 30 * (e + 1) < 128. The product with the constant, which is below 1.13, errs by 2 more. Terms stay below
    ///      e^w < 2^24, so no product reaches 2^(112 + 24 + 116).
    function erf(uint256 mantissa, int256 exponent, bool belowOne) internal pure returns (Interval memory) {
        unchecked {
            uint256 square = FixedPoint.fromScaled(mantissa * mantissa, 2 * exponent, BITS);
            uint256 term = uint256(1) << BITS;
            int256 total = int256(term);
            for (uint256 n = 1; term != 0; ++n) {
                term = (term * square) / (n << BITS);
                int256 part = int256(term / (2 * n + 1));
                total += n & 1 == 1 ? -part : part;
            }
            uint256 slope = (uint256(total) * TWO_OVER_ROOT_PI) >> 120;
            uint256 margin = belowOne ? ERROR_BELOW_1 : ERROR_BELOW_4;
            return Interval(int256(slope * mantissa), margin * mantissa, exponent - int256(BITS));
        }
    }
}
