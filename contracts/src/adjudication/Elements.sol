// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Descriptor, Descriptors, DType, Family, Fault} from "./Descriptor.sol";
import {Finding, IFunctions} from "./IAdjudicator.sol";
import {Numbers} from "./Numbers.sol";
import {ChunkOpening} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";

/// @title COPY, GATHER, MAP and FUNCTION
/// @notice Operators whose elements come from at most one element of each operand.
library Elements {
    using Descriptors for Descriptor;
    using Reading for Operands;

    /// @dev An element that reads beyond a tensor has no value, so every claim of one is wrong.
    function compute(Operands memory operands, ChunkOpening[] calldata openings, IFunctions functions, uint8 roundingBits)
        internal
        pure
        returns (Finding, uint64)
    {
        Family family = operands.descriptor.family;
        if (family == Family.COPY) return copy(operands, openings);
        if (family == Family.GATHER) return gather(operands, openings);
        (uint64[] memory x, bool valid) = readAll(operands, openings);
        if (!valid) return (Finding.STOPS, 0);
        return valueAt(operands.descriptor, x, functions, roundingBits);
    }

    /// @dev MAP or FUNCTION of elements of each operand.
    function valueAt(Descriptor memory descriptor, uint64[] memory x, IFunctions functions, uint8 roundingBits)
        private
        pure
        returns (Finding, uint64)
    {
        (uint8 code, DType to) = (descriptor.code, descriptor.dtype);
        if (descriptor.family == Family.FUNCTION) return functions.evaluate(code, x[0], to, roundingBits);
        return (Finding.VALUE, functions.map(code, x, descriptor.inputs[0].dtype, to));
    }

    /// @dev With code 1, of the loss and of what goes into the next state: a run stops at an infinity or NaN there.
    function copy(Operands memory operands, ChunkOpening[] calldata openings) private pure returns (Finding, uint64) {
        (bool isFinal, DType dtype) = (operands.descriptor.code == 1, operands.descriptor.dtype);
        for (uint256 i = 0; i < operands.rows.length; ++i) {
            (uint64 bits, bool valid) = operands.read(openings, i);
            if (valid) return (isFinal && !Numbers.isFinite(dtype, bits) ? Finding.STOPS : Finding.VALUE, bits);
        }
        return (Finding.STOPS, 0);
    }

    /// @dev Input 1 gives the coordinate of one axis of input 0, whose own row says nothing (all zero).
    function gather(Operands memory operands, ChunkOpening[] calldata openings) private pure returns (Finding, uint64) {
        uint256 axis = operands.descriptor.natural(0);
        if (axis >= operands.rows[0].length) revert Descriptors.MalformedDescriptor(Fault.GATHER_AXIS);
        (uint64 bits, bool valid) = operands.read(openings, 1);
        // forge-lint: disable-next-line(unsafe-typecast)
        operands.rows[0][axis].number = int64(bits);
        operands.rows[0][axis].divisor = 1;
        if (valid) (bits, valid) = operands.read(openings, 0);
        return valid ? (Finding.VALUE, bits) : (Finding.STOPS, uint64(0));
    }

    function readAll(Operands memory operands, ChunkOpening[] calldata openings)
        private
        pure
        returns (uint64[] memory x, bool valid)
    {
        x = new uint64[](operands.rows.length);
        valid = true;
        for (uint256 i = 0; valid && i < x.length; ++i) {
            (x[i], valid) = operands.read(openings, i);
        }
    }
}
