// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Rounding} from "./Rounding.sol";

/// @notice Numbers of an arithmetic and of its operands' format: "Arithmetics" in docs/arithmetic.md.
struct GroupRule {
    /// Bits kept below the largest exponent: F.
    uint256 fractionBits;
    /// Products of a group.
    uint256 terms;
    /// Biased exponent, as FP32 has it, of the least normal operand: 1, or 113 for FP16.
    uint256 leastNormal;
    /// Whether subnormal operands have a value.
    bool subnormals;
}

/// @title One group of a tensor core
/// @notice An FP32 number c and products of pairs, aligned to the largest exponent, truncated, added, and rounded toward zero to FP32. Every
///         operand is a number of the rule's format, given as the FP32 pattern that it is; zeros come out as +0.
/// @dev A finite pattern is m * 2^(max(f, 1) - 150) with f its biased exponent and m < 2^24. A product is ma * mb * 2^(e - 300), e the sum of
///      both max(f, 1), and c is written so as well: mc * 2^23 with e = max(fc, 1) + 127. Alignment goes by g, which is e with exponents
///      below that of the least normal number raised to it, so that e <= g <= `largest`. In units of 2^(largest - 254 - F) a product is
///      ma * mb >> (largest - e + 46 - F): below 2^(F + 2). The sum of seventeen is below 2^32.
library TensorCore {
    /// @notice Largest sum of two biased exponents that has a value, that of 2^121: seventeen terms below 2^123 stay below 2^128.
    uint256 internal constant LARGEST = 121 + 254;

    /// @dev Layout of a term: the product, e, g, and flags.
    uint256 private constant EXPONENT_SHIFT = 48;
    uint256 private constant ALIGNED_SHIFT = 64;
    uint256 private constant EXPONENT_MASK = 0x3FF;
    uint256 private constant PRODUCT_MASK = (1 << EXPONENT_SHIFT) - 1;
    uint256 private constant NEGATIVE = 1 << 80;
    uint256 private constant NORMAL = 1 << 81;
    uint256 private constant COUNTS = 1 << 82;
    /// @dev The g of what is infinite or NaN: too large.
    uint256 private constant NOT_FINITE = EXPONENT_MASK;
    /// @dev Bits below the binary point of a product of two 24-bit numbers.
    uint256 private constant PRODUCT_FRACTION = 46;

    /// @notice The operands are no group of the rule.
    error NotAGroup(uint256 left, uint256 right, uint256 terms);

    /// @notice The group's pattern, and whether it has a value: results of real devices do not show all ("A group" in docs/arithmetic.md).
    function group(GroupRule memory rule, uint256 c, uint256[] memory a, uint256[] memory b) internal pure returns (uint32, bool) {
        if (a.length != b.length || a.length > rule.terms) revert NotAGroup(a.length, b.length, rule.terms);
        unchecked {
            uint256[] memory terms = new uint256[](a.length + 1);
            // A product of two zeros may complete a group, so that its exponent always counts.
            uint256 largest = 2 * rule.leastNormal;
            uint256 largestNormal = 0;
            for (uint256 i = 0; i < terms.length; ++i) {
                uint256 term = i == 0 ? addend(c) : product(rule, a[i - 1], b[i - 1]);
                uint256 g = (term >> ALIGNED_SHIFT) & EXPONENT_MASK;
                if (g > largest) largest = g;
                if (term & NORMAL != 0 && g > largestNormal) largestNormal = g;
                terms[i] = term;
            }
            if (largest > LARGEST) return (0, false);
            (int256 total, bool known) = sum(terms, largest + PRODUCT_FRACTION - rule.fractionBits, largest == largestNormal);
            return known ? towardZero(total, largest - rule.fractionBits) : (0, false);
        }
    }

    function addend(uint256 c) private pure returns (uint256) {
        (uint256 m, uint256 f) = split(c);
        unchecked {
            uint256 e = atLeast(f, 1) + 127;
            uint256 flags = (c >> 31 == 0 ? 0 : NEGATIVE) | (f == 0 ? 0 : NORMAL | COUNTS);
            uint256 g = f == Rounding.EXPONENT_MASK ? NOT_FINITE : e;
            return (m << Rounding.FRACTION_BITS) | (e << EXPONENT_SHIFT) | (g << ALIGNED_SHIFT) | flags;
        }
    }

    function product(GroupRule memory rule, uint256 a, uint256 b) private pure returns (uint256) {
        (uint256 ma, uint256 fa) = split(a);
        (uint256 mb, uint256 fb) = split(b);
        uint256 least = rule.leastNormal;
        unchecked {
            uint256 e = atLeast(fa, 1) + atLeast(fb, 1);
            uint256 g = atLeast(fa, least) + atLeast(fb, least);
            if (fa == Rounding.EXPONENT_MASK || fb == Rounding.EXPONENT_MASK) g = NOT_FINITE;
            uint256 flags = (a ^ b) >> 31 == 0 ? 0 : NEGATIVE;
            if (fa >= least && fb >= least) flags |= NORMAL | COUNTS;
            else if (rule.subnormals) flags |= COUNTS;
            return (ma * mb) | (e << EXPONENT_SHIFT) | (g << ALIGNED_SHIFT) | flags;
        }
    }

    /// @dev The sum of the terms, each without its last `shift` - e bits. It is unknown if a term that does not count is not truncated to
    ///      nothing, and, unless the alignment is certain, if a bit is lost.
    function sum(uint256[] memory terms, uint256 shift, bool certain) private pure returns (int256 total, bool known) {
        unchecked {
            for (uint256 i = 0; i < terms.length; ++i) {
                uint256 term = terms[i];
                uint256 digits = term & PRODUCT_MASK;
                // INVARIANT: e <= largest, so that at least 46 - F > 0 bits are cut off.
                uint256 cut = shift - ((term >> EXPONENT_SHIFT) & EXPONENT_MASK);
                uint256 kept = digits >> cut;
                if (!certain && kept << cut != digits) return (0, false);
                if (kept != 0 && term & COUNTS == 0) return (0, false);
                total += term & NEGATIVE == 0 ? int256(kept) : -int256(kept);
            }
            return (total, true);
        }
    }

    /// @dev total * 2^(place - 254), below 2^128, toward zero; without a value below 2^-126, but for zero.
    function towardZero(int256 total, uint256 place) private pure returns (uint32, bool) {
        if (total == 0) return (0, true);
        unchecked {
            uint256 magnitude = uint256(total < 0 ? -total : total);
            uint256 top = Rounding.topBit(magnitude);
            // The biased exponent is place + top - 127.
            if (place + top <= 127) return (0, false);
            uint256 digits = top < Rounding.FRACTION_BITS
                ? magnitude << (Rounding.FRACTION_BITS - top)
                : magnitude >> (top - Rounding.FRACTION_BITS);
            // The hidden bit adds one to the exponent.
            uint256 pattern = ((place + top - 128) << Rounding.FRACTION_BITS) + digits;
            // forge-lint: disable-next-line(unsafe-typecast)
            return (uint32(pattern | (total < 0 ? Rounding.SIGN : 0)), true);
        }
    }

    /// @dev A finite pattern's m and f.
    function split(uint256 x) private pure returns (uint256 m, uint256 f) {
        f = (x >> Rounding.FRACTION_BITS) & Rounding.EXPONENT_MASK;
        m = x & Rounding.FRACTION_MASK;
        if (f != 0) m |= 1 << Rounding.FRACTION_BITS;
    }

    function atLeast(uint256 x, uint256 least) private pure returns (uint256) {
        return x < least ? least : x;
    }
}
