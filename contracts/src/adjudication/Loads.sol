// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32} from "../arithmetic/Rounding.sol";
import {Descriptor, Descriptors, DType, Family, Fault} from "./Descriptor.sol";
import {Finding, IFunctions, Setting} from "./IAdjudicator.sol";
import {Bytes, ChunkOpening, Openings, Tensor} from "./Openings.sol";

/// @title STATE, DATA, SCHEDULE, CONSTANT, IOTA and UNIFORM
/// @notice Operators without operands. What they open instead (`ChunkOpening.input` counts them):
///           STATE      0: the slot's tensor root, 32 bytes, leaf `slot` of the agreed state; 1: the chunk of that tensor
///           DATA       0: the field's tensor root, 32 bytes, leaf `field` of the data set; 1: the chunk of that tensor
///           SCHEDULE   0: the chunk of the schedule
///           CONSTANT   0: the chunk of the tensor under the descriptor's root, if the literals are not in the descriptor
library Loads {
    using Descriptors for Descriptor;

    error WrongNumberOfOpenings(uint256 given, uint256 expected);
    /// @notice Philox keys have 32 bits for the step.
    error StepOutOfRange(uint64 step);

    /// @param functions what random numbers are asked of
    function compute(
        Setting calldata setting,
        Descriptor memory descriptor,
        uint64 element,
        ChunkOpening[] calldata openings,
        IFunctions functions
    ) internal pure returns (Finding, uint64) {
        descriptor.requireElement(element);
        return (Finding.VALUE, valueOf(setting, descriptor, element, openings, functions));
    }

    function valueOf(
        Setting calldata setting,
        Descriptor memory descriptor,
        uint64 element,
        ChunkOpening[] calldata openings,
        IFunctions functions
    ) private pure returns (uint64) {
        Family family = descriptor.family;
        if (family == Family.STATE) return state(setting, descriptor, element, openings);
        if (family == Family.DATA) return data(setting, descriptor, element, openings, functions);
        if (family == Family.SCHEDULE) return schedule(setting, descriptor, openings);
        if (family == Family.CONSTANT) return constant_(setting, descriptor, element, openings);
        requireOpenings(openings, 0);
        return family == Family.IOTA ? iota(descriptor, element) : uniform(setting, descriptor, element, functions);
    }

    function state(Setting calldata setting, Descriptor memory descriptor, uint64 element, ChunkOpening[] calldata openings)
        private
        pure
        returns (uint64)
    {
        requireOpenings(openings, 2);
        uint256 slot = descriptor.natural(0);
        Openings.requireLeaf(openings[0], 0, slot, 32, setting.agreedState, setting.spec.stateCount);
        Tensor memory tensor = Tensor(bytes32(openings[0].data), descriptor.dtype, descriptor.elements(), 1);
        return Openings.elementIn(openings[1], tensor, element, setting.spec.chunkSize);
    }

    /// @dev Parameters: the field, the number of fields, elements of a row, and elements from the start of a row to that of the next. So
    ///      rows may stand one behind the other, overlap, or leave gaps. Element i belongs to sample i / items of the batch.
    ///      INVARIANT: factors are below 2^64, and a field has at most 2^40 elements, so nothing overflows, here or in its tree.
    function data(
        Setting calldata setting,
        Descriptor memory descriptor,
        uint64 element,
        ChunkOpening[] calldata openings,
        IFunctions functions
    ) private pure returns (uint64) {
        requireOpenings(openings, 2);
        uint256 width = Descriptors.storedWidth(descriptor);
        Bytes memory field = Bytes(0, fieldElements(setting, descriptor) * width, 1);
        // forge-lint: disable-next-line(unsafe-typecast)
        Openings.requireLeaf(openings[0], 0, descriptor.natural(0), 32, setting.spec.dataRoot, uint64(descriptor.natural(1)));
        field.root = bytes32(openings[0].data);
        uint256 start = placeInField(setting, descriptor, element, functions) * width;
        return widened(Openings.numberIn(openings[1], field, start, width, setting.spec.chunkSize), descriptor.code);
    }

    /// @dev Elements of a field of data. INVARIANT: a row has at least one.
    function fieldElements(Setting calldata setting, Descriptor memory descriptor) private pure returns (uint256 elements) {
        uint256 items = descriptor.natural(2);
        if (items == 0 || setting.spec.dataRows == 0) revert Descriptors.MalformedDescriptor(Fault.EMPTY);
        elements = (uint256(setting.spec.dataRows) - 1) * descriptor.natural(3) + items;
        if (elements > Descriptors.MAX_SIZE) revert Descriptors.MalformedDescriptor(Fault.RANGE);
    }

    function placeInField(Setting calldata setting, Descriptor memory descriptor, uint256 element, IFunctions functions)
        private
        pure
        returns (uint256)
    {
        uint256 items = descriptor.natural(2);
        return rowOf(setting, element / items, functions) * descriptor.natural(3) + element % items;
    }

    /// @dev The int64 of a stored integer: `Descriptors.storedWidth` says which codes have a sign.
    function widened(uint64 bits, uint8 code) private pure returns (uint64) {
        // forge-lint: disable-start(unsafe-typecast)
        if (code == 2) return uint64(int64(int8(uint8(bits))));
        if (code == 3) return uint64(int64(int16(uint16(bits))));
        if (code == 5) return uint64(int64(int32(uint32(bits))));
        // forge-lint: disable-end(unsafe-typecast)
        return bits;
    }

    function rowOf(Setting calldata setting, uint256 sample, IFunctions functions) private pure returns (uint256) {
        uint256 position = uint256(setting.step) * setting.spec.batchSize + sample;
        return functions.rowOfPosition(setting.spec.seed, position, setting.spec.dataRows);
    }

    function schedule(Setting calldata setting, Descriptor memory descriptor, ChunkOpening[] calldata openings)
        private
        pure
        returns (uint64)
    {
        requireOpenings(openings, 1);
        (uint256 column, uint256 columns) = (descriptor.natural(0), descriptor.natural(1));
        uint256 elements = uint256(setting.spec.steps) * columns;
        if (column >= columns || elements > Descriptors.MAX_SIZE) revert Descriptors.MalformedDescriptor(Fault.RANGE);
        Tensor memory tensor = Tensor(setting.spec.scheduleRoot, DType.F32, elements, 0);
        return Openings.elementIn(openings[0], tensor, uint256(setting.step) * columns + column, setting.spec.chunkSize);
    }

    function constant_(Setting calldata setting, Descriptor memory descriptor, uint64 element, ChunkOpening[] calldata openings)
        private
        pure
        returns (uint64)
    {
        uint256 literals = descriptor.parameters.length;
        if (literals == 0) {
            requireOpenings(openings, 1);
            Tensor memory tensor = Tensor(descriptor.root, descriptor.dtype, descriptor.elements(), 0);
            return Openings.elementIn(openings[0], tensor, element, setting.spec.chunkSize);
        }
        requireOpenings(openings, 0);
        // forge-lint: disable-next-line(unsafe-typecast)
        uint64 bits = uint64(descriptor.parameter(literals == 1 ? 0 : element));
        uint256 size = descriptor.dtype == DType.BOOL ? 1 : 8 * Descriptors.width(descriptor.dtype);
        if (descriptor.dtype != DType.I64 && bits >> size != 0) revert Descriptors.MalformedDescriptor(Fault.RANGE);
        return bits;
    }

    function iota(Descriptor memory descriptor, uint64 element) private pure returns (uint64) {
        int256 number = int256(descriptor.parameter(0)) + int256(descriptor.parameter(1)) * int256(uint256(element));
        if (number < type(int64).min || number > type(int64).max) revert Descriptors.MalformedDescriptor(Fault.RANGE);
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint64(int64(number));
    }

    function uniform(Setting calldata setting, Descriptor memory descriptor, uint64 element, IFunctions functions)
        private
        pure
        returns (uint64)
    {
        uint256 stream = descriptor.natural(0);
        if (stream > type(uint32).max) revert Descriptors.MalformedDescriptor(Fault.RANGE);
        if (setting.step > type(uint32).max) revert StepOutOfRange(setting.step);
        // forge-lint: disable-next-line(unsafe-typecast)
        return Float32.unwrap(functions.uniform(setting.spec.seed, uint32(setting.step), uint32(stream), element));
    }

    function requireOpenings(ChunkOpening[] calldata openings, uint256 count) private pure {
        if (openings.length != count) revert WrongNumberOfOpenings(openings.length, count);
    }
}
