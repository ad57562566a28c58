// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, Descriptors, DType, Family, Fault} from "../../src/adjudication/Descriptor.sol";
import {Finding, Setting} from "../../src/adjudication/IAdjudicator.sol";
import {ChunkOpening, Openings} from "../../src/adjudication/Openings.sol";
import {Merkle} from "../../src/Merkle.sol";
import {AdjudicationTest} from "../support/AdjudicationTest.sol";
import {Tree, Trees} from "../support/Trees.sol";

/// @notice Loads are held against the engine's, operator by operator, where the engine is; here are rows, widths and hostile sizes.
contract LoadsTest is AdjudicationTest {
    using Trees for Tree;

    uint64 private constant ROWS = 8;

    /// @dev Field 1 of two, in chunks of eight bytes.
    bytes private _field;

    function load(DType dtype, uint8 code, int64 items, int64 stride) private pure returns (Descriptor memory d) {
        (d.family, d.dtype, d.code, d.iteration) = (Family.DATA, dtype, code, sizes(2 * uint64(items)));
        d.parameters = new int64[](4);
        (d.parameters[0], d.parameters[1], d.parameters[2], d.parameters[3]) = (1, 2, items, stride);
    }

    function fields() private view returns (Tree memory) {
        bytes32[] memory roots = new bytes32[](2);
        (roots[0], roots[1]) = (keccak256("another"), tensor(_field, 8).root());
        return Trees.build(roots);
    }

    function situation() private view returns (Setting memory s) {
        s = setting();
        (s.spec.dataRoot, s.spec.chunkSize, s.spec.dataRows) = (fields().root(), 8, ROWS);
    }

    function shown(uint64 chunk) private view returns (ChunkOpening[] memory) {
        ChunkOpening memory root = ChunkOpening(0, 1, bytes.concat(tensor(_field, 8).root()), fields().proof(1));
        return list(root, ChunkOpening(1, chunk, slice(_field, 8 * chunk, 8), tensor(_field, 8).proof(chunk)));
    }

    /// @dev The only chunk of which the adjudicator reads an element, and what it reads.
    function answer(Descriptor memory d, uint64 element) private view returns (uint64 chunk, uint64 bits) {
        uint256 answers = 0;
        for (uint64 i = 0; 8 * i < _field.length; ++i) {
            try adjudicator.compute(situation(), ask(d, new bytes32[](0), element), shown(i)) returns (
                Finding finding, uint64 found
            ) {
                vm.assertTrue(finding == Finding.VALUE, "a value");
                (chunk, bits) = (i, found);
                ++answers;
            } catch {}
        }
        vm.assertEq(answers, 1, "one chunk holds it");
    }

    function fill(uint256 length) private {
        _field = new bytes(length);
        for (uint256 i = 0; i < length; ++i) {
            _field[i] = bytes1(uint8(200 + i));
        }
    }

    function test_rows_standOneBehindTheOther_overlap_orLeaveGaps() public {
        fill(8 * ROWS);
        (uint64 row,) = answer(load(DType.I64, 0, 1, 1), 1);
        int64[3] memory strides = [int64(1), 3, 5];
        for (uint256 i = 0; i < 3; ++i) {
            uint64 stride = uint64(strides[i]);
            fill((ROWS - 1) * stride + 3);
            for (uint64 item = 0; item < 3; ++item) {
                // Of sample 1 of windows of three bytes.
                (uint64 chunk, uint64 bits) = answer(load(DType.BOOL, 0, 3, strides[i]), 3 + item);
                uint64 place = row * stride + item;
                vm.assertEq(chunk, place / 8, "its chunk");
                vm.assertEq(bits, uint8(200 + place), "its byte");
            }
        }
    }

    function test_storedIntegers_areWidened_withTheirSign() public {
        uint8[6] memory widths = [8, 1, 1, 2, 2, 4];
        bool[6] memory signed = [false, false, true, true, false, true];
        for (uint8 code = 0; code < 6; ++code) {
            uint64 width = widths[code];
            fill(width * ROWS);
            (uint64 row,) = (answerOfRow(width), 0);
            (, uint64 bits) = answer(load(DType.I64, code, 1, 1), 1);
            uint64 expected = 0;
            for (uint64 i = 0; i < width; ++i) {
                expected |= uint64(uint8(_field[row * width + i])) << (8 * i);
            }
            bool negative = width < 8 && signed[code] && expected >> (8 * width - 1) == 1;
            if (negative) expected |= type(uint64).max << (8 * width);
            vm.assertEq(bits, expected, "little-endian, with its sign");
        }
    }

    /// @dev The row of sample 1, from a field of int64.
    function answerOfRow(uint64 width) private returns (uint64 row) {
        fill(8 * ROWS);
        (row,) = answer(load(DType.I64, 0, 1, 1), 1);
        fill(width * ROWS);
    }

    function refused(Descriptor memory d, Setting memory s, ChunkOpening[] memory openings, bytes memory reason) private {
        vm.expectRevert(reason);
        adjudicator.compute(s, ask(d, new bytes32[](0), 1), openings);
    }

    function test_anotherField_orAnotherTensor_isRefused() public {
        fill(8 * ROWS);
        Descriptor memory d = load(DType.I64, 0, 1, 1);
        (uint64 row,) = answer(d, 1);
        ChunkOpening[] memory openings = shown(row);
        d.parameters[0] = 0;
        refused(d, situation(), openings, abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, 0));
        d.parameters[0] = 2;
        refused(d, situation(), openings, abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, 2));
        openings[0].chunk = 2;
        refused(d, situation(), openings, abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, uint64(2), uint64(2)));
        (openings, d.parameters[0]) = (shown(row), 1);
        openings[0].data = slice(openings[0].data, 0, 31);
        refused(d, situation(), openings, abi.encodeWithSelector(Openings.WrongChunkLength.selector, 31, 32));
        openings = shown(row);
        openings[1].data = slice(openings[1].data, 0, 7);
        refused(d, situation(), openings, abi.encodeWithSelector(Openings.WrongChunkLength.selector, 7, 8));
        openings = shown(row);
        openings[1].data[0] ^= 0x01;
        bytes32 computed = Trees.hashLeaf(openings[1].data);
        for (uint256 i = 0; i < 3; ++i) {
            bytes32 sibling = openings[1].proof[i];
            computed = (row >> i) & 1 == 1 ? Trees.hashPair(sibling, computed) : Trees.hashPair(computed, sibling);
        }
        refused(d, situation(), openings, abi.encodeWithSelector(Merkle.WrongProof.selector, computed, tensor(_field, 8).root()));
    }

    function test_sizesThatOverflow_areRefused_beforeAnythingIsRead() public {
        fill(8 * ROWS);
        int64 most = type(int64).max;
        bytes memory reason = abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.RANGE);
        Descriptor memory d = load(DType.I64, 0, 1, most);
        refused(d, situation(), shown(0), reason);
        d.parameters[2] = most;
        refused(d, situation(), shown(0), reason);
        Setting memory s = situation();
        s.spec.dataRows = type(uint64).max;
        refused(d, s, shown(0), reason);
        s.spec.dataRows = (1 << 40) + 1;
        refused(load(DType.I64, 0, 1, 1), s, shown(0), reason);
        s.spec.dataRows = 0;
        refused(
            load(DType.I64, 0, 1, 1), s, shown(0), abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.EMPTY)
        );
    }

    function test_aCode_isOneOfSix_andMakesInt64() public {
        fill(8 * ROWS);
        bytes memory reason = abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.CODE);
        refused(load(DType.I64, 6, 1, 1), situation(), shown(0), reason);
        reason = abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.DTYPE);
        refused(load(DType.F32, 1, 1, 1), situation(), shown(0), reason);
        refused(load(DType.BOOL, 5, 1, 1), situation(), shown(0), reason);
    }
}
