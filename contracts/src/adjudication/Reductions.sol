// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Accumulator, ExactSum, Total} from "../arithmetic/ExactSum.sol";
import {Float32, Rounding} from "../arithmetic/Rounding.sol";
import {Access} from "./Access.sol";
import {Chains} from "./Chains.sol";
import {Descriptor, Descriptors, DType, Family, Fault} from "./Descriptor.sol";
import {Finding, Partial} from "./IAdjudicator.sol";
import {Numbers} from "./Numbers.sol";
import {Index, ChunkOpening, Openings} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";

/// @notice The best of some terms, if there were any, and its label.
struct Best {
    bool found;
    Float32 value;
    int64 label;
}

/// @title SUM, SELECTED_SUM, EXTREME, ARGMAX, INTEGER_SUM, ANY and CHAIN
/// @notice Every one goes over a run of terms from one exact partial result to the next, so that a long one can be cut anywhere. A partial
///         result has one canonical form, whatever came before:
///           SUM, SELECTED_SUM   the sum in units of 2^-298, a two's complement of 768 bits, most significant word first; if terms are
///                               infinite or NaN, the pattern of what they come to in the first four bytes, and zeros
///           EXTREME             1 once there was a term; the pattern of the first best, a number of the operand's format; 0
///           ARGMAX              1 once there was a term; the same pattern; its label, an int64
///           INTEGER_SUM         0; 0; the sum modulo 2^64, an int64
///           ANY                 0; 0; 0 or 1
///           CHAIN               the pattern of what the present chain comes to, zero or a normal number; the exact sum of the chains
///                               that are at their end, in units of 2^-149, a two's complement of 512 bits; or NaN; 0; 0
///         An int64 stands as a two's complement of 256 bits.
library Reductions {
    using Descriptors for Descriptor;
    using ExactSum for Accumulator;
    using ExactSum for Total;
    using Openings for Index;
    using Reading for Operands;

    /// @notice The partial result is not one that any terms have.
    error PartialOutOfRange();

    /// @notice Goes on from `before` over the terms that are left.
    function reduce(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        internal
        pure
        returns (Partial memory afterwards)
    {
        Family family = operands.descriptor.family;
        if (family == Family.SUM) return sum(operands, openings, before);
        if (family == Family.SELECTED_SUM) return selectedSum(operands, openings, before);
        if (family == Family.CHAIN) {
            requireRunning(before);
            afterwards = Chains.extend(operands, openings, before);
            requireRunning(afterwards);
            return afterwards;
        }
        return family <= Family.ARGMAX ? extreme(operands, openings, before) : count64(operands, openings, before);
    }

    /// @notice The element whose terms came to `whole`.
    function finish(Descriptor memory descriptor, Partial memory whole, uint8 roundingBits)
        internal
        pure
        returns (Finding, uint64)
    {
        Rounding.requireFormat(roundingBits);
        if (!descriptor.isReduction()) revert Descriptors.MalformedDescriptor(Fault.FAMILY);
        if (descriptor.family <= Family.SELECTED_SUM) {
            Total memory exact = total(whole);
            ExactSum.requireInRange(exact);
            Float32 rounded = exact.rounded(Numbers.formatOf(descriptor.dtype, roundingBits));
            return (Finding.VALUE, Numbers.ofFloat32(descriptor.dtype, rounded));
        }
        if (descriptor.family <= Family.ARGMAX) {
            Best memory best = bestOf(descriptor, whole);
            if (!best.found) return (Finding.STOPS, 0);
            if (descriptor.family == Family.ARGMAX) return (Finding.VALUE, bitsOf(best.label));
            // Which of two equal zeros came first is nobody's affair.
            if (Float32.unwrap(best.value) == Rounding.SIGN) return (Finding.VALUE, 0);
            return (Finding.VALUE, Numbers.ofFloat32(descriptor.dtype, best.value));
        }
        if (descriptor.family == Family.CHAIN) {
            requireRunning(whole);
            return (Finding.VALUE, Chains.finish(descriptor.dtype, whole));
        }
        return (Finding.VALUE, countOf(descriptor, whole));
    }

    // ------------------------------------------------------------------------------------------------------------------------ sums

    function sum(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        private
        pure
        returns (Partial memory)
    {
        Accumulator memory accumulator = ExactSum.resume(total(before));
        if (operands.descriptor.dtype == DType.F16) {
            for (; operands.left > 0; operands.next()) {
                addHalfTerm(accumulator, operands, openings);
            }
        } else {
            for (; operands.left > 0; operands.next()) {
                addTerm(accumulator, operands, openings);
            }
        }
        return closed(accumulator);
    }

    /// @dev A term with a factor in the padding is left out, and none of its factors needs to be opened.
    function addTerm(Accumulator memory accumulator, Operands memory operands, ChunkOpening[] calldata openings) private pure {
        (uint256 flat, bool valid) = Access.read(operands.rows[0]);
        if (!valid) return;
        uint64 b = uint64(ExactSum.ONE);
        if (operands.rows.length == 2) (b, valid) = operands.read(openings, 1);
        if (valid) accumulator.addProduct(operands.index.element(openings, 0, flat), b);
    }

    /// @dev `addTerm` of FP16: apart, so that many terms do not ask each for its dtype.
    function addHalfTerm(Accumulator memory accumulator, Operands memory operands, ChunkOpening[] calldata openings) private pure {
        (uint256 flat, bool valid) = Access.read(operands.rows[0]);
        if (!valid) return;
        uint64 bits;
        uint256 b = ExactSum.ONE;
        if (operands.rows.length == 2) {
            (bits, valid) = operands.read(openings, 1);
            b = Numbers.ofHalf(bits);
        }
        if (valid) accumulator.addProduct(Numbers.ofHalf(operands.index.element(openings, 0, flat)), b);
    }

    function selectedSum(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        private
        pure
        returns (Partial memory)
    {
        uint64 wanted = bitsOf(operands.labelOf());
        Accumulator memory accumulator = ExactSum.resume(total(before));
        bool isHalf = operands.descriptor.dtype == DType.F16;
        for (; operands.left > 0; operands.next()) {
            (uint64 bits, bool valid) = operands.read(openings, 1);
            if (!valid || bits != wanted) continue;
            (bits, valid) = operands.read(openings, 0);
            if (valid) accumulator.addProduct(isHalf ? Numbers.ofHalf(bits) : bits, ExactSum.ONE);
        }
        return closed(accumulator);
    }

    function total(Partial memory from) private pure returns (Total memory) {
        return Total(int256(uint256(from.words[0])), uint256(from.words[1]), uint256(from.words[2]));
    }

    function closed(Accumulator memory accumulator) private pure returns (Partial memory) {
        Total memory sum_ = accumulator.total();
        return Partial([bytes32(uint256(sum_.high)), bytes32(sum_.middle), bytes32(sum_.low)]);
    }

    // -------------------------------------------------------------------------------------------------------------------- extremes

    function extreme(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        private
        pure
        returns (Partial memory)
    {
        Best memory best = bestOf(operands.descriptor, before);
        bool isHalf = operands.descriptor.inputs[0].dtype == DType.F16;
        for (; operands.left > 0; operands.next()) {
            consider(best, operands, openings, isHalf);
        }
        bytes32 found = bytes32(uint256(best.found ? 1 : 0));
        return Partial([found, bytes32(uint256(Float32.unwrap(best.value))), wordOf(best.label)]);
    }

    /// @dev Only what is better takes the place, so the first of equal ones keeps it. NaN is better than any number.
    function consider(Best memory best, Operands memory operands, ChunkOpening[] calldata openings, bool isHalf) private pure {
        (uint256 bits, bool valid) = operands.read(openings, 0);
        if (!valid) return;
        if (isHalf) bits = Numbers.ofHalf(bits);
        Float32 x = Rounding.wrap(Binary32.isNan(bits) ? Rounding.NAN : bits);
        if (best.found && !isBetter(x, best.value, operands.descriptor.code == 0)) return;
        (best.found, best.value) = (true, x);
        if (operands.descriptor.family == Family.ARGMAX) best.label = operands.labelOf();
    }

    function isBetter(Float32 x, Float32 best, bool isLargest) private pure returns (bool) {
        if (Binary32.isNan(Float32.unwrap(x))) return !Binary32.isNan(Float32.unwrap(best));
        return isLargest ? Binary32.lt(best, x) : Binary32.lt(x, best);
    }

    /// @dev INVARIANT: a running result is read only in its canonical form, so no two leaves mean the same.
    function bestOf(Descriptor memory descriptor, Partial memory before) private pure returns (Best memory) {
        (uint256 found, uint256 value) = (uint256(before.words[0]), uint256(before.words[1]));
        int64 label = integerOf(before.words[2]);
        bool isNothing = value == 0 && label == 0;
        (Float32 best, DType dtype) = (Rounding.wrap(value), descriptor.inputs[0].dtype);
        uint256 ofFormat = Float32.unwrap(Numbers.toFloat32(dtype, Numbers.ofFloat32(dtype, best)));
        if (
            found > 1 || (found == 0 && !isNothing) || value != ofFormat || (Binary32.isNan(value) && value != Rounding.NAN)
                || (label != 0 && descriptor.family == Family.EXTREME)
        ) revert PartialOutOfRange();
        return Best(found == 1, best, label);
    }

    // ---------------------------------------------------------------------------------------------------------------------- chains

    function requireRunning(Partial memory before) private pure {
        if (!Chains.isRunning(before)) revert PartialOutOfRange();
    }

    // -------------------------------------------------------------------------------------------------------------------- integers

    function count64(Operands memory operands, ChunkOpening[] calldata openings, Partial memory before)
        private
        pure
        returns (Partial memory)
    {
        bool any = operands.descriptor.family == Family.ANY;
        uint64 result = countOf(operands.descriptor, before);
        for (; operands.left > 0; operands.next()) {
            (uint64 bits, bool valid) = operands.read(openings, 0);
            if (!valid) continue;
            unchecked {
                result = any ? ((result | bits) != 0 ? 1 : 0) : result + bits;
            }
        }
        // forge-lint: disable-next-line(unsafe-typecast)
        return Partial([bytes32(0), bytes32(0), wordOf(int64(result))]);
    }

    function countOf(Descriptor memory descriptor, Partial memory before) private pure returns (uint64 result) {
        result = bitsOf(integerOf(before.words[2]));
        bool isLarge = descriptor.family == Family.ANY && result > 1;
        if (isLarge || before.words[0] | before.words[1] != 0) revert PartialOutOfRange();
    }

    function integerOf(bytes32 word) private pure returns (int64) {
        int256 number = int256(uint256(word));
        if (number < type(int64).min || number > type(int64).max) revert PartialOutOfRange();
        // forge-lint: disable-next-line(unsafe-typecast)
        return int64(number);
    }

    function wordOf(int64 number) private pure returns (bytes32) {
        return bytes32(uint256(int256(number)));
    }

    function bitsOf(int64 number) private pure returns (uint64) {
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint64(number);
    }
}
