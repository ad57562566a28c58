// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Rounding} from "../arithmetic/Rounding.sol";
import {GroupRule, TensorCore} from "../arithmetic/TensorCore.sol";
import {Descriptor, DType} from "./Descriptor.sol";
import {Numbers} from "./Numbers.sol";

/// @title CHAIN: products of two inputs, added group by group as the tensor cores of a family of GPUs do
/// @notice The code is the family's: 0 hopper, 1 ampere, 2 volta (docs/arithmetic.md). A running result is the FP32 number to which the next
///         group is added, NaN once a group had no value; segments are whole groups.
library Chains {
    uint8 private constant VOLTA = 2;
    /// @dev Products of a group of 16-bit operands, and bits that are kept below the largest exponent: a byte for each code.
    uint256 private constant GROUPS = 0x040810;
    uint256 private constant FRACTION_BITS = 0x171819;
    /// @dev Biased exponents of the least normal numbers.
    uint256 private constant BFLOAT16_LEAST = 1;
    uint256 private constant FLOAT16_LEAST = 113;

    /// @notice No group makes this pattern.
    error NoRunningResult(uint256 pattern);

    /// @notice Products of a group.
    function groupOf(Descriptor memory self) internal pure returns (uint256) {
        return digits(GROUPS, self.code);
    }

    /// @notice The dtype that both operands have: the first one's if the family is defined for it, else one that it is defined for.
    function operandOf(Descriptor memory self) internal pure returns (DType) {
        DType first = self.inputs[0].dtype;
        return first == DType.BF16 && self.code != VOLTA ? first : DType.F16;
    }

    /// @notice Goes on from `total`, a running result, over whole groups, the last of which may not be full.
    /// @param pairs for each term the operands' bits, the first one's shifted by 32: those of FP32 for BF16, else FP16's own
    function extend(uint8 code, DType dtype, uint256 total, uint64[] calldata pairs) internal pure returns (uint256) {
        if (!isRunning(total)) revert NoRunningResult(total);
        bool isHalf = dtype == DType.F16;
        GroupRule memory rule = ruleOf(code, isHalf);
        uint256[] memory a = new uint256[](rule.terms);
        uint256[] memory b = new uint256[](rule.terms);
        for (uint256 start = 0; start < pairs.length && total != Rounding.NAN; start += rule.terms) {
            for (uint256 i = 0; i < rule.terms; ++i) {
                // A group that is not full has products of two zeros instead.
                uint256 pair = start + i < pairs.length ? pairs[start + i] : 0;
                (uint256 x, uint256 y) = (pair >> 32, pair & type(uint32).max);
                (a[i], b[i]) = isHalf ? (Numbers.ofHalf(x), Numbers.ofHalf(y)) : (x, y);
            }
            (uint32 pattern, bool hasValue) = TensorCore.group(rule, total, a, b);
            total = hasValue ? pattern : Rounding.NAN;
        }
        return total;
    }

    function ruleOf(uint8 code, bool isHalf) private pure returns (GroupRule memory) {
        return GroupRule({
            fractionBits: digits(FRACTION_BITS, code),
            terms: digits(GROUPS, code),
            leastNormal: isHalf ? FLOAT16_LEAST : BFLOAT16_LEAST,
            // Volta's have not been seen to count.
            subnormals: isHalf && code != VOLTA
        });
    }

    function digits(uint256 table, uint8 code) private pure returns (uint256) {
        return (table >> (8 * uint256(code))) & 0xFF;
    }

    /// @dev Whether a pattern is a running result: NaN, or a finite number other than -0.
    function isRunning(uint256 pattern) private pure returns (bool) {
        return pattern == Rounding.NAN || (pattern <= type(uint32).max && Binary32.isFinite(pattern) && pattern != Rounding.SIGN);
    }
}
