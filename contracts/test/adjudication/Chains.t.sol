// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, Descriptors, DType, Family, Fault} from "../../src/adjudication/Descriptor.sol";
import {Finding, Partial, Question} from "../../src/adjudication/IAdjudicator.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Reductions} from "../../src/adjudication/Reductions.sol";
import {AdjudicationTest} from "../support/AdjudicationTest.sol";

/// @notice Sums as tensor cores add them: descriptors and running results that there are, and others. What they come to is held against the
///         reference by the client's tests.
contract ChainsTest is AdjudicationTest {
    uint8 private constant AMPERE = 1;
    uint8 private constant VOLTA = 2;
    uint256 private constant MINUS_ZERO = 0x80000000;
    int256 private constant LIMIT = int256(1) << 50;

    function chain(uint8 code, DType dtype, uint32 segment, uint64 terms) private pure returns (Descriptor memory made) {
        made = reduction(Family.CHAIN, dtype, terms, segment, dtypes(dtype, dtype));
        made.code = code;
    }

    function bfloat16s(uint256 count, uint64 bits) private pure returns (bytes memory data) {
        for (uint256 i = 0; i < count; ++i) {
            data = bytes.concat(data, littleEndian(bits, 2));
        }
    }

    function refused(Descriptor memory descriptor, Fault what) private {
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, what));
        adjudicator.outline(abi.encode(descriptor), CHUNK);
    }

    function test_segments_arePowersOfTwo_fromAGroupToAChain() public {
        uint32[7] memory hostile = [uint32(1), 8, 17, 24, 48, 3072, 4096];
        for (uint256 i = 0; i < hostile.length; ++i) {
            refused(chain(0, DType.BF16, hostile[i], 40), Fault.SEGMENT);
        }
        uint32[3] memory groups = [uint32(16), 8, 4];
        for (uint8 code = 0; code < 3; ++code) {
            refused(chain(code, DType.F16, groups[code] / 2, 40), Fault.SEGMENT);
            for (uint32 segment = groups[code]; segment <= 2048; segment *= 2) {
                uint64 segments = adjudicator.outline(abi.encode(chain(code, DType.F16, segment, 5000)), CHUNK).segments;
                vm.assertEq(segments, (5000 + segment - 1) / segment, "segments");
            }
        }
    }

    function test_otherDtypesInputsAndCodes_areRefused() public {
        refused(chain(3, DType.F16, 16, 40), Fault.CODE);
        refused(chain(VOLTA, DType.BF16, 16, 40), Fault.DTYPE);
        refused(chain(0, DType.F32, 16, 40), Fault.DTYPE);
        refused(chain(0, DType.I64, 16, 40), Fault.DTYPE);
        Descriptor memory d = chain(0, DType.BF16, 16, 40);
        d.dtype = DType.F32;
        refused(d, Fault.DTYPE);
        d = reduction(Family.CHAIN, DType.BF16, 40, 16, dtypes(DType.BF16, DType.F16));
        refused(d, Fault.DTYPE);
        d = reduction(Family.CHAIN, DType.BF16, 40, 16, dtypes(DType.BF16));
        refused(d, Fault.INPUTS);
        d = chain(0, DType.BF16, 16, 40);
        d.parameters = new int64[](1);
        refused(d, Fault.PARAMETERS);
    }

    /// @dev Neither goes on from it, nor finishes it.
    function refusedResult(uint256 c, int256 high, uint256 low) private {
        Descriptor memory descriptor = chain(0, DType.BF16, 16, 20);
        bytes[] memory operands = list(bfloat16s(20, 0x3F80), bfloat16s(20, 0x3F80));
        Question memory question = Question(abi.encode(descriptor), roots(operands), 0);
        ChunkOpening[] memory openings = openAll(operands);
        Partial memory before = partialOf(bytes32(c), bytes32(uint256(high)), bytes32(low));
        vm.expectRevert(abi.encodeWithSelector(Reductions.PartialOutOfRange.selector));
        adjudicator.reduceSegment(setting(), question, 1, before, openings);
        vm.expectRevert(abi.encodeWithSelector(Reductions.PartialOutOfRange.selector));
        adjudicator.finish(question.descriptor, before, 32);
    }

    function test_runningResults_haveOneForm() public {
        uint256[9] memory patterns = [
            MINUS_ZERO,
            1, // subnormal
            0x007FFFFF,
            0x807FFFFF,
            INFINITY,
            INFINITY | MINUS_ZERO,
            NAN + 1,
            NAN | MINUS_ZERO,
            uint256(1) << 32 | ONE
        ];
        for (uint256 i = 0; i < patterns.length; ++i) {
            refusedResult(patterns[i], 0, 0);
        }
        refusedResult(NAN, 0, 1);
        refusedResult(NAN, -1, 0);
        refusedResult(type(uint256).max, 0, 0);
        refusedResult(0, LIMIT, 0);
        refusedResult(0, -LIMIT, 0);
        refusedResult(0, -LIMIT - 1, type(uint256).max);
        refusedResult(0, type(int256).max, 0);
        refusedResult(0, type(int256).min, 0);
    }

    function finished(uint256 c, int256 high, uint256 low) private view returns (uint64 bits) {
        Finding finding;
        Partial memory whole = partialOf(bytes32(c), bytes32(uint256(high)), bytes32(low));
        (finding, bits) = adjudicator.finish(abi.encode(chain(0, DType.BF16, 16, 20)), whole, 32);
        vm.assertEq(uint8(finding), uint8(Finding.VALUE), "a value");
    }

    function test_theSumOfChains_isRoundedOnce() public view {
        vm.assertEq(finished(0, 0, 0), 0, "nothing");
        vm.assertEq(finished(NAN, 0, 0), 0x7FC0, "no value");
        vm.assertEq(finished(ONE, 0, 0), 0x3F80, "1");
        vm.assertEq(finished(ONE, 0, uint256(1) << 149), 0x4000, "1 + 1");
        vm.assertEq(finished(ONE, -1, type(uint256).max - (uint256(1) << 149) + 1), 0, "1 - 1");
        // Halfway between two numbers of BF16: to the even one, and with 2^-149 more to the other.
        vm.assertEq(finished(0x3F808000, 0, 0), 0x3F80, "to even");
        vm.assertEq(finished(0x3F808000, 0, 1), 0x3F81, "above");
        vm.assertEq(finished(0xBF808000, -1, type(uint256).max), 0xBF81, "below");
        vm.assertEq(finished(0, LIMIT - 1, type(uint256).max), 0x7F80, "infinite");
        vm.assertEq(finished(0, -LIMIT, 1), 0xFF80, "infinite, negative");
    }

    function extended(uint64 terms, uint32 segment, uint64 place, Partial memory before)
        private
        view
        returns (Partial memory after_)
    {
        bytes[] memory operands = list(bfloat16s(terms, 0x3F80), bfloat16s(terms, 0x3F80));
        Question memory question = Question(abi.encode(chain(AMPERE, DType.BF16, segment, terms)), roots(operands), 0);
        uint64 first = place * segment;
        uint64 count = terms - first < segment ? terms - first : segment;
        ChunkOpening[] memory openings = new ChunkOpening[](2 * ((uint256(count) + 7) / 8));
        for (uint64 i = 0; i < openings.length / 2; ++i) {
            openings[i] = opening(0, first / 8 + i, operands[0]);
            openings[openings.length / 2 + i] = opening(1, first / 8 + i, operands[1]);
        }
        (, after_) = adjudicator.reduceSegment(setting(), question, place, before, openings);
    }

    /// @dev At the end of 2,048 terms, and nowhere else, what they come to goes into the sum.
    function test_aChainEnds_whereItsTermsEnd() public view {
        Partial memory after_ = extended(20, 16, 0, partialOf(uint256(ONE), 0, 5));
        vm.assertEq(keccak256(abi.encode(after_)), keccak256(abi.encode(partialOf(uint256(0x41880000), 0, 5))), "17, and 5 units");
        after_ = extended(20, 16, 1, after_);
        vm.assertEq(keccak256(abi.encode(after_)), keccak256(abi.encode(partialOf(uint256(0x41A80000), 0, 5))), "21: four more");
        after_ = extended(2050, 8, 255, partialOf(uint256(ONE), 0, 5));
        vm.assertEq(uint256(after_.words[0]), 0, "of the next chain");
        vm.assertEq(uint256(after_.words[2]), 5 + 9 * (uint256(1) << 149), "9, and 5 units");
        after_ = extended(2050, 8, 256, after_);
        vm.assertEq(uint256(after_.words[0]), 0x40000000, "2: a chain on top of zero");
        vm.assertEq(uint256(after_.words[2]), 5 + 9 * (uint256(1) << 149), "as it was");
    }

    /// @dev No terms come to what was there before.
    function test_noTerms_endNoChain() public view {
        Partial memory after_ = extended(0, 16, 0, partialOf(uint256(ONE), 0, 5));
        vm.assertEq(keccak256(abi.encode(after_)), keccak256(abi.encode(partialOf(uint256(ONE), 0, 5))), "1, and 5 units");
    }

    /// @dev External, so that a test can expect it to revert.
    function extendedBy2048Terms(Partial memory before) external view returns (Partial memory) {
        return extended(2048, 8, 255, before);
    }

    /// @dev A sum of chains stays among those that can be gone on from.
    function test_aSumThatNothingReaches_isNotMade() public {
        uint256 low = type(uint256).max - (uint256(1) << 152);
        Partial memory last = partialOf(bytes32(0), bytes32(uint256(LIMIT - 1)), bytes32(low));
        Partial memory after_ = this.extendedBy2048Terms(last);
        vm.assertEq(after_.words[2], bytes32(type(uint256).max), "eight more");
        vm.expectRevert(abi.encodeWithSelector(Reductions.PartialOutOfRange.selector));
        this.extendedBy2048Terms(after_);
    }

    /// @dev With an exponent above 121 a group has no value, and nothing that follows.
    function test_withoutAValue_nothingIsLeft() public view {
        Partial memory after_ = extended(20, 16, 0, partialOf(uint256(0x7C800000), 0, 5));
        vm.assertEq(keccak256(abi.encode(after_)), keccak256(abi.encode(partialOf(uint256(NAN), 0, 0))), "no value");
        after_ = extended(20, 16, 1, after_);
        vm.assertEq(keccak256(abi.encode(after_)), keccak256(abi.encode(partialOf(uint256(NAN), 0, 0))), "and no other");
    }
}
