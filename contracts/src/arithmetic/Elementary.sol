// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "./Binary32.sol";
import {ErrorFunction} from "./ErrorFunction.sol";
import {Exponentials} from "./Exponentials.sol";
import {FixedPoint, Interval} from "./FixedPoint.sol";
import {Rounding} from "./Rounding.sol";
import {Trigonometry} from "./Trigonometry.sol";

/// @notice The codes of `Family.FUNCTION`. The numbers are part of the encoding.
enum Function {
    EXP,
    EXPM1,
    LOG,
    LOG1P,
    TANH,
    ERF,
    SIN,
    COS
}

/// @notice A finite argument: (-1)^negative * mantissa * 2^exponent, and its magnitude's pattern.
struct Argument {
    bool negative;
    uint256 mantissa;
    int256 exponent;
    uint256 magnitude;
}

/// @title Elementary functions of one FP32 number, correctly rounded
/// @notice Each gives an interval that contains the mathematical value; if both its ends round to the same number, that is the answer, and
///         if not the contract cannot decide. Intervals are narrower than 2^-76 of the value.
/// @dev Where an argument is so small or large that the answer is plain, it is given as a number that has no boundary between itself and
///      the value (just beside x or 1, or far out), so that it is right in every format.
///      By the theorem of Lindemann and Weierstrass no value is a boundary itself, but for the exact ones (exp 0, log 1, ...).
library Elementary {
    uint256 private constant ONE = 127 << 23;
    uint256 private constant FINE_BITS = 64;
    /// @dev e^89 > 2^128; 89 = 1.390625 * 2^6.
    uint256 private constant EXPM1_OVERFLOWS = (133 << 23) | (0x32 << 16);
    /// @dev 10 = 1.25 * 2^3.
    uint256 private constant TEN = (130 << 23) | (1 << 21);
    /// @dev Above every finite number.
    int256 private constant BEYOND = 200;

    error NoSuchFunction(uint8 code);

    /// @notice The function's value at a pattern: the pattern of a number of a format (`Rounding.nearestOf`), and whether it is decided. NaN and infinities
    ///         come out where there is no finite value.
    function evaluate(uint8 code, uint32 x, uint256 bits) internal pure returns (uint32, bool) {
        if (code > uint8(type(Function).max)) revert NoSuchFunction(code);
        Function f = Function(code);
        Argument memory a = split(x);
        if (!Binary32.isFinite(x)) return (ofInfinity(f, a), true);
        if (a.mantissa == 0) return (ofZero(f), true);
        if (f == Function.LOG && (a.negative || a.magnitude == ONE)) return (a.negative ? nan() : 0, true);
        if (f == Function.LOG1P && a.negative && a.magnitude >= ONE) return (a.magnitude == ONE ? infinity(true) : nan(), true);
        return FixedPoint.round(interval(f, a), bits);
    }

    function interval(Function f, Argument memory a) private pure returns (Interval memory) {
        if (f == Function.EXP) return exp(a);
        if (f == Function.EXPM1) return expm1(a);
        if (f == Function.LOG) return Exponentials.logarithm(a.mantissa, a.exponent, Rounding.topBit(a.mantissa));
        if (f == Function.LOG1P) return log1p(a);
        if (f == Function.TANH) return tanh(a);
        if (f == Function.ERF) return erf(a);
        return f == Function.SIN ? sin(a) : cos(a);
    }

    function exp(Argument memory a) private pure returns (Interval memory) {
        // e^128 > 2^128, and 0 < e^-128 < 2^-150.
        if (a.magnitude >= powerOfTwo(7)) return Interval(1, 0, a.negative ? -BEYOND : BEYOND);
        return Exponentials.exp(a.negative, a.mantissa, a.exponent);
    }

    function expm1(Argument memory a) private pure returns (Interval memory) {
        // x + x^2/2 + ...: above x, by less than 2^-26 of it.
        if (a.magnitude <= powerOfTwo(-26)) return near(a, !a.negative);
        // -1 + e^-32 < -1 + 2^-46.
        if (a.negative && a.magnitude >= powerOfTwo(5)) return belowOne(true);
        if (!a.negative && a.magnitude >= EXPM1_OVERFLOWS) return Interval(1, 0, BEYOND);
        return Exponentials.expm1(a.negative, a.mantissa, a.exponent);
    }

    /// @dev 1 + x is exact: in units of 2^exponent where x is small (exponent > -50), as an integer below 2^128 where it is large.
    function log1p(Argument memory a) private pure returns (Interval memory) {
        // x - x^2/2 + ...: below x, by less than 2^-26 of it.
        if (a.magnitude <= powerOfTwo(-26)) return near(a, a.negative);
        unchecked {
            uint256 unit = a.exponent < 0 ? 1 << uint256(-a.exponent) : 1;
            uint256 whole = a.exponent < 0 ? a.mantissa : a.mantissa << uint256(a.exponent);
            uint256 natural = a.negative ? unit - whole : unit + whole;
            return Exponentials.logarithm(natural, a.exponent < 0 ? a.exponent : int256(0), Rounding.topBit(natural));
        }
    }

    function tanh(Argument memory a) private pure returns (Interval memory) {
        // x - x^3/3 + ...: towards zero, by less than 2^-27 of x.
        if (a.magnitude <= powerOfTwo(-13)) return near(a, false);
        // 1 - tanh 10 < 2 e^-20 < 2^-27.
        if (a.magnitude >= TEN) return belowOne(a.negative);
        return signed(Exponentials.tanh(a.mantissa, a.exponent), a.negative);
    }

    function erf(Argument memory a) private pure returns (Interval memory) {
        // 1 - erf 4 < 2^-25.9.
        if (a.magnitude >= powerOfTwo(2)) return belowOne(a.negative);
        return signed(ErrorFunction.erf(a.mantissa, a.exponent, a.magnitude < ONE), a.negative);
    }

    function sin(Argument memory a) private pure returns (Interval memory) {
        // x - x^3/6 + ...: towards zero, by less than 2^-28 of x.
        if (a.magnitude <= powerOfTwo(-13)) return near(a, false);
        (uint256 quadrant, uint256 r) = Trigonometry.quarterTurns(a.mantissa, a.exponent);
        return signed(Trigonometry.sine(quadrant, r), a.negative);
    }

    function cos(Argument memory a) private pure returns (Interval memory) {
        // 1 - x^2/2 + ... > 1 - 2^-27.
        if (a.magnitude <= powerOfTwo(-13)) return belowOne(false);
        (uint256 quadrant, uint256 r) = Trigonometry.quarterTurns(a.mantissa, a.exponent);
        return Trigonometry.sine(quadrant + 1, r);
    }

    // --------------------------------------------------------------------------------------------------------------- plain answers

    /// @dev For a value next to x itself, outwards or towards zero, by less than 2^-26 of x: between the two lies no boundary, as x is one
    ///      or the next are at least a quarter of its last place away, and x is below 2^24 of these.
    function near(Argument memory a, bool outwards) private pure returns (Interval memory) {
        unchecked {
            uint256 fine = (a.mantissa << FINE_BITS) + (outwards ? 1 : 0) - (outwards ? 0 : 1);
            return signed(Interval(int256(fine), 0, a.exponent - int256(FINE_BITS)), a.negative);
        }
    }

    /// @dev For a value within 2^-25 below 1 (or above -1), where the nearest boundary is.
    function belowOne(bool negative) private pure returns (Interval memory) {
        return signed(Interval(int256((1 << FINE_BITS) - 1), 0, -int256(FINE_BITS)), negative);
    }

    function signed(Interval memory positive, bool negative) private pure returns (Interval memory) {
        if (negative) positive.number = -positive.number;
        return positive;
    }

    function ofZero(Function f) private pure returns (uint32) {
        if (f == Function.LOG) return infinity(true);
        return f == Function.EXP || f == Function.COS ? uint32(ONE) : 0;
    }

    /// @dev The limits, and NaN for what has none.
    function ofInfinity(Function f, Argument memory a) private pure returns (uint32) {
        bool isNumber = a.magnitude == Rounding.INFINITY && f < Function.SIN;
        bool isLogarithm = f == Function.LOG || f == Function.LOG1P;
        if (!isNumber || (a.negative && isLogarithm)) return nan();
        if (f >= Function.TANH) return uint32(a.negative ? Rounding.SIGN | ONE : ONE);
        if (!a.negative) return infinity(false);
        return f == Function.EXP ? 0 : uint32(Rounding.SIGN | ONE);
    }

    function infinity(bool negative) private pure returns (uint32) {
        return uint32(negative ? Rounding.SIGN | Rounding.INFINITY : Rounding.INFINITY);
    }

    function nan() private pure returns (uint32) {
        return uint32(Rounding.NAN);
    }

    /// @dev The pattern of 2^exponent. Magnitudes compare as their patterns do.
    function powerOfTwo(int256 exponent) private pure returns (uint256) {
        unchecked {
            return uint256(exponent + 127) << Rounding.FRACTION_BITS;
        }
    }

    function split(uint32 x) private pure returns (Argument memory a) {
        a.negative = x & Rounding.SIGN != 0;
        a.magnitude = x & (Rounding.SIGN - 1);
        uint256 exponent = 0;
        (a.mantissa, exponent) = Binary32.split(x);
        a.exponent = int256(exponent) + Rounding.MIN_EXPONENT;
    }
}
