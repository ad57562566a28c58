// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32, Rounding} from "./Rounding.sol";

/// @notice An unfinished exact sum: (window0 + window1 * 2^128 + window2 * 2^256 + window3 * 2^384) * 2^-298, unless `special` is set.
struct Accumulator {
    int256 window0;
    int256 window1;
    int256 window2;
    int256 window3;
    /// Sum of the terms that are infinite or NaN: the pattern of an infinity or of NaN, 0 if there was none.
    uint256 special;
}

/// @notice An exact sum in its one canonical form: the integer high * 2^512 + middle * 2^256 + low, in units of 2^-298. If terms were
///         infinite or NaN, what they come to is all that is left: its pattern, in the first four bytes of `high`.
struct Total {
    int256 high;
    uint256 middle;
    uint256 low;
}

/// @title Sums of products of FP32 numbers, without any error
/// @notice Every product of two FP32 numbers is an integer below 2^554 in units of 2^-298. Products are added up in four windows by the
///         size of their last bit, so that a term touches one word and nothing is carried; at the end the windows are joined and rounded
///         once. The order of the terms cannot matter.
/// @dev Mantissas are below 2^24 and exponents at most 253, so the product mantissa (48 bits) is shifted by 0..506 = window * 128 + 0..127,
///      window <= 3, and adds less than 2^175 to its window. After 2^40 terms a window is below 2^215, and below 2^216 on top of an
///      opened partial sum, so no int256 overflows: the sum is exact.
library ExactSum {
    /// @notice The longest sum that is exact.
    uint256 internal constant MAX_TERMS = 1 << 40;
    /// @notice Exponent of the unit.
    int256 internal constant UNIT = 2 * Rounding.MIN_EXPONENT;
    /// @notice The pattern of 1: a sum of single numbers is a sum of products with it.
    uint256 internal constant ONE = 127 << 23;
    /// @notice |sum| < 2^40 * 2^554 units, so `high` stays below 2^82 in magnitude; of an opened one |sum| has to stay below MAX_HIGH * 2^512 as well.
    int256 internal constant MAX_HIGH = int256(1) << 82;

    uint256 private constant SPECIAL_SHIFT = 224;
    uint256 private constant WINDOW_MASK = type(uint128).max;

    /// @notice The partial sum is larger than any sum of `MAX_TERMS` products.
    error PartialSumOutOfRange(int256 high);

    /// @notice Adds the product of two patterns (below 2^32 each).
    /// @dev The loop of a whole game runs here, and a third of what solc makes of it is enough: no branches and no bounds checks. Written
    ///      out, with m * 2^e for each factor (n is 1 for a normal number, which has a hidden bit and an exponent counted from 1):
    ///        window (ea + eb) / 128 += (sign) ma * mb * 2^((ea + eb) % 128)
    ///      A biased exponent of 255 plus 1 is bit 8. x ^ s - s is x for s = 0 and -x for s = -1. The tests compare all of it with school
    ///      arithmetic on 64-bit digits.
    function addProduct(Accumulator memory self, uint256 a, uint256 b) internal pure {
        unchecked {
            if ((((a >> 23) & 0xff) + 1 | ((b >> 23) & 0xff) + 1) & 0x100 != 0) return addSpecial(self, a, b);
        }
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            let ea := and(shr(23, a), 0xff)
            let eb := and(shr(23, b), 0xff)
            let na := gt(ea, 0)
            let nb := gt(eb, 0)
            let shift := sub(add(ea, eb), add(na, nb))
            let product := shl(and(shift, 127), mul(or(and(a, 0x7fffff), shl(23, na)), or(and(b, 0x7fffff), shl(23, nb))))
            let s := sub(0, and(shr(31, xor(a, b)), 1))
            let window := add(self, shl(5, shr(7, shift)))
            mstore(window, add(mload(window), sub(xor(product, s), s)))
        }
    }

    /// @dev A product with a factor that is infinite or NaN. IEEE 754-2019, 7.2: infinity times zero is NaN, and so is the sum of both
    ///      infinities.
    function addSpecial(Accumulator memory self, uint256 a, uint256 b) private pure {
        (uint256 x, uint256 y) = (a & (Rounding.SIGN - 1), b & (Rounding.SIGN - 1));
        bool isNan = x > Rounding.INFINITY || y > Rounding.INFINITY || x == 0 || y == 0;
        uint256 product = isNan ? Rounding.NAN : ((a ^ b) & Rounding.SIGN) | Rounding.INFINITY;
        self.special = self.special == 0 || self.special == product ? product : Rounding.NAN;
    }

    /// @notice The canonical form.
    /// @dev Carries go upwards once: a window minus its carry * 2^128 is a digit of 128 bits, and `>>` on a signed number rounds down.
    function total(Accumulator memory self) internal pure returns (Total memory sum) {
        if (self.special != 0) return Total(int256(self.special << SPECIAL_SHIFT), 0, 0);
        unchecked {
            int256 carry = self.window0;
            uint256 digit = uint256(carry) & WINDOW_MASK;
            carry = (carry >> 128) + self.window1;
            sum.low = ((uint256(carry) & WINDOW_MASK) << 128) | digit;
            carry = (carry >> 128) + self.window2;
            digit = uint256(carry) & WINDOW_MASK;
            carry = (carry >> 128) + self.window3;
            sum.middle = ((uint256(carry) & WINDOW_MASK) << 128) | digit;
            sum.high = carry >> 128;
        }
    }

    /// @notice Goes on from an opened partial sum. Reverts if it is larger than a sum can be.
    function resume(Total memory sum) internal pure returns (Accumulator memory self) {
        requireInRange(sum);
        self.special = specialOf(sum);
        if (self.special != 0) return self;
        self.window0 = int256(sum.low & WINDOW_MASK);
        self.window1 = int256(sum.low >> 128);
        self.window2 = int256(sum.middle & WINDOW_MASK);
        self.window3 = int256(sum.middle >> 128) + (sum.high << 128);
    }

    /// @notice The pattern of an infinity or of NaN, if that is what a sum comes to; else 0.
    function specialOf(Total memory sum) internal pure returns (uint256 pattern) {
        pattern = uint256(sum.high) >> SPECIAL_SHIFT;
        bool isOne = pattern == Rounding.INFINITY || pattern == Rounding.SIGN | Rounding.INFINITY || pattern == Rounding.NAN;
        if (!isOne || uint256(sum.high) << 32 != 0 || sum.middle | sum.low != 0) pattern = 0;
    }

    /// @notice Reverts if a sum is larger than one of products can be.
    function requireInRange(Total memory sum) internal pure {
        if (specialOf(sum) != 0) return;
        bool isLowest = sum.high == -MAX_HIGH && sum.middle | sum.low == 0;
        if (sum.high >= MAX_HIGH || sum.high < -MAX_HIGH || isLowest) revert PartialSumOutOfRange(sum.high);
    }

    /// @notice The sum, rounded once to a format (`Rounding.nearestOf`): to nearest, ties to even; overflow gives an infinity, and every zero
    ///         result is +0. Infinities and NaN are what they are.
    function rounded(Total memory sum, uint256 bits) internal pure returns (Float32) {
        uint256 special = specialOf(sum);
        if (special != 0) return Rounding.wrap(special);
        unchecked {
            (uint256 high, uint256 middle, uint256 low) = (uint256(sum.high), sum.middle, sum.low);
            uint256 sign = 0;
            if (sum.high < 0) {
                // Two's complement over three words: invert, add one, carry on.
                sign = Rounding.SIGN;
                low = 0 - low;
                middle = ~middle + (low == 0 ? 1 : 0);
                high = ~high + (low == 0 && middle == 0 ? 1 : 0);
            }
            // At most 256 bits from the top one, with a sticky bit for what is cut off.
            uint256 magnitude = low;
            int256 exponent = UNIT;
            if (high != 0) (magnitude, exponent) = fold(high, middle, low != 0, UNIT + 256);
            else if (middle != 0) (magnitude, exponent) = fold(middle, low, false, UNIT);
            Float32 result = Rounding.nearestOf(sign, magnitude, exponent, bits);
            return Float32.unwrap(result) == Rounding.SIGN ? Float32.wrap(0) : result;
        }
    }

    /// @dev The top 256 bits of upper * 2^256 + lower (upper not 0), in units of 2^exponent, and whether anything but zeros is cut off
    ///      (`tail`: whether there is something below `lower`) as bit 0. Far more bits than a Float32 has, so that rounds as the whole.
    function fold(uint256 upper, uint256 lower, bool tail, int256 unit) private pure returns (uint256 top, int256 exponent) {
        unchecked {
            uint256 shift = Rounding.topBit(upper) + 1;
            top = (upper << (256 - shift)) | (lower >> shift);
            if (tail || lower & ((1 << shift) - 1) != 0) top |= 1;
            exponent = unit + int256(shift);
        }
    }
}
