// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Accumulator, ExactSum, Total} from "../arithmetic/ExactSum.sol";
import {Rounding} from "../arithmetic/Rounding.sol";
import {GroupRule, TensorCore} from "../arithmetic/TensorCore.sol";
import {Access} from "./Access.sol";
import {Descriptor, DType} from "./Descriptor.sol";
import {Partial} from "./IAdjudicator.sol";
import {Numbers} from "./Numbers.sol";
import {Index, ChunkOpening, Openings} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";

/// @title CHAIN: products of two inputs, added group by group as the tensor cores of a family of GPUs do
/// @notice The code is the family's: 0 hopper, 1 ampere, 2 volta (docs/arithmetic.md). Every 2,048 terms are a chain of their own, on top of
///         zero, and what chains come to is added exactly.
library Chains {
    using ExactSum for Accumulator;
    using ExactSum for Total;
    using Openings for Index;
    using Reading for Operands;

    /// @notice Terms of a chain.
    uint256 internal constant CHAIN_TERMS = 2048;
    uint8 private constant VOLTA = 2;
    /// @dev Products of a group of 16-bit operands, and bits that are kept below the largest exponent: a byte for each code.
    uint256 private constant GROUPS = 0x040810;
    uint256 private constant FRACTION_BITS = 0x171819;
    /// @dev Biased exponents of the least normal numbers.
    uint256 private constant BFLOAT16_LEAST = 1;
    uint256 private constant FLOAT16_LEAST = 113;
    /// @dev A running result counts in units of 2^-149, `Total` in such of 2^-298.
    uint256 private constant UNIT_SHIFT = 149;
    /// @dev 2^29 chains below 2^128 stay below 2^50 * 2^256 units.
    int256 private constant MAX_HIGH = int256(1) << 50;

    /// @notice Products of a group.
    function groupOf(Descriptor memory self) internal pure returns (uint256) {
        return digits(GROUPS, self.code);
    }

    /// @notice The dtype of operands and output: the claimed one if the family is defined for it, else one that it is defined for.
    function dtypeOf(Descriptor memory self) internal pure returns (DType) {
        return self.dtype == DType.BF16 && self.code != VOLTA ? DType.BF16 : DType.F16;
    }

    /// @notice Whether one opening covers whole groups, and chains are whole openings.
    function isSegment(Descriptor memory self) internal pure returns (bool) {
        uint256 segment = self.segment;
        return segment & (segment - 1) == 0 && segment >= groupOf(self) && segment <= CHAIN_TERMS;
    }

    /// @notice Whether terms can come to a running result.
    function isRunning(Partial memory self) internal pure returns (bool) {
        (uint256 c, int256 high, uint256 low) = split(self);
        if (c == Rounding.NAN) return high == 0 && low == 0;
        bool isNumber = c == 0 || (c >> Rounding.FRACTION_BITS) & Rounding.EXPONENT_MASK != 0;
        if (!isNumber || c > type(uint32).max || !Binary32.isFinite(c)) return false;
        return high < MAX_HIGH && high >= -MAX_HIGH && (high != -MAX_HIGH || low != 0);
    }

    /// @notice Goes on from `before`, a running result, over the terms that are left.
    function extend(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        internal
        pure
        returns (Partial memory)
    {
        GroupRule memory rule = ruleOf(operands.descriptor);
        uint256[] memory a = new uint256[](rule.terms);
        uint256[] memory b = new uint256[](rule.terms);
        bool isHalf = operands.descriptor.dtype == DType.F16;
        uint256 end = position(operands) + operands.left;
        uint256 c = uint256(before.words[0]);
        while (operands.left > 0 && c != Rounding.NAN) {
            for (uint256 i = 0; i < rule.terms; ++i) {
                // A group that is not full has products of two zeros instead.
                (a[i], b[i]) = (0, 0);
                if (operands.left == 0) continue;
                (a[i], b[i]) = term(operands, openings, isHalf);
                operands.next();
            }
            (uint32 pattern, bool hasValue) = TensorCore.group(rule, c, a, b);
            c = hasValue ? pattern : Rounding.NAN;
        }
        if (c == Rounding.NAN) return Partial([bytes32(c), bytes32(0), bytes32(0)]);
        // INVARIANT: an opening ends at most one chain, and with its last term, since chains are whole openings. No terms end none.
        Partial memory afterwards = Partial([bytes32(c), before.words[1], before.words[2]]);
        return end > 0 && end % CHAIN_TERMS == 0 ? joined(wholeOf(afterwards)) : afterwards;
    }

    /// @notice The element whose terms came to `whole`, a running result.
    function finish(DType dtype, Partial memory whole) internal pure returns (uint64) {
        if (uint256(whole.words[0]) == Rounding.NAN) return Numbers.ofFloat32(dtype, Rounding.wrap(Rounding.NAN));
        return Numbers.ofFloat32(dtype, wholeOf(whole).rounded(Numbers.formatOf(dtype, Rounding.FULL_BITS)));
    }

    /// @dev The operands of the present term; zeros if one is in the padding, which is as good as no term, and then none needs to be opened.
    function term(Operands memory operands, ChunkOpening[] calldata openings, bool isHalf)
        private
        pure
        returns (uint256 x, uint256 y)
    {
        (uint256 flat, bool valid) = Access.read(operands.rows[0]);
        if (!valid) return (0, 0);
        (y, valid) = operands.read(openings, 1);
        if (!valid) return (0, 0);
        x = operands.index.element(openings, 0, flat);
        if (isHalf) (x, y) = (Numbers.ofHalf(x), Numbers.ofHalf(y));
    }

    /// @dev The index of the present term.
    function position(Operands memory operands) private pure returns (uint256 index) {
        uint64[] memory sizes = operands.descriptor.reduction;
        for (uint256 axis = 0; axis < sizes.length; ++axis) {
            index = index * sizes[axis] + operands.term[axis];
        }
    }

    function split(Partial memory self) private pure returns (uint256 c, int256 high, uint256 low) {
        return (uint256(self.words[0]), int256(uint256(self.words[1])), uint256(self.words[2]));
    }

    /// @dev The sum of all chains, and of the one that is not at its end.
    function wholeOf(Partial memory self) private pure returns (Total memory) {
        (uint256 c, int256 high, uint256 low) = split(self);
        unchecked {
            uint256 middle = (uint256(high) << UNIT_SHIFT) | (low >> (256 - UNIT_SHIFT));
            Accumulator memory sum = ExactSum.resume(Total(high >> (256 - UNIT_SHIFT), middle, low << UNIT_SHIFT));
            sum.addProduct(c, ExactSum.ONE);
            return sum.total();
        }
    }

    /// @dev The running result at the end of a chain.
    function joined(Total memory sum) private pure returns (Partial memory) {
        unchecked {
            uint256 high = (uint256(sum.high) << (256 - UNIT_SHIFT)) | (sum.middle >> UNIT_SHIFT);
            uint256 low = (sum.middle << (256 - UNIT_SHIFT)) | (sum.low >> UNIT_SHIFT);
            return Partial([bytes32(0), bytes32(high), bytes32(low)]);
        }
    }

    function ruleOf(Descriptor memory self) private pure returns (GroupRule memory) {
        bool isHalf = self.dtype == DType.F16;
        return GroupRule({
            fractionBits: digits(FRACTION_BITS, self.code),
            terms: groupOf(self),
            leastNormal: isHalf ? FLOAT16_LEAST : BFLOAT16_LEAST,
            // Volta's have not been seen to count.
            subnormals: isHalf && self.code != VOLTA
        });
    }

    function digits(uint256 table, uint8 code) private pure returns (uint256) {
        return (table >> (8 * uint256(code))) & 0xFF;
    }
}
