// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ExactSum} from "../../src/arithmetic/ExactSum.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {Descriptor, Descriptors, DType, Family, Fault} from "../../src/adjudication/Descriptor.sol";
import {Finding, Partial, Question} from "../../src/adjudication/IAdjudicator.sol";
import {Numbers} from "../../src/adjudication/Numbers.sol";
import {Reading} from "../../src/adjudication/Operands.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Reductions} from "../../src/adjudication/Reductions.sol";
import {AdjudicationTest} from "../support/AdjudicationTest.sol";

/// @notice Running results that no terms come to. Each has one form: else two leaves would differ that mean the same.
contract HostilePartialTest is AdjudicationTest {
    uint32 private constant MINUS_ZERO = 0x80000000;

    function families() private pure returns (Descriptor[6] memory all) {
        all[0] = reduction(Family.SUM, DType.F32, 10, 4, dtypes(DType.F32));
        all[1] = reduction(Family.SELECTED_SUM, DType.F32, 10, 4, dtypes(DType.F32, DType.I64));
        all[2] = reduction(Family.EXTREME, DType.F32, 10, 4, dtypes(DType.F32));
        all[3] = reduction(Family.ARGMAX, DType.I64, 10, 4, dtypes(DType.F32));
        all[4] = reduction(Family.INTEGER_SUM, DType.I64, 10, 4, dtypes(DType.I64));
        all[5] = reduction(Family.ANY, DType.BOOL, 10, 4, dtypes(DType.BOOL));
    }

    function operandsOf(uint256 family) private pure returns (bytes[] memory) {
        int64[] memory labels = new int64[](10);
        if (family == 0 || family == 2 || family == 3) return list(counting(10));
        if (family == 1) return list(counting(10), integers(labels));
        return list(family == 4 ? integers(labels) : new bytes(10));
    }

    /// @dev Neither goes on from it, nor finishes it.
    function refused(uint256 family, Partial memory before, bytes memory reason) private {
        refused(families()[family], operandsOf(family), before, reason);
    }

    function refused(Descriptor memory descriptor, bytes[] memory operands, Partial memory before, bytes memory reason) private {
        Question memory question = Question(abi.encode(descriptor), roots(operands), 0);
        ChunkOpening[] memory openings = openAll(operands);
        vm.expectRevert(reason);
        adjudicator.reduceSegment(setting(), question, 1, before, openings);
        vm.expectRevert(reason);
        adjudicator.finish(question.descriptor, before, 32);
    }

    function refused(uint256 family, uint256 a, uint256 b, int256 c) private {
        refused(family, partialOf(a, b, c), abi.encodeWithSelector(Reductions.PartialOutOfRange.selector));
    }

    function test_sumsThatAreTooLarge_areRefused() public {
        int256[4] memory high = [int256(1) << 82, -(int256(1) << 82) - 1, type(int256).max, type(int256).min];
        for (uint256 family = 0; family < 2; ++family) {
            for (uint256 i = 0; i < high.length; ++i) {
                bytes memory reason = abi.encodeWithSelector(ExactSum.PartialSumOutOfRange.selector, high[i]);
                refused(family, partialOf(bytes32(uint256(high[i])), 0, 0), reason);
                refused(
                    family, partialOf(bytes32(uint256(high[i])), bytes32(type(uint256).max), bytes32(type(uint256).max)), reason
                );
            }
        }
    }

    function test_extremes_haveOneForm() public {
        for (uint256 family = 2; family < 4; ++family) {
            refused(family, 2, ONE, 0);
            refused(family, type(uint256).max, ONE, 0);
            refused(family, 1 << 255 | 1, ONE, 0);
            refused(family, 0, ONE, 0); // of nothing
            refused(family, 0, 0, 1);
            refused(family, 0, MINUS_ZERO, 0);
            refused(family, 1, uint256(1) << 32, 0);
            refused(family, 1, uint256(1) << 32 | ONE, 0);
            refused(family, 1, NAN + 1, 0); // there is one NaN
            refused(family, 1, uint256(NAN) | MINUS_ZERO, 0);
            refused(family, 1, uint256(INFINITY) + 1, 0);
            refused(family, 1, ONE, int256(1) << 63);
            refused(family, 1, ONE, -(int256(1) << 63) - 1);
            refused(family, 1, ONE, type(int256).min);
        }
        refused(2, 1, ONE, 1); // an EXTREME has no label
        refused(2, 1, ONE, -1);
    }

    function extremesOf(DType dtype) private pure returns (Descriptor[2] memory all) {
        all[0] = reduction(Family.EXTREME, dtype, 10, 4, dtypes(dtype));
        all[1] = reduction(Family.ARGMAX, DType.I64, 10, 4, dtypes(dtype));
    }

    /// @dev Neither rounded nor cut off: no element of the operand is such a number.
    function test_extremes_areNumbersOfTheOperandsFormat() public {
        uint32[4] memory bfloat16s = [uint32(0x3F800001), 0x3F80FFFF, 0x00000001, NAN | 1 << 16];
        uint32[8] memory halfs =
            [uint32(0x3F801FFF), 0x3F800001, 0x47800000, 0x7F000000, 0x33000000, 0x33C00000, 0x33800001, 0x48000000];
        bytes memory reason = abi.encodeWithSelector(Reductions.PartialOutOfRange.selector);
        for (uint256 family = 0; family < 2; ++family) {
            for (uint256 sign = 0; sign < 2; ++sign) {
                for (uint256 i = 0; i < 4; ++i) {
                    Partial memory before = partialOf(1, bfloat16s[i] | sign << 31, 0);
                    refused(extremesOf(DType.BF16)[family], list(new bytes(20)), before, reason);
                }
                for (uint256 i = 0; i < 8; ++i) {
                    refused(extremesOf(DType.F16)[family], list(new bytes(20)), partialOf(1, halfs[i] | sign << 31, 0), reason);
                }
            }
        }
    }

    function finishes(DType dtype, uint64 element) private view {
        uint32 pattern = Float32.unwrap(Numbers.toFloat32(dtype, element));
        Descriptor[2] memory extremes = extremesOf(dtype);
        (Finding finding, uint64 bits) = adjudicator.finish(abi.encode(extremes[0]), partialOf(1, pattern, 0), 32);
        assertAnswer(finding, bits, Finding.VALUE, element == 0x8000 ? 0 : element, "a number of the format");
        (finding, bits) = adjudicator.finish(abi.encode(extremes[1]), partialOf(1, pattern, 7), 32);
        assertAnswer(finding, bits, Finding.VALUE, 7, "the place of one");
    }

    /// @dev Zeros, subnormal and normal numbers, infinities and NaN.
    function test_everyNumberOfTheOperandsFormat_isAnExtreme() public view {
        uint64[8] memory bfloat16s = [uint64(0), 0x8000, 0x0001, 0x807F, 0x3F81, 0x7F80, 0xFF80, 0x7FC0];
        uint64[8] memory halfs = [uint64(0), 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00];
        for (uint256 i = 0; i < 8; ++i) {
            finishes(DType.BF16, bfloat16s[i]);
            finishes(DType.F16, halfs[i]);
        }
    }

    function test_countsAndAny_haveOneForm() public {
        for (uint256 family = 4; family < 6; ++family) {
            refused(family, 1, 0, 0);
            refused(family, 0, 1, 0);
            refused(family, 1 << 255, 0, 0);
            refused(family, 0, 0, int256(1) << 63);
            refused(family, 0, 0, int256(uint256(type(uint64).max)));
            refused(family, 0, 0, -(int256(1) << 63) - 1);
        }
        refused(5, 0, 0, 2);
        refused(5, 0, 0, -1);
    }

    /// @dev Whatever is accepted as a running result comes out again as it went in, if no terms come to it.
    function testFuzz_oneForm_ofEveryRunningResult(uint256 which, uint256 a, uint256 b, uint256 c, uint8 small) public view {
        which %= 6;
        if (small & 1 != 0) a %= 3;
        if (small & 2 != 0) b %= 1 << 33;
        if (small & 4 != 0) c = c % 3 == 0 ? type(uint256).max - c % 4 : c % 4;
        if (small & 8 != 0) a = uint256(int256(a) >> 170);
        Descriptor memory descriptor = families()[which];
        // Ten terms of which every read lies outside of the operand.
        for (uint256 i = 0; i < descriptor.inputs.length; ++i) {
            descriptor.inputs[i].affine[0] = 10;
        }
        Partial memory before = partialOf(bytes32(a), bytes32(b), bytes32(c));
        Question memory question = Question(abi.encode(descriptor), new bytes32[](descriptor.inputs.length), 0);
        try adjudicator.reduceSegment(setting(), question, 1, before, new ChunkOpening[](0)) returns (
            Finding finding, Partial memory same
        ) {
            vm.assertEq(uint8(finding), uint8(Finding.VALUE), "goes on");
            vm.assertEq(keccak256(abi.encode(same)), keccak256(abi.encode(before)), "as it was");
            adjudicator.finish(question.descriptor, before, 32);
        } catch {
            try adjudicator.finish(question.descriptor, before, 32) {
                vm.assertTrue(false, "finished what nothing comes to");
            } catch {}
        }
    }

    function test_segmentsBehindTheLast_areRefused() public {
        uint64[3] memory segments = [uint64(3), 4, type(uint64).max];
        for (uint256 family = 0; family < 6; ++family) {
            Question memory question = Question(abi.encode(families()[family]), roots(operandsOf(family)), 0);
            for (uint256 i = 0; i < segments.length; ++i) {
                ChunkOpening[] memory openings = new ChunkOpening[](0);
                Partial memory nothing;
                vm.expectRevert(abi.encodeWithSelector(Reading.NoSuchSegment.selector, segments[i], 3));
                adjudicator.reduceSegment(setting(), question, segments[i], nothing, openings);
            }
        }
    }

    function test_whatIsNoReduction_hasNoSegments() public {
        Descriptor memory copy = elementwise(Family.COPY, 0, DType.F32, 10, dtypes(DType.F32));
        Question memory question = Question(abi.encode(copy), roots(list(counting(10))), 0);
        Partial memory nothing;
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.FAMILY));
        adjudicator.reduceSegment(setting(), question, 0, nothing, new ChunkOpening[](0));
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.FAMILY));
        adjudicator.finish(question.descriptor, nothing, 32);
    }

    function test_formatsOutOfRange_areRefused() public {
        uint8[5] memory formats = [uint8(0), 22, 33, 64, 255];
        for (uint256 i = 0; i < formats.length; ++i) {
            bytes memory reason = abi.encodeWithSelector(Rounding.NoSuchFormat.selector, formats[i]);
            Partial memory nothing;
            vm.expectRevert(reason);
            adjudicator.finish(abi.encode(families()[0]), nothing, formats[i]);
            Descriptor memory exp = elementwise(Family.FUNCTION, 0, DType.F32, 4, dtypes(DType.F32));
            Question memory question = Question(abi.encode(exp), roots(list(counting(4))), 0);
            ChunkOpening[] memory openings = openAll(list(counting(4)));
            vm.expectRevert(reason);
            adjudicator.compute(withBits(formats[i]), question, openings);
        }
    }

    // ------------------------------------------------------------------------------------------------------------------ no value

    /// @dev The documented answer of an element that no run has: not a revert, with which a wrong claim would stand.
    function test_ofNoValidTerm_anExtremeHasNoValue_andASumIsZero() public view {
        for (uint256 family = 0; family < 6; ++family) {
            Descriptor memory descriptor = families()[family];
            descriptor.segment = 16;
            for (uint256 i = 0; i < descriptor.inputs.length; ++i) {
                descriptor.inputs[i].affine[0] = -100;
            }
            (Finding finding, uint64 bits) = compute(descriptor, operandsOf(family), 0);
            assertAnswer(finding, bits, family == 2 || family == 3 ? Finding.STOPS : Finding.VALUE, 0, "of nothing");
            descriptor.reduction = sizes(0);
            (finding, bits) = compute(descriptor, operandsOf(family), 0);
            assertAnswer(finding, bits, family == 2 || family == 3 ? Finding.STOPS : Finding.VALUE, 0, "of no terms");
        }
    }

    function test_readsThatAreNotThere_haveNoValue() public view {
        Family[3] memory readers = [Family.COPY, Family.MAP, Family.FUNCTION];
        int64[4] memory offsets = [int64(-4), 4, type(int64).max, type(int64).min];
        for (uint256 i = 0; i < readers.length; ++i) {
            for (uint256 k = 0; k < offsets.length; ++k) {
                Descriptor memory d = elementwise(readers[i], readers[i] == Family.MAP ? 5 : 0, DType.F32, 4, dtypes(DType.F32));
                d.inputs[0].affine[0] = offsets[k];
                (Finding finding, uint64 bits) = compute(d, list(counting(4)), 3);
                assertAnswer(finding, bits, Finding.STOPS, 0, "outside");
            }
        }
        // Half an element is none.
        Descriptor memory half = elementwise(Family.COPY, 0, DType.F32, 4, dtypes(DType.F32));
        half.inputs[0].affine[1] = 2;
        for (uint64 element = 0; element < 4; ++element) {
            (Finding finding, uint64 bits) = compute(half, list(counting(4)), element);
            assertAnswer(finding, bits, element % 2 == 0 ? Finding.VALUE : Finding.STOPS, element == 0 ? ONE : 0x40000000, "half");
        }
    }

    function test_gather_outsideOfItsAxis_hasNoValue() public view {
        int64[] memory chosen = new int64[](6);
        (chosen[0], chosen[1], chosen[2]) = (3, 4, -1);
        (chosen[3], chosen[4], chosen[5]) = (type(int64).max, type(int64).min, 0);
        Descriptor memory d = elementwise(Family.GATHER, 0, DType.F32, 6, dtypes(DType.F32, DType.I64));
        d.inputs[0].shape = sizes(4);
        d.inputs[0].affine = numbers(0, 1, 0);
        d.parameters = new int64[](1);
        for (uint64 element = 0; element < 6; ++element) {
            (Finding finding, uint64 bits) = compute(d, list(counting(4), integers(chosen)), element);
            bool inside = element == 0 || element == 5;
            assertAnswer(finding, bits, inside ? Finding.VALUE : Finding.STOPS, element == 0 ? 0x40800000 : ONE, "gathered");
        }
    }

    function test_gather_alongAnAxisThatIsNotThere_isRefused() public {
        Descriptor memory d = elementwise(Family.GATHER, 0, DType.F32, 4, dtypes(DType.F32, DType.I64));
        d.parameters = new int64[](1);
        int64[3] memory axes = [int64(1), type(int64).max, -1];
        for (uint256 i = 0; i < axes.length; ++i) {
            d.parameters[0] = axes[i];
            Question memory question = Question(abi.encode(d), new bytes32[](2), 0);
            Fault what = axes[i] < 0 ? Fault.NEGATIVE : Fault.GATHER_AXIS;
            vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, what));
            adjudicator.compute(setting(), question, new ChunkOpening[](0));
        }
    }

    function test_labelsThatAreNoInt64_areRefused() public {
        for (uint256 i = 0; i < 2; ++i) {
            Descriptor memory d = reduction(Family.ARGMAX, DType.I64, 4, 4, dtypes(DType.F32));
            d.parameters = i == 0 ? numbers(type(int64).max, 1, 1) : numbers(1, 2, 0);
            Question memory question = Question(abi.encode(d), roots(list(counting(4))), 0);
            ChunkOpening[] memory openings = openAll(list(counting(4)));
            vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.LABEL));
            adjudicator.compute(setting(), question, openings);
        }
    }
}
