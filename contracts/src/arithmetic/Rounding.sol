// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice The bit pattern of an IEEE 754 binary32 number: sign, 8 bits of exponent, 23 of fraction.
type Float32 is uint32;

/// @title Rounding, in one place for all operators
/// @notice IEEE 754-2019, 4.3.1 (to nearest, ties to even) with subnormals and overflow to infinity.
library Rounding {
    uint256 internal constant EXPONENT_MASK = 0xFF;
    uint256 internal constant FRACTION_BITS = 23;
    uint256 internal constant FRACTION_MASK = (1 << FRACTION_BITS) - 1;
    uint256 internal constant INFINITY = EXPONENT_MASK << FRACTION_BITS;
    uint256 internal constant SIGN = 1 << 31;
    /// @notice The canonical NaN, for a result that no run may have.
    uint256 internal constant NAN = INFINITY | (1 << 22);
    /// @notice Every finite number is a multiple of 2^-149.
    int256 internal constant MIN_EXPONENT = -149;

    /// @notice FP32 itself; formats of `bits` < 32 bits are those FP32 numbers whose last 32 - bits bits are zero (OVT's b_r).
    uint256 internal constant FULL_BITS = 32;
    /// @notice OVT's smallest format.
    uint256 internal constant MIN_BITS = 23;
    /// @notice BF16, which is the one of 16 bits.
    uint256 internal constant BFLOAT16 = 16;
    /// @notice FP16: of the numbers of 19 bits, the multiples of 2^-24 below 2^16, and infinities.
    uint256 internal constant FLOAT16 = 19;
    int256 private constant FLOAT16_MIN_EXPONENT = -24;
    int256 private constant FLOAT16_FRACTION_BITS = 10;
    /// @dev The exponent of the power of two that would follow FP16's largest number.
    int256 private constant FLOAT16_LIMIT = 16;
    /// @dev An exponent beyond all formats.
    int256 private constant BEYOND = 200;

    /// @notice A spec's FP32 numbers have 23 to 32 bits.
    error NoSuchFormat(uint8 bits);

    function requireFormat(uint8 bits) internal pure {
        if (bits < MIN_BITS || bits > FULL_BITS) revert NoSuchFormat(bits);
    }

    /// @notice Rounds magnitude * 2^exponent to FP32. See `nearestOf`.
    function nearest(uint256 sign, uint256 magnitude, int256 exponent) internal pure returns (Float32) {
        return nearestOf(sign, magnitude, exponent, FULL_BITS);
    }

    /// @notice Rounds magnitude * 2^exponent, whose sign is given as the pattern's top bit (`SIGN` or 0), to a format: one of 23 to 32 bits,
    ///         BFLOAT16 or FLOAT16. All of their numbers are FP32 numbers, and the result is the pattern that it has there.
    /// @dev With q = magnitude >> shift the number lies in [q, q + 1) units of the last place, and the rest decides; all of it is integer
    ///      arithmetic without loss. A count of 2^24 units (of full FP32) carries into the exponent field by itself, to the right
    ///      neighbour. |exponent| has to stay below 2^200, which every caller keeps by far.
    /// @param magnitude may stand for a number that is not an integer, if no multiple of half of the last place (they are the boundaries
    ///        and the results) lies between the two, nor is one of them such a multiple. A number in (m, m + 1), m >= 2^25, is stood for
    ///        by m | 1, since bit 0 lies below that half.
    function nearestOf(uint256 sign, uint256 magnitude, int256 exponent, uint256 bits) internal pure returns (Float32) {
        unchecked {
            // A number of FLOAT16 is one of 19 bits, and so is not rounded again.
            if (bits == FLOAT16) (magnitude, exponent) = nearestHalf(magnitude, exponent);
            if (magnitude == 0) return wrap(sign);
            uint256 dropped = FULL_BITS - bits;
            // The last place of the result, 24 significant bits in full FP32, but never below 2^-149; both higher by what is dropped.
            int256 place = exponent + int256(topBit(magnitude)) - int256(FRACTION_BITS);
            if (place < MIN_EXPONENT) place = MIN_EXPONENT;
            int256 shift = place + int256(dropped) - exponent;
            uint256 pattern = (uint256(place - MIN_EXPONENT) << FRACTION_BITS) + (inUnits(magnitude, shift) << dropped);
            return wrap(sign | (pattern < INFINITY ? pattern : INFINITY));
        }
    }

    /// @dev The number of FP16 nearest to magnitude * 2^exponent, again as such a product; what overflows comes out beyond all formats.
    function nearestHalf(uint256 magnitude, int256 exponent) private pure returns (uint256 count, int256 place) {
        unchecked {
            place = exponent + int256(topBit(magnitude)) - FLOAT16_FRACTION_BITS;
            if (place < FLOAT16_MIN_EXPONENT) place = FLOAT16_MIN_EXPONENT;
            count = inUnits(magnitude, place - exponent);
            if (place + int256(topBit(count)) >= FLOAT16_LIMIT) place = BEYOND;
        }
    }

    /// @dev magnitude / 2^shift, to nearest, ties to even.
    function inUnits(uint256 magnitude, int256 shift) private pure returns (uint256 count) {
        unchecked {
            // INVARIANT: a place is at least exponent + topBit - 23, so this shifts by 23 - topBit at most, and nothing is lost.
            if (shift <= 0) return magnitude << uint256(-shift);
            // Beyond, the number is below half of the smallest one.
            if (shift > 256) return 0;
            count = magnitude >> uint256(shift);
            uint256 rest = magnitude - (count << uint256(shift));
            uint256 half = 1 << uint256(shift - 1);
            if (rest > half || (rest == half && count & 1 == 1)) ++count;
        }
    }

    function wrap(uint256 bits) internal pure returns (Float32) {
        // forge-lint: disable-next-line(unsafe-typecast)
        return Float32.wrap(uint32(bits));
    }

    /// @notice The position of the highest set bit; 0 for 0.
    function topBit(uint256 x) internal pure returns (uint256 position) {
        unchecked {
            if (x >> 128 != 0) (x, position) = (x >> 128, 128);
            if (x >> 64 != 0) (x, position) = (x >> 64, position + 64);
            if (x >> 32 != 0) (x, position) = (x >> 32, position + 32);
            if (x >> 16 != 0) (x, position) = (x >> 16, position + 16);
            if (x >> 8 != 0) (x, position) = (x >> 8, position + 8);
            if (x >> 4 != 0) (x, position) = (x >> 4, position + 4);
            if (x >> 2 != 0) (x, position) = (x >> 2, position + 2);
            if (x >> 1 != 0) ++position;
        }
    }
}
