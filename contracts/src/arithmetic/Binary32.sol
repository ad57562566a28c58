// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32, Rounding} from "./Rounding.sol";

/// @title The exact operators of FP32 and narrower formats
/// @notice IEEE 754-2019 on bit patterns: + - * / and the square root rounded to nearest, ties to even, with subnormals, infinities and
///         signed zeros. There is one NaN, the canonical one: it is what every operator gives of a NaN operand (maximum and minimum,
///         too), and every comparison with it is false. Operands are numbers of any format, given as the FP32 numbers that they are. What
///         rounds does so once, to the format `bits` (`Rounding.nearestOf`); all else gives a number of the operands' format.
/// @dev A finite pattern stands for mantissa * 2^(exponent + MIN_EXPONENT), with 0 <= exponent <= 253. Every operator works out the
///      result exactly, or to far more bits than a Float32 has with a sticky bit for the rest, and hands it to `Rounding.nearestOf`.
library Binary32 {
    /// @dev Beyond this distance the smaller summand is only a sticky bit: it is less than 2^24, and the boundaries next to
    ///      larger << 128 are at least 2^126 away from it.
    uint256 private constant EXACT_SHIFT = 128;
    /// @dev A quotient keeps at least 64 + 1 - 24 bits, far more than the 26 that the sticky bit needs.
    uint256 private constant QUOTIENT_SHIFT = 64;
    /// @dev A root keeps at least 80 / 2 bits.
    uint256 private constant ROOT_SHIFT = 80;

    function add(Float32 a, Float32 b, uint256 bits) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        uint256 y = Float32.unwrap(b);
        if (!isFinite(x) || !isFinite(y)) return addSpecial(x, y);
        (uint256 mx, uint256 ex) = split(x);
        (uint256 my, uint256 ey) = split(y);
        if (ex < ey) (x, mx, ex, y, my, ey) = (y, my, ey, x, mx, ex);
        unchecked {
            uint256 distance = ex - ey;
            if (distance > EXACT_SHIFT) {
                // INVARIANT: an exponent that is not the smallest belongs to a number that is not zero.
                if (my != 0) my = 1;
                distance = EXACT_SHIFT;
            }
            mx <<= distance;
            int256 exponent = int256(ex) - int256(distance) + Rounding.MIN_EXPONENT;
            uint256 sign = x & Rounding.SIGN;
            if ((x ^ y) & Rounding.SIGN == 0) return Rounding.nearestOf(sign, mx + my, exponent, bits);
            if (mx > my) return Rounding.nearestOf(sign, mx - my, exponent, bits);
            if (mx < my) return Rounding.nearestOf(sign ^ Rounding.SIGN, my - mx, exponent, bits);
            // Clause 6.3: an exact zero of different signs is +0 (and -0 + -0, above, keeps its sign).
            return Float32.wrap(0);
        }
    }

    function sub(Float32 a, Float32 b, uint256 bits) internal pure returns (Float32) {
        // a - NaN is NaN either way, and flipping the sign of anything else is exact.
        return add(a, neg(b), bits);
    }

    function mul(Float32 a, Float32 b, uint256 bits) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        uint256 y = Float32.unwrap(b);
        uint256 sign = (x ^ y) & Rounding.SIGN;
        if (!isFinite(x) || !isFinite(y)) {
            bool invalid = isNan(x) || isNan(y) || isZero(x) || isZero(y);
            return Rounding.wrap(invalid ? Rounding.NAN : sign | Rounding.INFINITY);
        }
        (uint256 mx, uint256 ex) = split(x);
        (uint256 my, uint256 ey) = split(y);
        unchecked {
            return Rounding.nearestOf(sign, mx * my, int256(ex + ey) + 2 * Rounding.MIN_EXPONENT, bits);
        }
    }

    function div(Float32 a, Float32 b, uint256 bits) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        uint256 y = Float32.unwrap(b);
        uint256 sign = (x ^ y) & Rounding.SIGN;
        if (!isFinite(x) || !isFinite(y)) {
            if (isNan(x) || isNan(y) || isFinite(x) == isFinite(y)) return Rounding.wrap(Rounding.NAN);
            return Rounding.wrap(isFinite(x) ? sign : sign | Rounding.INFINITY);
        }
        (uint256 mx, uint256 ex) = split(x);
        (uint256 my, uint256 ey) = split(y);
        // Clause 7.3: a zero divides everything but a zero into infinity.
        if (my == 0) return Rounding.wrap(mx == 0 ? Rounding.NAN : sign | Rounding.INFINITY);
        unchecked {
            uint256 dividend = mx << QUOTIENT_SHIFT;
            uint256 quotient = dividend / my;
            if (dividend % my != 0) quotient |= 1;
            return Rounding.nearestOf(sign, quotient, int256(ex) - int256(ey) - int256(QUOTIENT_SHIFT), bits);
        }
    }

    function sqrt(Float32 a, uint256 bits) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        // Clause 5.4.1: the root of -0 is -0.
        if (isZero(x)) return a;
        if (isNan(x) || x & Rounding.SIGN != 0) return Rounding.wrap(Rounding.NAN);
        if (!isFinite(x)) return a;
        (uint256 mx, uint256 ex) = split(x);
        unchecked {
            int256 exponent = int256(ex) + Rounding.MIN_EXPONENT - int256(ROOT_SHIFT);
            mx <<= ROOT_SHIFT;
            if (exponent & 1 != 0) (mx, exponent) = (mx << 1, exponent - 1);
            uint256 root = floorSqrt(mx);
            if (root * root != mx) root |= 1;
            return Rounding.nearestOf(0, root, exponent / 2, bits);
        }
    }

    function neg(Float32 a) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        return Rounding.wrap(isNan(x) ? Rounding.NAN : x ^ Rounding.SIGN);
    }

    function abs(Float32 a) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        return Rounding.wrap(isNan(x) ? Rounding.NAN : x & (Rounding.SIGN - 1));
    }

    /// @notice The largest integer that is not above the number; a zero keeps its sign, as infinities do.
    function floor(Float32 a) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        if (isNan(x)) return Rounding.wrap(Rounding.NAN);
        uint256 exponent = (x >> Rounding.FRACTION_BITS) & Rounding.EXPONENT_MASK;
        // From 2^23 on (biased exponent 127 + 23) every number is an integer.
        if (exponent >= 150 || isZero(x)) return a;
        bool negative = x & Rounding.SIGN != 0;
        unchecked {
            (uint256 mantissa,) = split(x);
            uint256 count = 0;
            uint256 rest = mantissa;
            if (exponent >= 127) {
                count = mantissa >> (150 - exponent);
                rest = mantissa - (count << (150 - exponent));
            }
            if (negative && rest != 0) ++count;
            // An integer up to 2^23: exact, so that nothing is rounded here.
            return Rounding.nearest(x & Rounding.SIGN, count, 0);
        }
    }

    /// @notice a if a > b else b: of two equal ones (the two zeros among them) the second.
    function maximum(Float32 a, Float32 b) internal pure returns (Float32) {
        if (!comparable(a, b)) return Rounding.wrap(Rounding.NAN);
        return lt(b, a) ? a : b;
    }

    /// @notice a if a < b else b.
    function minimum(Float32 a, Float32 b) internal pure returns (Float32) {
        if (!comparable(a, b)) return Rounding.wrap(Rounding.NAN);
        return lt(a, b) ? a : b;
    }

    function eq(Float32 a, Float32 b) internal pure returns (bool) {
        return comparable(a, b) && rank(a) == rank(b);
    }

    function lt(Float32 a, Float32 b) internal pure returns (bool) {
        return comparable(a, b) && rank(a) < rank(b);
    }

    function le(Float32 a, Float32 b) internal pure returns (bool) {
        return comparable(a, b) && rank(a) <= rank(b);
    }

    /// @notice An int64 as a number, rounded to nearest, ties to even; 0 is +0.
    function fromInt64(int64 number, uint256 bits) internal pure returns (Float32) {
        unchecked {
            int256 wide = number;
            (uint256 sign, int256 magnitude) = wide < 0 ? (Rounding.SIGN, -wide) : (0, wide);
            return Rounding.nearestOf(sign, uint256(magnitude), 0, bits);
        }
    }

    /// @notice The nearest number of another format (clause 5.4.2); zeros and infinities keep their sign.
    function convert(Float32 a, uint256 bits) internal pure returns (Float32) {
        uint256 x = Float32.unwrap(a);
        if (!isFinite(x)) return isNan(x) ? Rounding.wrap(Rounding.NAN) : a;
        (uint256 mantissa, uint256 exponent) = split(x);
        unchecked {
            return Rounding.nearestOf(x & Rounding.SIGN, mantissa, int256(exponent) + Rounding.MIN_EXPONENT, bits);
        }
    }

    // ---------------------------------------------------------------------------------------------------------------- bit patterns

    /// @notice A finite pattern as mantissa * 2^(exponent + MIN_EXPONENT), without its sign: mantissa < 2^24, exponent <= 253.
    function split(uint256 bits) internal pure returns (uint256 mantissa, uint256 exponent) {
        unchecked {
            mantissa = bits & Rounding.FRACTION_MASK;
            exponent = (bits >> Rounding.FRACTION_BITS) & Rounding.EXPONENT_MASK;
            if (exponent != 0) (mantissa, exponent) = (mantissa | (1 << Rounding.FRACTION_BITS), exponent - 1);
        }
    }

    function isFinite(uint256 bits) internal pure returns (bool) {
        return bits & Rounding.INFINITY != Rounding.INFINITY;
    }

    function isNan(uint256 bits) internal pure returns (bool) {
        return bits & (Rounding.SIGN - 1) > Rounding.INFINITY;
    }

    function isZero(uint256 bits) private pure returns (bool) {
        return bits & (Rounding.SIGN - 1) == 0;
    }

    function addSpecial(uint256 x, uint256 y) private pure returns (Float32) {
        bool opposite = !isFinite(x) && !isFinite(y) && x != y;
        if (isNan(x) || isNan(y) || opposite) return Rounding.wrap(Rounding.NAN);
        return Rounding.wrap(isFinite(x) ? y : x);
    }

    function comparable(Float32 a, Float32 b) private pure returns (bool) {
        return !isNan(Float32.unwrap(a)) && !isNan(Float32.unwrap(b));
    }

    /// @dev Magnitudes of patterns compare as the numbers do (clause 3.4), and both zeros get 0.
    function rank(Float32 a) private pure returns (int256) {
        unchecked {
            uint256 x = Float32.unwrap(a);
            int256 magnitude = int256(x & (Rounding.SIGN - 1));
            return x & Rounding.SIGN == 0 ? magnitude : -magnitude;
        }
    }

    /// @notice The largest r with r * r <= x.
    /// @dev Newton's iteration from above: x0 = 2^ceil(bits / 2) > sqrt(x); (r + x / r) / 2 >= floor(sqrt(x)) for every r > 0 (the
    ///      arithmetic mean is not below the geometric one), and it is below r as long as r * r > x. So the sequence falls strictly until it
    ///      gets there.
    function floorSqrt(uint256 x) internal pure returns (uint256 root) {
        if (x == 0) return 0;
        unchecked {
            uint256 next = 1 << (Rounding.topBit(x) / 2 + 1);
            do {
                root = next;
                next = (root + x / root) / 2;
            } while (next < root);
        }
    }
}
