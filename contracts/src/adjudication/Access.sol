// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Descriptor, Descriptors, Fault, Input} from "./Descriptor.sol";

/// @notice The affine forms of one row after another for a fixed output element: what is left to add are the reduction axes.
struct Row {
    uint256 size;
    int256 divisor;
    /// Offset and iteration axes, added up.
    int256 base;
    /// One for every reduction axis.
    int256[] coefficients;
}

/// @title Which element an operator reads
/// @notice Evaluates the rows of a descriptor's inputs for (output element, reduction index).
/// @dev Numbers are int64, indices below 2^40 and axes at most 16, so a numerator is below 2^108 and no int256 overflows.
library Access {
    /// @notice The multi-index of a flat index, in row-major order. The flat index has to be below the product of the sizes.
    function unravel(uint64[] memory sizes, uint256 flat) internal pure returns (uint256[] memory index) {
        index = new uint256[](sizes.length);
        unravelInto(index, sizes, flat);
    }

    /// @notice The same into an array that is there already, of the same length.
    function unravelInto(uint256[] memory index, uint64[] memory sizes, uint256 flat) internal pure {
        unchecked {
            for (uint256 axis = sizes.length; axis > 1; --axis) {
                uint256 size = sizes[axis - 1];
                (index[axis - 1], flat) = (flat % size, flat / size);
            }
            if (sizes.length > 0) index[0] = flat;
        }
    }

    /// @notice The rows of an input for one output element, and how many elements the input has.
    /// @param index the multi-index of the element over the iteration axes
    function rowsAt(Descriptor memory descriptor, Input memory input, uint256[] memory index)
        internal
        pure
        returns (Row[] memory rows, uint256 elements)
    {
        uint256 reductions = descriptor.reduction.length;
        uint256 stride = 2 + index.length + reductions;
        // Bounds the size of the view, and of everything that is done with it.
        elements = Descriptors.product(input.shape);
        if (input.affine.length != input.shape.length * stride) {
            revert Descriptors.MalformedDescriptor(Fault.AFFINE);
        }
        rows = new Row[](input.shape.length);
        for (uint256 i = 0; i < rows.length; ++i) {
            rows[i] = rowAt(input.affine, i * stride, index, reductions);
            rows[i].size = input.shape[i];
        }
    }

    /// @notice The row that begins at `start` of a list of numbers: offset, divisor, coefficients.
    function rowAt(int64[] memory numbers, uint256 start, uint256[] memory index, uint256 reductions)
        internal
        pure
        returns (Row memory row)
    {
        if (start + 2 + index.length + reductions > numbers.length) revert Descriptors.MalformedDescriptor(Fault.AFFINE);
        row.divisor = numbers[start + 1];
        if (row.divisor < 1) revert Descriptors.MalformedDescriptor(Fault.DIVISOR);
        int256 base = numbers[start];
        for (uint256 axis = 0; axis < index.length; ++axis) {
            base += int256(numbers[start + 2 + axis]) * int256(index[axis]);
        }
        row.base = base;
        row.coefficients = new int256[](reductions);
        for (uint256 axis = 0; axis < reductions; ++axis) {
            row.coefficients[axis] = numbers[start + 2 + index.length + axis];
        }
    }

    /// @notice The coordinate of a row at a reduction index, and whether it exists (the division leaves no rest).
    function coordinate(Row memory row, uint256[] memory index) internal pure returns (int256 quotient, bool exists) {
        unchecked {
            int256 number = row.base;
            int256[] memory coefficients = row.coefficients;
            for (uint256 axis = 0; axis < index.length; ++axis) {
                number += coefficients[axis] * int256(index[axis]);
            }
            if (row.divisor == 1) return (number, true);
            return (number / row.divisor, number % row.divisor == 0);
        }
    }

    /// @notice The flat index of the element that is read at a reduction index, and whether there is one.
    function read(Row[] memory rows, uint256[] memory index) internal pure returns (uint256 flat, bool valid) {
        unchecked {
            for (uint256 i = 0; i < rows.length; ++i) {
                (int256 place, bool exists) = coordinate(rows[i], index);
                if (!exists || place < 0 || place >= int256(rows[i].size)) return (0, false);
                flat = flat * rows[i].size + uint256(place);
            }
            return (flat, true);
        }
    }
}
