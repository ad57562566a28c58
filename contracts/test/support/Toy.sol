// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, DType, Family, Input} from "../../src/adjudication/Descriptor.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice A training step small enough to be worked out by hand. The state is w, five numbers, and s, their sum after the step; a step adds
///         one to each of the five. All numbers are integers below 2^24, so FP32 holds them exactly; a chunk holds two of them.
///
///           q  operator            elements  chunks  segments
///           0  STATE slot 0        5         3
///           1  CONSTANT 1.0        1         1
///           2  MAP FLOAT_ADD(0, 1)   5         3
///           3  SUM(2)              1         1       3, of two terms
///           4  COPY(2), slot 0     5         3
///           5  COPY(3), slot 1     1         1
///
///         A trace has 8 leaves a half: the operators and a gap of two, the two slots and six of padding.
library Toy {
    uint64 internal constant OPERATORS = 6;
    uint64 internal constant SLOTS = 2;
    uint64 internal constant HALF = 8;
    uint32 internal constant CHUNK_SIZE = 8;
    uint256 internal constant ELEMENTS = 5;
    uint256 internal constant SUM = 3;
    uint256 internal constant SEGMENT = 2;
    uint256 internal constant SEGMENTS = 3;

    /// @notice w and s before the first step.
    function initial() internal pure returns (uint256[] memory numbers) {
        numbers = new uint256[](ELEMENTS + 1);
        for (uint256 i = 0; i < ELEMENTS; ++i) {
            numbers[i] = 10 * (i + 1);
        }
    }

    // ---------------------------------------------------------------------------------------------------------------- the program

    function descriptor(uint256 q) internal pure returns (bytes memory) {
        Descriptor memory d;
        d.family = [Family.STATE, Family.CONSTANT, Family.MAP, Family.SUM, Family.COPY, Family.COPY][q];
        if (q == 0 || q == 2 || q == 4) d.iteration = sizes(uint64(ELEMENTS));
        if (q < 2) d.parameters = new int64[](1);
        if (q == 1) d.parameters[0] = int64(uint64(float(1)));
        if (q == SUM) (d.segment, d.reduction) = (uint32(SEGMENT), sizes(uint64(ELEMENTS)));
        uint64[] memory read = operands(q);
        d.inputs = new Input[](read.length);
        for (uint256 i = 0; i < read.length; ++i) {
            d.inputs[i].value = read[i];
            if (read[i] % 2 == 1) continue; // one element, read by all
            d.inputs[i].shape = sizes(uint64(ELEMENTS));
            d.inputs[i].affine = new int64[](3);
            (d.inputs[i].affine[1], d.inputs[i].affine[2]) = (1, 1);
        }
        return abi.encode(d);
    }

    function sizes(uint64 size) private pure returns (uint64[] memory one) {
        one = new uint64[](1);
        one[0] = size;
    }

    function operands(uint256 q) internal pure returns (uint64[] memory read) {
        read = new uint64[](q < 2 ? 0 : q == 2 ? 2 : 1);
        if (q == 2) (read[0], read[1]) = (0, 1);
        else if (q > 2) read[0] = q == 5 ? 3 : 2;
    }

    // -------------------------------------------------------------------------------------------------------------------- running

    /// @notice What the operators compute from w and s, if the one numbered `bent` puts `delta` on top of its first number.
    function outputs(uint256[] memory before, uint256 bent, uint256 delta) internal pure returns (uint256[][] memory computed) {
        computed = new uint256[][](OPERATORS);
        for (uint256 q = 0; q < OPERATORS; ++q) {
            computed[q] = new uint256[](q % 2 == 0 ? ELEMENTS : 1);
            for (uint256 i = 0; i < computed[q].length; ++i) {
                if (q == 0) computed[q][i] = before[i];
                if (q == 1) computed[q][i] = 1;
                if (q == 2) computed[q][i] = computed[0][i] + computed[1][0];
                if (q == 4) computed[q][i] = computed[2][i];
                if (q == 5) computed[q][i] = computed[3][0];
            }
            if (q == SUM) {
                for (uint256 i = 0; i < ELEMENTS; ++i) {
                    computed[q][0] += computed[2][i];
                }
            }
            if (q == bent) computed[q][0] += delta;
        }
    }

    /// @notice w and s as the two stores keep them.
    function stored(uint256[][] memory computed) internal pure returns (uint256[] memory numbers) {
        numbers = new uint256[](ELEMENTS + 1);
        for (uint256 i = 0; i < ELEMENTS; ++i) {
            numbers[i] = computed[4][i];
        }
        numbers[ELEMENTS] = computed[5][0];
    }

    /// @notice The running results of the sum's terms, of which the ones from segment `bent` on are `delta` too large.
    function partials(uint256[] memory terms, uint256 bent, uint256 delta) internal pure returns (bytes32[3][] memory results) {
        results = new bytes32[3][](SEGMENTS);
        uint256 sum = 0;
        for (uint256 i = 0; i < terms.length; ++i) {
            sum += terms[i];
            uint256 claimed = i / SEGMENT < bent ? sum : sum + delta;
            // In units of 2^-298: 42 bits above the lowest word.
            results[i / SEGMENT][1] = bytes32(claimed << 42);
        }
    }

    // ---------------------------------------------------------------------------------------------------------------------- trees

    /// @notice The pattern of an integer below 2^24.
    function float(uint256 number) internal pure returns (uint32) {
        require(number < 1 << 24, "not exact");
        if (number == 0) return 0;
        uint256 exponent = 0;
        while (number >> (exponent + 1) != 0) ++exponent;
        return uint32(((exponent + 127) << 23) | ((number << (23 - exponent)) & 0x7FFFFF));
    }

    /// @notice Chunk number `index` of a tensor: two numbers, or the last one.
    function chunk(uint256[] memory numbers, uint256 index) internal pure returns (bytes memory data) {
        for (uint256 i = 2 * index; i < numbers.length && i < 2 * index + 2; ++i) {
            uint32 bits = float(numbers[i]);
            data = bytes.concat(
                data, bytes1(uint8(bits)), bytes1(uint8(bits >> 8)), bytes1(uint8(bits >> 16)), bytes1(uint8(bits >> 24))
            );
        }
    }

    function tensorTree(uint256[] memory numbers) internal pure returns (Tree memory) {
        bytes[] memory payloads = new bytes[]((numbers.length + 1) / 2);
        for (uint256 i = 0; i < payloads.length; ++i) {
            payloads[i] = chunk(numbers, i);
        }
        return Trees.buildBytes(payloads);
    }

    function slot(uint256[] memory state, uint256 number) internal pure returns (uint256[] memory numbers) {
        numbers = new uint256[](number == 0 ? ELEMENTS : 1);
        for (uint256 i = 0; i < numbers.length; ++i) {
            numbers[i] = state[number == 0 ? i : ELEMENTS];
        }
    }

    function stateTree(uint256[] memory state) internal pure returns (Tree memory) {
        bytes32[] memory roots = new bytes32[](SLOTS);
        for (uint256 i = 0; i < SLOTS; ++i) {
            roots[i] = Trees.root(tensorTree(slot(state, i)));
        }
        return Trees.build(roots);
    }

    function traceTree(uint256[][] memory computed, uint256[] memory state) internal pure returns (Tree memory) {
        bytes32[] memory leaves = new bytes32[](2 * HALF);
        for (uint256 i = 0; i < leaves.length; ++i) {
            leaves[i] = Trees.pad();
            if (i < OPERATORS) leaves[i] = Trees.hashLeaf(bytes.concat(Trees.root(tensorTree(computed[i]))));
        }
        for (uint256 i = 0; i < SLOTS; ++i) {
            leaves[HALF + i] = Trees.hashLeaf(bytes.concat(Trees.root(tensorTree(slot(state, i)))));
        }
        return Trees.fromLeaves(leaves, HALF + SLOTS);
    }

    function partialTree(bytes32[3][] memory results) internal pure returns (Tree memory) {
        bytes[] memory payloads = new bytes[](results.length);
        for (uint256 i = 0; i < payloads.length; ++i) {
            payloads[i] = abi.encode(results[i]);
        }
        return Trees.buildBytes(payloads);
    }

    // ------------------------------------------------------------------------------------------------------------------- openings

    /// @notice What element `element` of operator q reads, or segment number `element` of the sum.
    function openings(uint256 q, uint256 element, uint256[] memory before, uint256[][] memory computed)
        internal
        pure
        returns (ChunkOpening[] memory opened)
    {
        if (q == 0) {
            opened = new ChunkOpening[](2);
            uint256[] memory w = slot(before, 0);
            opened[0] = ChunkOpening(0, 0, bytes.concat(Trees.root(tensorTree(w))), Trees.proof(stateTree(before), 0));
            opened[1] = open(1, w, element / 2);
            return opened;
        }
        uint64[] memory read = operands(q);
        opened = new ChunkOpening[](read.length);
        for (uint256 i = 0; i < read.length; ++i) {
            // Neighbours share a chunk, and the two terms of a segment are one.
            uint256 index = read[i] % 2 == 1 ? 0 : q == SUM ? element : element / 2;
            opened[i] = open(uint8(i), computed[read[i]], index);
        }
    }

    function open(uint8 input, uint256[] memory numbers, uint256 index) private pure returns (ChunkOpening memory) {
        return ChunkOpening(input, uint64(index), chunk(numbers, index), Trees.proof(tensorTree(numbers), index));
    }
}
