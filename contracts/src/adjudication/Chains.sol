// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Rounding} from "../arithmetic/Rounding.sol";
import {TensorCore} from "../arithmetic/TensorCore.sol";
import {Descriptor, DType} from "./Descriptor.sol";
import {ChunkOpening} from "./Openings.sol";
import {Numbers} from "./Numbers.sol";
import {Operands, Reading} from "./Operands.sol";

/// @title CHAIN: products of two inputs, added group by group as the tensor cores of a family of GPUs do
/// @notice The code is the family's: 0 hopper, 1 ampere, 2 volta (docs/arithmetic.md). A running result is the FP32 number to which the next
///         group is added, NaN once a group had no value; segments are whole groups.
library Chains {
    using Reading for Operands;

    uint8 private constant VOLTA = 2;
    /// @dev Products of a group of 16-bit operands, a byte for each code.
    uint256 private constant GROUPS = 0x040810;

    /// @notice Products of a group.
    function groupOf(Descriptor memory self) internal pure returns (uint256) {
        return (GROUPS >> (8 * uint256(self.code))) & 0xFF;
    }

    /// @notice The dtype that both operands have: the first one's if the family is defined for it, else one that it is defined for.
    function operandOf(Descriptor memory self) internal pure returns (DType) {
        DType first = self.inputs[0].dtype;
        return first == DType.BF16 && self.code != VOLTA ? first : DType.F16;
    }

    /// @notice Goes on from `before`, a pattern of FP32, over the terms that are left.
    function extend(Operands memory operands, ChunkOpening[] calldata openings, uint256 before) internal pure returns (uint256 total) {
        total = before;
        uint256 size = groupOf(operands.descriptor);
        bool isHalf = operands.descriptor.inputs[0].dtype == DType.F16;
        uint256[] memory a = new uint256[](size);
        uint256[] memory b = new uint256[](size);
        while (operands.left > 0) {
            uint256 count = 0;
            for (uint256 i = 0; i < size && operands.left > 0; ++i) {
                (uint256 x, bool valid) = operands.read(openings, 0);
                if (valid) {
                    uint256 y;
                    (y, valid) = operands.read(openings, 1);
                    if (valid) {
                        (a[count], b[count]) = isHalf ? (Numbers.ofHalf(x), Numbers.ofHalf(y)) : (x, y);
                        ++count;
                    }
                }
                operands.next();
            }
            if (total != Rounding.NAN) total = TensorCore.group(operands.descriptor.code, isHalf, total, a, b, count);
        }
    }

    /// @notice Whether a pattern is a running result: NaN, or a finite number other than -0.
    function isRunning(uint256 pattern) internal pure returns (bool) {
        return pattern == Rounding.NAN || (pattern <= type(uint32).max && Binary32.isFinite(pattern) && pattern != Rounding.SIGN);
    }
}
