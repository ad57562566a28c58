// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Descriptor, Descriptors, DType, Family, Fault} from "./Descriptor.sol";
import {Finding} from "./IAdjudicator.sol";
import {Opening} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";
import {Scalar, Scalars} from "./Scalars.sol";

/// @title COPY, GATHER and MAP
/// @notice Operators whose elements come from at most one element of each operand.
library Elements {
    using Descriptors for Descriptor;
    using Reading for Operands;

    function compute(Operands memory operands, Opening[] calldata openings) internal pure returns (Finding, uint64) {
        if (operands.descriptor.reduction.length != 0) revert Descriptors.MalformedDescriptor(Fault.REDUCTION);
        Family family = operands.descriptor.family;
        if (family == Family.COPY) return copy(operands, openings);
        return family == Family.GATHER ? gather(operands, openings) : map(operands, openings);
    }

    /// @dev With code 1, of what goes into the next state: a run stops at an infinity there.
    function copy(Operands memory operands, Opening[] calldata openings) private pure returns (Finding, uint64) {
        uint8 code = operands.descriptor.code;
        if (code > 1 || (code == 1 && operands.descriptor.dtype != DType.F32)) revert Descriptors.MalformedDescriptor(Fault.CODE);
        uint256[] memory none = new uint256[](0);
        for (uint256 i = 0; i < operands.rows.length; ++i) {
            operands.descriptor.requireDType(i, operands.descriptor.dtype);
            (uint64 bits, bool valid) = operands.read(openings, i, none);
            if (valid) return (code == 1 && !Binary32.isFinite(bits) ? Finding.STOPS : Finding.VALUE, bits);
        }
        revert Descriptors.MalformedDescriptor(Fault.OUTSIDE);
    }

    /// @dev Input 1 gives the coordinate of one axis of input 0, whose own row says nothing (all zero).
    function gather(Operands memory operands, Opening[] calldata openings) private pure returns (Finding, uint64) {
        operands.descriptor.requireInputs(2);
        operands.descriptor.requireDType(0, operands.descriptor.dtype);
        operands.descriptor.requireDType(1, DType.I64);
        uint256 axis = operands.descriptor.natural(0);
        if (axis >= operands.rows[0].length) revert Descriptors.MalformedDescriptor(Fault.GATHER_AXIS);
        // forge-lint: disable-next-line(unsafe-typecast)
        int64 chosen = int64(operands.mustRead(openings, 1));
        if (chosen < 0 || uint64(chosen) >= operands.rows[0][axis].size) return (Finding.STOPS, 0);
        operands.rows[0][axis].base = chosen;
        operands.rows[0][axis].divisor = 1;
        return (Finding.VALUE, operands.mustRead(openings, 0));
    }

    function map(Operands memory operands, Opening[] calldata openings) private pure returns (Finding, uint64) {
        Scalar code = Scalars.parse(operands.descriptor);
        uint64[] memory x = new uint64[](operands.rows.length);
        for (uint256 i = 0; i < x.length; ++i) {
            x[i] = operands.mustRead(openings, i);
        }
        return Scalars.map(code, x);
    }
}
