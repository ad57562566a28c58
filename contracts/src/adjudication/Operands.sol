// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Access, Row} from "./Access.sol";
import {Descriptor, Descriptors, Fault, Input} from "./Descriptor.sol";
import {Question} from "./IAdjudicator.sol";
import {Index, ChunkOpening, Openings, Tensor} from "./Openings.sol";

/// @notice The operands of one output element, ready to be read at one term after another.
struct Operands {
    Descriptor descriptor;
    Index index;
    /// By operand, then by view axis.
    Row[][] rows;
    /// ARGMAX and SELECTED_SUM: what names the term or the element. One row, or none.
    Row[] label;
    /// The multi-index of the present term, and how many terms are left with it.
    uint256[] term;
    uint256 left;
}

/// @title Descriptor and openings together
library Reading {
    using Descriptors for Descriptor;
    using Openings for Index;

    error NoSuchSegment(uint256 segment, uint256 segments);
    error WrongNumberOfRoots(uint256 given, uint256 expected);

    /// @notice Checks the openings and works out the rows for an element, at the first term of a segment.
    /// @param segment 0 for what is no reduction
    function open(
        Descriptor memory descriptor,
        Question calldata question,
        uint256 segment,
        ChunkOpening[] calldata openings,
        uint32 chunkSize
    ) internal pure returns (Operands memory self) {
        Descriptors.requireElement(descriptor, question.element);
        self.descriptor = descriptor;
        uint256[] memory place = Access.unravel(descriptor.iteration, question.element);
        startAt(self, segment, place);
        self.index = Openings.check(openings, tensorsOf(self, question.roots, place), chunkSize, descriptor.isReduction());
    }

    function startAt(Operands memory self, uint256 segment, uint256[] memory place) private pure {
        Descriptor memory descriptor = self.descriptor;
        if (!descriptor.isReduction()) return;
        uint256 count = descriptor.segments();
        if (segment >= count) revert NoSuchSegment(segment, count);
        uint256 first = segment * descriptor.segment;
        self.left = descriptor.terms() - first;
        if (self.left > descriptor.segment) self.left = descriptor.segment;
        self.term = Access.unravel(descriptor.reduction, first);
        // Only with a label there are parameters, and then as many as the row needs.
        if (descriptor.parameters.length == 0) return;
        self.label = new Row[](1);
        self.label[0] = Access.rowAt(descriptor.parameters, 0, descriptor.reduction, place, self.term);
    }

    function tensorsOf(Operands memory self, bytes32[] calldata roots, uint256[] memory place)
        private
        pure
        returns (Tensor[] memory tensors)
    {
        Descriptor memory descriptor = self.descriptor;
        uint256 count = descriptor.inputs.length;
        if (roots.length != count) revert WrongNumberOfRoots(roots.length, count);
        self.rows = new Row[][](count);
        tensors = new Tensor[](count);
        for (uint256 i = 0; i < count; ++i) {
            Input memory input = descriptor.inputs[i];
            uint256 elements = 0;
            (self.rows[i], elements) = Access.rowsAt(descriptor, input, place, self.term);
            uint256 first = 0;
            while (descriptor.inputs[first].value != input.value) ++first;
            tensors[i] = Tensor(roots[i], input.dtype, elements, first);
            // INVARIANT: a value has one dtype and one size, or its chunks would mean something else to another operand.
            if (descriptor.inputs[first].dtype != input.dtype || tensors[first].elements != elements) {
                revert Descriptors.MalformedDescriptor(Fault.ALIAS);
            }
        }
    }

    /// @notice Goes on to the next term, if there is one.
    function next(Operands memory self) internal pure {
        unchecked {
            if (--self.left == 0) return;
            uint256[] memory term = self.term;
            uint64[] memory sizes = self.descriptor.reduction;
            uint256 axis = term.length - 1;
            // INVARIANT: a term is left, so an axis has not come to its end.
            while (++term[axis] == sizes[axis]) term[axis--] = 0;
            Row[][] memory rows = self.rows;
            for (uint256 i = 0; i < rows.length; ++i) {
                Access.move(rows[i], axis);
            }
            if (self.label.length > 0) Access.move(self.label, axis);
        }
    }

    /// @notice The bits that operand `i` contributes to the present term (of BF16 to a reduction: those of FP32), and whether it reads
    ///         anything there.
    function read(Operands memory self, ChunkOpening[] calldata openings, uint256 i)
        internal
        pure
        returns (uint64 bits, bool valid)
    {
        uint256 flat;
        (flat, valid) = Access.read(self.rows[i]);
        if (valid) bits = self.index.element(openings, i, flat);
    }

    /// @notice The present label.
    function labelOf(Operands memory self) internal pure returns (int64) {
        (int256 number, int256 divisor) = (self.label[0].number, self.label[0].divisor);
        if (divisor != 1 || number < type(int64).min || number > type(int64).max) {
            revert Descriptors.MalformedDescriptor(Fault.LABEL);
        }
        // forge-lint: disable-next-line(unsafe-typecast)
        return int64(number);
    }
}
