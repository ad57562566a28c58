// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {FixedPoint, Interval} from "./FixedPoint.sol";

/// @title exp, expm1, tanh, log and log1p
/// @notice Fixed point with a proven error; arguments are |x| = mantissa * 2^exponent with mantissa < 2^24, in the ranges that `Elementary`
///         leaves over. A unit is 2^-124. Divisions and shifts of natural numbers round down and err by less than a unit.
library Exponentials {
    uint256 private constant EXP_ERROR = 128;
    uint256 private constant LOG_ERROR = 256;
    uint256 private constant TANH_BITS = 100;
    uint256 private constant TANH_ERROR = 4;

    /// @notice e^x for |x| < 128.
    function exp(bool negative, uint256 mantissa, int256 exponent) internal pure returns (Interval memory) {
        (uint256 y, int256 k) = exponential(negative, mantissa, exponent);
        return Interval(int256(y), EXP_ERROR, k - int256(FixedPoint.BITS));
    }

    /// @notice e^x - 1 for -32 < x < 89, |x| > 2^-26.
    /// @dev k <= 128, so y * 2^k is below 2^254.
    function expm1(bool negative, uint256 mantissa, int256 exponent) internal pure returns (Interval memory) {
        (uint256 y, int256 k) = exponential(negative, mantissa, exponent);
        unchecked {
            (uint256 scaled, uint256 margin) = k >= 0 ? (y << uint256(k), EXP_ERROR << uint256(k)) : (y >> uint256(-k), EXP_ERROR);
            return Interval(int256(scaled) - int256(FixedPoint.ONE), margin, -int256(FixedPoint.BITS));
        }
    }

    /// @notice tanh |x| = (E - 1) / (E + 1), E = e^(2 |x|), for 2^-13 < |x| < 10.
    /// @dev E < 2^29. Its error of 128 * 2^k units moves the quotient by less than 2 * 128 units / 2^k, far below one of these larger
    ///      units of 2^-100; the division errs by one.
    function tanh(uint256 mantissa, int256 exponent) internal pure returns (Interval memory) {
        (uint256 y, int256 k) = exponential(false, mantissa, exponent + 1);
        unchecked {
            uint256 e = y << uint256(k);
            uint256 quotient = ((e - FixedPoint.ONE) << TANH_BITS) / (e + FixedPoint.ONE);
            return Interval(int256(quotient), TANH_ERROR, -int256(TANH_BITS));
        }
    }

    /// @notice log(natural * 2^scale), 1 <= natural < 2^128 with the top bit `top`, for an argument that is not 1.
    /// @dev = e log 2 + 2 atanh(z), z = (m - 1) / (m + 1) < 1/3 for the mantissa 1 <= m < 2. z errs by 1 unit, the series of 40 terms by
    ///      less than 2 a term (its division, and its power), what is left out by less than 1; all that twice, and e log 2 by less than
    ///      2: less than 2 * (2 + 80 + 1) + 2 = 168 units.
    // The cut of a division is part of the proof.
    // slither-disable-next-line divide-before-multiply
    function logarithm(uint256 natural, int256 scale, uint256 top) internal pure returns (Interval memory) {
        unchecked {
            uint256 whole = uint256(1) << top;
            uint256 power = ((natural - whole) << FixedPoint.BITS) / (natural + whole);
            uint256 square = (power * power) >> FixedPoint.BITS;
            uint256 total = 0;
            for (uint256 n = 1; power != 0; n += 2) {
                total += power / n;
                power = (power * square) >> FixedPoint.BITS;
            }
            int256 e = int256(top) + scale;
            uint256 magnitude = (uint256(e < 0 ? -e : e) * FixedPoint.LN2) >> FixedPoint.GUARD;
            int256 number = (e < 0 ? -int256(magnitude) : int256(magnitude)) + 2 * int256(total);
            return Interval(number, LOG_ERROR, -int256(FixedPoint.BITS));
        }
    }

    /// @notice (y, k): e^x lies within 128 units of y, times 2^k, and 2^124 <= y < 2^125 or so. |x| < 128.
    /// @dev x = k log 2 + r with 0 <= r < log 2. r errs by the cut of x (1 unit), k times the error of LN2 (|k| < 200 times 2^-16 units) and
    ///      its own shift (1 unit): less than 3 units, and e^r by less than 6. The series has 35 terms; each division errs by less than 1
    ///      unit, which the later terms multiply by less than e^r < 2 altogether, and what is left out after the last is less than
    ///      2 units: less than 6 + 35 * 2 + 2 = 78 units. No product reaches 2^251.
    // The cut of a division is part of the proof.
    // slither-disable-next-line divide-before-multiply
    function exponential(bool negative, uint256 mantissa, int256 exponent) private pure returns (uint256 total, int256 k) {
        unchecked {
            uint256 x = FixedPoint.fromScaled(mantissa, exponent, FixedPoint.BITS) << FixedPoint.GUARD;
            uint256 turns = negative ? (x + FixedPoint.LN2 - 1) / FixedPoint.LN2 : x / FixedPoint.LN2;
            uint256 multiple = turns * FixedPoint.LN2;
            uint256 r = (negative ? multiple - x : x - multiple) >> FixedPoint.GUARD;
            k = negative ? -int256(turns) : int256(turns);
            total = FixedPoint.ONE;
            uint256 term = FixedPoint.ONE;
            for (uint256 n = 1; term != 0; ++n) {
                term = (term * r) / (n << FixedPoint.BITS);
                total += term;
            }
        }
    }
}
