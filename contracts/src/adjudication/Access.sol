// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Descriptor, Descriptors, Fault, Input} from "./Descriptor.sol";

/// @notice One row for a fixed output element, at one term after another. Terms are walked like the digits of a counter, so that a row goes on by
///         one addition.
struct Row {
    uint256 size;
    int256 divisor;
    /// Offset and all coefficients times their indices, at the present term.
    int256 number;
    /// For each reduction axis: what is added to the number if it goes on by one, and all axes inside of it go back to 0.
    int256[] steps;
}

/// @title Elements that an operator reads
/// @notice Evaluates the rows of a descriptor's inputs for (output element, reduction index).
/// @dev Numbers are int64, indices below 2^40 and axes at most 16, so a numerator and a step are below 2^108 and no int256 overflows.
library Access {
    /// @notice The multi-index of a flat index, in row-major order. The flat index has to be below the product of the sizes, or 0.
    function unravel(uint64[] memory sizes, uint256 flat) internal pure returns (uint256[] memory index) {
        index = new uint256[](sizes.length);
        unchecked {
            for (uint256 axis = sizes.length; axis > 0 && flat > 0; --axis) {
                uint256 size = sizes[axis - 1];
                (index[axis - 1], flat) = (flat % size, flat / size);
            }
        }
    }

    /// @notice The rows of an input for one output element, at one term, and how many elements the input has.
    /// @param place the multi-index of the element over the iteration axes
    /// @param term the multi-index of the term over the reduction axes
    function rowsAt(Descriptor memory descriptor, Input memory input, uint256[] memory place, uint256[] memory term)
        internal
        pure
        returns (Row[] memory rows, uint256 elements)
    {
        uint256 stride = 2 + place.length + term.length;
        // Bounds the size of the view, and of everything that is done with it.
        elements = Descriptors.product(input.shape);
        if (input.affine.length != input.shape.length * stride) {
            revert Descriptors.MalformedDescriptor(Fault.AFFINE);
        }
        rows = new Row[](input.shape.length);
        for (uint256 i = 0; i < rows.length; ++i) {
            rows[i] = rowAt(input.affine, i * stride, descriptor.reduction, place, term);
            rows[i].size = input.shape[i];
        }
    }

    /// @notice The row that begins at `start` of a list of numbers: offset, divisor, coefficients.
    function rowAt(int64[] memory numbers, uint256 start, uint64[] memory sizes, uint256[] memory place, uint256[] memory term)
        internal
        pure
        returns (Row memory row)
    {
        row.divisor = numbers[start + 1];
        if (row.divisor < 1) revert Descriptors.MalformedDescriptor(Fault.DIVISOR);
        int256 number = numbers[start];
        start += 2;
        for (uint256 axis = 0; axis < place.length; ++axis) {
            number += int256(numbers[start + axis]) * int256(place[axis]);
        }
        start += place.length;
        row.steps = new int256[](term.length);
        // How far the axes inside have come when they go back.
        int256 inside = 0;
        for (uint256 axis = term.length; axis > 0; --axis) {
            int256 coefficient = numbers[start + axis - 1];
            number += coefficient * int256(term[axis - 1]);
            row.steps[axis - 1] = coefficient - inside;
            inside += coefficient * (int256(uint256(sizes[axis - 1])) - 1);
        }
        row.number = number;
    }

    /// @notice Goes on to the next term, at which `axis` is one more and all axes inside of it are 0.
    /// @dev Written out, as `read` is, because a segment's whole work runs here:  row.number += row.steps[axis]  for every row.
    function move(Row[] memory rows, uint256 axis) internal pure {
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            let offset := shl(5, add(axis, 1))
            let end := add(add(rows, 0x20), shl(5, mload(rows)))
            for { let slot := add(rows, 0x20) } lt(slot, end) { slot := add(slot, 0x20) } {
                let row := mload(slot)
                let present := add(row, 0x40)
                mstore(present, add(mload(present), mload(add(mload(add(row, 0x60)), offset))))
            }
        }
    }

    /// @notice The flat index of the element that is read, and whether there is one: every division without rest, every coordinate inside.
    /// @dev A negative coordinate is a large one where it is compared with the size.
    function read(Row[] memory rows) internal pure returns (uint256 flat, bool valid) {
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            valid := 1
            let end := add(add(rows, 0x20), shl(5, mload(rows)))
            for { let slot := add(rows, 0x20) } lt(slot, end) { slot := add(slot, 0x20) } {
                let row := mload(slot)
                let size := mload(row)
                let divisor := mload(add(row, 0x20))
                let place := mload(add(row, 0x40))
                if sub(divisor, 1) {
                    if smod(place, divisor) { place := not(0) }
                    if sgt(place, 0) { place := sdiv(place, divisor) }
                }
                if iszero(lt(place, size)) {
                    valid := 0
                    break
                }
                flat := add(mul(flat, size), place)
            }
        }
    }
}
