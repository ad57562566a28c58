// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Adjudicator} from "../../src/adjudication/Adjudicator.sol";
import {Descriptor, DType, Family, Input} from "../../src/adjudication/Descriptor.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {Finding, Partial, Question, Setting} from "../../src/adjudication/IAdjudicator.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Reducer} from "../../src/adjudication/Reducer.sol";
import {Test} from "./Test.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Small tensors in chunks of 16 bytes, descriptors over them, and the adjudicator to ask.
abstract contract AdjudicationTest is Test {
    using Trees for Tree;

    uint32 internal constant CHUNK = 16;
    uint32 internal constant ONE = 0x3F800000;
    uint32 internal constant INFINITY = 0x7F800000;
    uint32 internal constant NAN = 0x7FC00000;

    Adjudicator internal immutable adjudicator = new Adjudicator(new Functions(), new Reducer());

    // ----------------------------------------------------------------------------------------------------------------------- tensors

    function floats(uint32[] memory bits) internal pure returns (bytes memory data) {
        for (uint256 i = 0; i < bits.length; ++i) {
            data = bytes.concat(data, littleEndian(bits[i], 4));
        }
    }

    function integers(int64[] memory values) internal pure returns (bytes memory data) {
        for (uint256 i = 0; i < values.length; ++i) {
            data = bytes.concat(data, littleEndian(uint64(values[i]), 8));
        }
    }

    /// @notice 1.0, 2.0, ... as far as asked.
    function counting(uint256 count) internal pure returns (bytes memory) {
        uint32[10] memory known =
            [ONE, 0x40000000, 0x40400000, 0x40800000, 0x40A00000, 0x40C00000, 0x40E00000, 0x41000000, 0x41100000, 0x41200000];
        uint32[] memory bits = new uint32[](count);
        for (uint256 i = 0; i < count; ++i) {
            bits[i] = known[i];
        }
        return floats(bits);
    }

    function littleEndian(uint64 number, uint256 width) internal pure returns (bytes memory data) {
        data = new bytes(width);
        for (uint256 i = 0; i < width; ++i) {
            data[i] = bytes1(uint8(number >> (8 * i)));
        }
    }

    function slice(bytes memory data, uint256 start, uint256 length) internal pure returns (bytes memory part) {
        uint256 left = data.length - start;
        part = new bytes(length < left ? length : left);
        for (uint256 i = 0; i < part.length; ++i) {
            part[i] = data[start + i];
        }
    }

    function tensor(bytes memory data, uint32 chunkSize) internal pure returns (Tree memory) {
        uint256 count = data.length == 0 ? 1 : (data.length - 1) / chunkSize + 1;
        bytes[] memory chunks = new bytes[](count);
        for (uint256 i = 0; i < count; ++i) {
            chunks[i] = slice(data, i * chunkSize, chunkSize);
        }
        return Trees.buildBytes(chunks);
    }

    function opening(uint8 input, uint64 chunk, bytes memory data, uint32 chunkSize) internal pure returns (ChunkOpening memory) {
        return ChunkOpening(input, chunk, slice(data, chunk * chunkSize, chunkSize), tensor(data, chunkSize).proof(chunk));
    }

    function opening(uint8 input, uint64 chunk, bytes memory data) internal pure returns (ChunkOpening memory) {
        return opening(input, chunk, data, CHUNK);
    }

    /// @notice All chunks of all operands.
    function openAll(bytes[] memory operands) internal pure returns (ChunkOpening[] memory all) {
        uint256 count = 0;
        for (uint256 i = 0; i < operands.length; ++i) {
            count += tensor(operands[i], CHUNK).count;
        }
        all = new ChunkOpening[](count);
        for (uint256 i = operands.length; i > 0; --i) {
            for (uint64 chunk = tensor(operands[i - 1], CHUNK).count; chunk > 0; --chunk) {
                all[--count] = opening(uint8(i - 1), chunk - 1, operands[i - 1]);
            }
        }
    }

    function roots(bytes[] memory operands) internal pure returns (bytes32[] memory found) {
        found = new bytes32[](operands.length);
        for (uint256 i = 0; i < operands.length; ++i) {
            found[i] = tensor(operands[i], CHUNK).root();
        }
    }

    function list(bytes memory a) internal pure returns (bytes[] memory all) {
        all = new bytes[](1);
        all[0] = a;
    }

    function list(bytes memory a, bytes memory b) internal pure returns (bytes[] memory all) {
        all = new bytes[](2);
        (all[0], all[1]) = (a, b);
    }

    function list(ChunkOpening memory a) internal pure returns (ChunkOpening[] memory all) {
        all = new ChunkOpening[](1);
        all[0] = a;
    }

    function list(ChunkOpening memory a, ChunkOpening memory b) internal pure returns (ChunkOpening[] memory all) {
        all = new ChunkOpening[](2);
        (all[0], all[1]) = (a, b);
    }

    // ------------------------------------------------------------------------------------------------------------------- descriptors

    function sizes(uint64 a) internal pure returns (uint64[] memory all) {
        all = new uint64[](1);
        all[0] = a;
    }

    function sizes(uint64 a, uint64 b) internal pure returns (uint64[] memory all) {
        all = new uint64[](2);
        (all[0], all[1]) = (a, b);
    }

    function numbers(int64 a, int64 b, int64 c) internal pure returns (int64[] memory all) {
        all = new int64[](3);
        (all[0], all[1], all[2]) = (a, b, c);
    }

    function numbers(int64 a, int64 b, int64 c, int64 d) internal pure returns (int64[] memory all) {
        all = new int64[](4);
        (all[0], all[1], all[2], all[3]) = (a, b, c, d);
    }

    /// @notice Element i of a vector of `count` at index i.
    function straight(uint64 value, DType dtype, uint64 count) internal pure returns (Input memory) {
        return Input(value, dtype, sizes(count), numbers(0, 1, 1));
    }

    /// @notice `count` elements, each of one element of every input, at its own place.
    function elementwise(Family family, uint8 code, DType output, uint64 count, DType[] memory inputs)
        internal
        pure
        returns (Descriptor memory made)
    {
        (made.family, made.code, made.dtype) = (family, code, output);
        made.iteration = sizes(count);
        made.inputs = new Input[](inputs.length);
        for (uint256 i = 0; i < inputs.length; ++i) {
            made.inputs[i] = straight(uint64(i), inputs[i], count);
        }
    }

    function dtypes(DType a) internal pure returns (DType[] memory all) {
        all = new DType[](1);
        all[0] = a;
    }

    function dtypes(DType a, DType b) internal pure returns (DType[] memory all) {
        all = new DType[](2);
        (all[0], all[1]) = (a, b);
    }

    function dtypes(DType a, DType b, DType c) internal pure returns (DType[] memory all) {
        all = new DType[](3);
        (all[0], all[1], all[2]) = (a, b, c);
    }

    /// @notice One element: all `count` elements of every input reduced.
    function reduction(Family family, DType output, uint64 count, uint32 segment, DType[] memory inputs)
        internal
        pure
        returns (Descriptor memory made)
    {
        made = elementwise(family, 0, output, count, inputs);
        (made.iteration, made.reduction, made.segment) = (new uint64[](0), sizes(count), segment);
        if (family == Family.SELECTED_SUM) made.parameters = numbers(1, 1, 0);
        if (family == Family.ARGMAX) made.parameters = numbers(0, 1, 1);
    }

    // ---------------------------------------------------------------------------------------------------------------------- questions

    function setting() internal pure returns (Setting memory made) {
        (made.spec.steps, made.spec.interval, made.spec.dataRows, made.spec.batchSize) = (4, 2, 8, 2);
        (made.spec.chunkSize, made.spec.roundingBits, made.spec.stateCount) = (CHUNK, 32, 2);
    }

    /// @notice The same with another format.
    function withBits(uint8 roundingBits) internal pure returns (Setting memory made) {
        made = setting();
        made.spec.roundingBits = roundingBits;
    }

    function ask(Descriptor memory d, bytes32[] memory operands, uint64 element) internal pure returns (Question memory) {
        return Question(abi.encode(d), operands, element);
    }

    function compute(Descriptor memory descriptor, bytes[] memory operands, uint64 element)
        internal
        view
        returns (Finding, uint64)
    {
        return adjudicator.compute(setting(), Question(abi.encode(descriptor), roots(operands), element), openAll(operands));
    }

    function partialOf(bytes32 a, bytes32 b, bytes32 c) internal pure returns (Partial memory) {
        return Partial([a, b, c]);
    }

    function partialOf(uint256 a, uint256 b, int256 c) internal pure returns (Partial memory) {
        return Partial([bytes32(a), bytes32(b), bytes32(uint256(c))]);
    }

    function assertAnswer(Finding finding, uint64 bits, Finding expected, uint64 expectedBits, string memory what) internal pure {
        vm.assertEq(uint8(finding), uint8(expected), string.concat(what, ": finding"));
        if (expected == Finding.VALUE) vm.assertEq(bits, expectedBits, string.concat(what, ": bits"));
    }
}
