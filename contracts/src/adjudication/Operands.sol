// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Access, Row} from "./Access.sol";
import {Descriptor, Descriptors, Fault, Input} from "./Descriptor.sol";
import {Question} from "./IAdjudicator.sol";
import {Index, Opening, Openings, Tensor} from "./Openings.sol";

/// @notice The operands of one output element, ready to be read.
struct Operands {
    Descriptor descriptor;
    Index index;
    /// By operand, then by view axis.
    Row[][] rows;
    /// For each operand the first one that is the same value: its chunks are opened once.
    uint256[] tensor;
}

/// @title Descriptor and openings together
library Reading {
    using Openings for Index;

    error WrongNumberOfRoots(uint256 given, uint256 expected);

    /// @notice Checks the openings and works out the rows for an element.
    function open(Descriptor memory descriptor, Question calldata question, Opening[] calldata openings, uint32 chunkSize)
        internal
        pure
        returns (Operands memory self)
    {
        Descriptors.requireElement(descriptor, question.element);
        uint256 count = descriptor.inputs.length;
        if (question.roots.length != count) revert WrongNumberOfRoots(question.roots.length, count);
        self.descriptor = descriptor;
        self.rows = new Row[][](count);
        self.tensor = new uint256[](count);
        Tensor[] memory tensors = new Tensor[](count);
        uint256[] memory place = Access.unravel(descriptor.iteration, question.element);
        for (uint256 i = 0; i < count; ++i) {
            Input memory input = descriptor.inputs[i];
            uint256 elements = 0;
            (self.rows[i], elements) = Access.rowsAt(descriptor, input, place);
            tensors[i] = Tensor(question.roots[i], input.dtype, elements);
            uint256 first = 0;
            while (descriptor.inputs[first].value != input.value) ++first;
            self.tensor[i] = first;
            // INVARIANT: a value has one dtype and one size, or its chunks would mean something else to another operand.
            if (descriptor.inputs[first].dtype != input.dtype || tensors[first].elements != elements) {
                revert Descriptors.MalformedDescriptor(Fault.ALIAS);
            }
        }
        self.index = Openings.check(openings, tensors, chunkSize);
    }

    /// @notice The bits that operand `i` contributes at a reduction index, and whether it reads anything there.
    function read(Operands memory self, Opening[] calldata openings, uint256 i, uint256[] memory reduction)
        internal
        pure
        returns (uint64 bits, bool valid)
    {
        uint256 flat;
        (flat, valid) = Access.read(self.rows[i], reduction);
        if (valid) bits = bitsAt(self, openings, i, flat);
    }

    /// @notice The bits of an element of operand `i`.
    function bitsAt(Operands memory self, Opening[] calldata openings, uint256 i, uint256 flat) internal pure returns (uint64) {
        return self.index.element(openings, self.tensor[i], self.descriptor.inputs[i].dtype, flat);
    }

    /// @notice The same for an operator without terms.
    function readOne(Operands memory self, Opening[] calldata openings, uint256 i) internal pure returns (uint64, bool) {
        return read(self, openings, i, new uint256[](0));
    }
}
