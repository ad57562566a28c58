// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decoding} from "../../src/adjudication/Decoding.sol";
import {Descriptor, Descriptors, DType, Family, Fault, Input} from "../../src/adjudication/Descriptor.sol";
import {Partial, Question} from "../../src/adjudication/IAdjudicator.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Scalar} from "../../src/adjudication/Scalars.sol";
import {AdjudicationTest} from "../support/AdjudicationTest.sol";

contract DecodingHarness {
    function decode(bytes calldata encoded) external pure returns (Descriptor memory) {
        return Decoding.decode(encoded);
    }
}

/// @notice Descriptors that a customer could write and no program has: every call refuses them, by name, and soon.
contract HostileDescriptorTest is AdjudicationTest {
    uint256 private constant DTYPES = uint256(type(DType).max) + 1;

    /// @dev What reading the longest encoding may cost, of the 3,000,000 of one adjudication.
    uint256 private constant MAX_DECODING_GAS = 1_000_000;

    DecodingHarness private _harness;

    function setUp() public {
        _harness = new DecodingHarness();
    }

    function good() private pure returns (Descriptor memory) {
        return elementwise(Family.MAP, uint8(Scalar.FLOAT_ADD), DType.F32, 3, dtypes(DType.F32, DType.F32));
    }

    function sum() private pure returns (Descriptor memory) {
        return reduction(Family.SUM, DType.F32, 3, 4, dtypes(DType.F32));
    }

    /// @dev All four calls refuse, and by the same error.
    function refused(bytes memory encoded, bytes memory reason) private {
        Partial memory nothing;
        Question memory question = Question(encoded, new bytes32[](0), 0);
        ChunkOpening[] memory none = new ChunkOpening[](0);
        vm.expectRevert(reason);
        adjudicator.outline(encoded, CHUNK);
        vm.expectRevert(reason);
        adjudicator.compute(setting(), question, none);
        vm.expectRevert(reason);
        adjudicator.reduceSegment(setting(), question, 0, nothing, none);
        vm.expectRevert(reason);
        adjudicator.finish(encoded, nothing, 32);
    }

    function refused(Descriptor memory descriptor, Fault what) private {
        refused(abi.encode(descriptor), abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, what));
    }

    function refusedEncoding(bytes memory encoded, uint256 position) private {
        refused(encoded, abi.encodeWithSelector(Decoding.NotCanonical.selector, position));
    }

    function setWord(bytes memory data, uint256 position, uint256 value) private pure {
        assembly ("memory-safe") {
            mstore(add(add(data, 32), position), value)
        }
    }

    function wordAt(bytes memory data, uint256 position) private pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := mload(add(add(data, 32), position))
        }
    }

    // ------------------------------------------------------------------------------------------------------------------ what it says

    function test_moreAxesOrInputsThanTheLimits_areRefused() public {
        Descriptor memory d = sum();
        d.iteration = new uint64[](8);
        d.reduction = new uint64[](9);
        refused(d, Fault.AXES);
        d = good();
        d.inputs = new Input[](65);
        refused(d, Fault.TOO_MANY_INPUTS);
    }

    function test_sizesWhoseProductIsTooLarge_areRefused_alsoBehindAZero() public {
        uint64[2][4] memory hostile =
            [[uint64(1 << 21), 1 << 20], [uint64(0), (1 << 40) + 1], [type(uint64).max, 0], [type(uint64).max, type(uint64).max]];
        for (uint256 i = 0; i < hostile.length; ++i) {
            Descriptor memory d = sum();
            d.iteration = sizes(hostile[i][0], hostile[i][1]);
            refused(d, Fault.SIZE);
            d = sum();
            d.reduction = sizes(hostile[i][0], hostile[i][1]);
            refused(d, Fault.SIZE);
        }
    }

    function test_viewsWhoseProductIsTooLarge_areRefused_whenTheyAreRead() public {
        Descriptor memory d = elementwise(Family.COPY, 0, DType.F32, 3, dtypes(DType.F32));
        d.inputs[0].shape = sizes(0, (1 << 40) + 1);
        d.inputs[0].affine = new int64[](6);
        Question memory question = Question(abi.encode(d), new bytes32[](1), 0);
        expectFault(Fault.SIZE);
        adjudicator.compute(setting(), question, new ChunkOpening[](0));
    }

    function test_segmentsOfNoTermsOrTooMany_areRefused_andSegmentsOfWhatIsNoReduction() public {
        uint32[3] memory hostile = [uint32(0), 4097, type(uint32).max];
        for (uint256 i = 0; i < hostile.length; ++i) {
            Descriptor memory d = sum();
            d.segment = hostile[i];
            refused(d, Fault.SEGMENT);
        }
        Descriptor memory map = good();
        map.segment = 1;
        refused(map, Fault.REDUCTION);
        map = good();
        map.reduction = sizes(1);
        refused(map, Fault.REDUCTION);
    }

    function test_everyFamily_refusesCodesThatItHasNot() public {
        uint8[16] memory last = [0, 5, 0, 0, 0, 0, 1, 0, 31, 7, 0, 0, 1, 0, 0, 0];
        for (uint8 family = 0; family < 16; ++family) {
            Descriptor memory d = family < 10 ? good() : sum();
            (d.family, d.code) = (Family(family), last[family] + 1);
            if (family < 10) (d.segment, d.reduction) = (0, new uint64[](0));
            refused(d, Fault.CODE);
            d.code = 255;
            refused(d, Fault.CODE);
        }
    }

    function test_everyFamily_refusesAnotherOutput() public {
        uint8[16] memory output = [9, 9, 0, 9, 1, 0, 9, 9, 0, 0, 0, 0, 0, 1, 1, 2];
        for (uint8 family = 0; family < 16; ++family) {
            if (output[family] == 9) continue;
            for (uint8 dtype = 0; dtype < DTYPES; ++dtype) {
                // Of other numbers the inputs are wrong, then.
                bool isOther = family > uint8(Family.MAP) && output[family] == 0 && dtype > uint8(DType.BOOL);
                if (dtype == output[family] || isOther) continue;
                Descriptor memory d = family < 10 ? good() : sum();
                (d.family, d.dtype) = (Family(family), DType(dtype));
                refused(d, Fault.DTYPE);
            }
        }
    }

    function test_onlyAStoreOfNumbers_hasToBeFinite() public {
        Descriptor memory d = elementwise(Family.COPY, 1, DType.I64, 3, dtypes(DType.I64));
        refused(d, Fault.DTYPE);
        d = elementwise(Family.COPY, 1, DType.BOOL, 3, dtypes(DType.BOOL));
        refused(d, Fault.DTYPE);
        DType[3] memory accepted = [DType.F32, DType.BF16, DType.F16];
        for (uint256 i = 0; i < accepted.length; ++i) {
            d = elementwise(Family.COPY, 1, accepted[i], 3, dtypes(accepted[i]));
            adjudicator.outline(abi.encode(d), CHUNK);
        }
    }

    function test_numbersOfDifferentFormats_doNotMeet() public {
        refused(elementwise(Family.MAP, uint8(Scalar.FLOAT_ADD), DType.F32, 3, dtypes(DType.F32, DType.BF16)), Fault.DTYPE);
        refused(elementwise(Family.MAP, uint8(Scalar.FLOAT_ADD), DType.BF16, 3, dtypes(DType.F32, DType.F32)), Fault.DTYPE);
        refused(elementwise(Family.MAP, uint8(Scalar.FLOAT_LT), DType.BOOL, 3, dtypes(DType.BF16, DType.F16)), Fault.DTYPE);
        refused(elementwise(Family.MAP, uint8(Scalar.FLOAT_TO_FLOAT), DType.BF16, 3, dtypes(DType.BF16)), Fault.DTYPE);
        refused(elementwise(Family.FUNCTION, 0, DType.F32, 3, dtypes(DType.F16)), Fault.DTYPE);
        refused(elementwise(Family.COPY, 0, DType.F16, 3, dtypes(DType.F16, DType.BF16)), Fault.DTYPE);
        refused(reduction(Family.SUM, DType.BF16, 3, 4, dtypes(DType.BF16, DType.F32)), Fault.DTYPE);
        refused(reduction(Family.SELECTED_SUM, DType.F16, 3, 4, dtypes(DType.F32, DType.I64)), Fault.DTYPE);
        refused(reduction(Family.EXTREME, DType.F16, 3, 4, dtypes(DType.BF16)), Fault.DTYPE);
        refused(reduction(Family.ARGMAX, DType.I64, 3, 4, dtypes(DType.I64)), Fault.DTYPE);
    }

    /// @dev Every code of MAP with every combination of dtypes: one goes through, of numbers one for each of their dtypes (of conversions for
    ///      each other one), and one of WHERE for each dtype.
    function test_map_takesOneCombinationOfDTypesACode() public {
        for (uint8 code = 0; code <= uint8(type(Scalar).max); ++code) {
            uint256 accepted = 0;
            for (uint256 combination = 0; combination < DTYPES ** 4; ++combination) {
                DType[] memory inputs =
                    dtypes(kind(combination / DTYPES), kind(combination / DTYPES ** 2), kind(combination / DTYPES ** 3));
                for (uint256 count = 0; count <= 3; ++count) {
                    // Inputs that are not there are not counted twice.
                    if (combination / DTYPES ** (count + 1) != 0) continue;
                    // Three are too many for all codes but one: a part of them is tried.
                    if (count == 3 && code != uint8(Scalar.WHERE) && combination % 7 != 0) continue;
                    Descriptor memory d = elementwise(Family.MAP, code, kind(combination), 3, inputs);
                    Input[] memory some = new Input[](count);
                    for (uint256 i = 0; i < count; ++i) {
                        some[i] = d.inputs[i];
                    }
                    d.inputs = some;
                    try _harness.decode(abi.encode(d)) {
                        ++accepted;
                    } catch {}
                }
            }
            vm.assertEq(accepted, combinationsOf(Scalar(code)), string.concat("code ", vm.toString(code)));
        }
    }

    function combinationsOf(Scalar code) private pure returns (uint256) {
        if (code == Scalar.WHERE) return DTYPES;
        if (code == Scalar.FLOAT_TO_FLOAT) return 6;
        return code <= Scalar.FLOAT_LE || code == Scalar.I64_TO_FLOAT || code == Scalar.BOOL_TO_FLOAT ? 3 : 1;
    }

    function kind(uint256 number) private pure returns (DType) {
        return DType(number % DTYPES);
    }

    function test_everyFamily_refusesAnotherNumberOfInputs() public {
        uint8[16] memory fewest = [0, 0, 0, 0, 0, 0, 1, 2, 2, 1, 1, 2, 1, 1, 1, 1];
        uint8[16] memory most = [0, 0, 0, 0, 0, 0, 64, 2, 2, 1, 2, 2, 1, 1, 1, 1];
        uint8[16] memory output = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2];
        for (uint8 family = 0; family < 16; ++family) {
            Descriptor memory d = family < 10 ? good() : sum();
            (d.family, d.dtype) = (Family(family), DType(output[family]));
            if (fewest[family] > 0) {
                d.inputs = new Input[](fewest[family] - 1);
                refused(d, Fault.INPUTS);
            }
            if (most[family] == 64) continue;
            d.inputs = new Input[](most[family] + 1);
            refused(d, Fault.INPUTS);
        }
    }

    function test_everyFamily_refusesAnotherNumberOfParameters() public {
        Descriptor memory d;
        uint8[6] memory expected = [1, 4, 2, 0, 2, 1];
        for (uint8 family = 0; family < 6; ++family) {
            if (Family(family) == Family.CONSTANT) continue;
            (d.family, d.dtype) = (Family(family), Family(family) == Family.IOTA ? DType.I64 : DType.F32);
            d.parameters = new int64[](expected[family] - 1);
            refused(d, Fault.PARAMETERS);
            d.parameters = new int64[](expected[family] + 1);
            refused(d, Fault.PARAMETERS);
        }
        (d.family, d.dtype, d.iteration) = (Family.CONSTANT, DType.F32, sizes(33));
        d.parameters = new int64[](33);
        refused(d, Fault.PARAMETERS);
        d.parameters = new int64[](2);
        refused(d, Fault.PARAMETERS);
        d = good();
        d.parameters = new int64[](1);
        refused(d, Fault.PARAMETERS);
        d = reduction(Family.ARGMAX, DType.I64, 3, 4, dtypes(DType.F32));
        d.parameters = new int64[](2);
        refused(d, Fault.PARAMETERS);
        d = reduction(Family.SELECTED_SUM, DType.F32, 3, 4, dtypes(DType.F32, DType.I64));
        d.parameters = new int64[](4);
        refused(d, Fault.PARAMETERS);
    }

    function test_parametersOutOfRange_areRefused_whenTheyAreUsed() public {
        Descriptor memory d;
        (d.family, d.dtype, d.parameters) = (Family.STATE, DType.F32, new int64[](1));
        d.parameters[0] = -1;
        unanswered(d, 2, Fault.NEGATIVE);
        (d.family, d.parameters) = (Family.DATA, numbers(0, 1, 0, 1));
        unanswered(d, 2, Fault.EMPTY);
        d.parameters = numbers(0, 1, -1, 1);
        unanswered(d, 2, Fault.NEGATIVE);
        int64 most = type(int64).max;
        d.parameters = numbers(most, most, most, most);
        unanswered(d, 2, Fault.RANGE);
        (d.family, d.parameters) = (Family.SCHEDULE, new int64[](2));
        unanswered(d, 1, Fault.RANGE);
        (d.parameters[0], d.parameters[1]) = (3, 3);
        unanswered(d, 1, Fault.RANGE);
        // 4 steps of so many columns are more than 2^40 elements.
        (d.parameters[0], d.parameters[1]) = (0, 1 << 39);
        unanswered(d, 1, Fault.RANGE);
        (d.family, d.dtype, d.iteration) = (Family.IOTA, DType.I64, sizes(3));
        (d.parameters[0], d.parameters[1]) = (type(int64).max, 1);
        unanswered(d, 0, Fault.RANGE);
        (d.family, d.dtype, d.parameters) = (Family.UNIFORM, DType.F32, new int64[](1));
        d.parameters[0] = 1 << 32;
        unanswered(d, 0, Fault.RANGE);
        (d.family, d.parameters[0]) = (Family.CONSTANT, 1 << 32);
        unanswered(d, 0, Fault.RANGE);
        d.parameters[0] = -1;
        unanswered(d, 0, Fault.RANGE);
        (d.dtype, d.parameters[0]) = (DType.BOOL, 2);
        unanswered(d, 0, Fault.RANGE);
    }

    /// @dev Of its last element, with so many empty openings.
    function unanswered(Descriptor memory d, uint256 openings, Fault what) private {
        uint64 element = d.iteration.length == 0 ? 0 : d.iteration[0] - 1;
        expectFault(what);
        adjudicator.compute(setting(), Question(abi.encode(d), new bytes32[](0), element), new ChunkOpening[](openings));
    }

    function expectFault(Fault what) private {
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, what));
    }

    // ------------------------------------------------------------------------------------------------------------------ the encoding

    function test_trailingBytes_andMissingOnes_areRefused() public {
        bytes memory encoded = abi.encode(sum());
        refusedEncoding(bytes.concat(encoded, hex"00"), encoded.length);
        refusedEncoding(bytes.concat(encoded, new bytes(32)), encoded.length);
        refusedEncoding(slice(encoded, 0, encoded.length - 1), encoded.length - 32);
        refusedEncoding(slice(encoded, 0, encoded.length - 32), encoded.length - 32);
        refusedEncoding("", 0);
        refusedEncoding(new bytes(65537), 65536);
    }

    function test_offsetsThatPointElsewhere_areRefused() public {
        bytes memory encoded = abi.encode(good());
        // The struct, its four lists, the first input, and that input's two lists.
        uint256 inputs = 32 + wordAt(encoded, 32 * 7);
        uint256[8] memory places = [0, 32 * 5, 32 * 6, 32 * 7, 32 * 8, inputs + 32, inputs + 32 * 5, inputs + 32 * 6];
        uint256[7] memory wrong = [uint256(0), 32, 1, type(uint64).max, type(uint256).max, type(uint256).max - 31, 1 << 255];
        for (uint256 i = 0; i < places.length; ++i) {
            uint256 right = wordAt(encoded, places[i]);
            for (uint256 k = 0; k < wrong.length; ++k) {
                if (wrong[k] == right) continue;
                setWord(encoded, places[i], wrong[k]);
                refusedEncoding(encoded, places[i]);
            }
            setWord(encoded, places[i], right);
        }
        vm.assertEq(keccak256(encoded), keccak256(abi.encode(good())), "as it was");
    }

    function test_lengthsBeyondTheEnd_areRefused() public {
        bytes memory encoded = abi.encode(good());
        uint256 iteration = 32 + wordAt(encoded, 32 * 5);
        setWord(encoded, iteration, type(uint256).max);
        refusedEncoding(encoded, iteration);
        setWord(encoded, iteration, 65536);
        refusedEncoding(encoded, 32 * 6); // the next list would have to stand elsewhere
    }

    /// @dev A few kilobytes that stand for megabytes: every input is the same one.
    function test_aMemoryBomb_isRefused_beforeItGoesOff() public {
        Descriptor memory d = good();
        d.inputs = new Input[](64);
        d.inputs[63] = straight(0, DType.F32, 3);
        d.inputs[63].affine = new int64[](1500);
        bytes memory encoded = abi.encode(d);
        uint256 offsets = 32 + wordAt(encoded, 32 * 7) + 32;
        uint256 last = wordAt(encoded, offsets + 32 * 63);
        for (uint256 i = 0; i < 63; ++i) {
            setWord(encoded, offsets + 32 * i, last);
        }
        uint256 gas = gasleft();
        refusedEncoding(encoded, offsets);
        vm.assertLe(gas - gasleft(), 4 * MAX_DECODING_GAS, "gas of four calls");
    }

    function test_theLongestEncoding_isReadInBoundedGas() public {
        Descriptor memory d = elementwise(Family.COPY, 0, DType.F32, 3, dtypes(DType.F32));
        d.inputs = new Input[](64);
        for (uint64 i = 0; i < 64; ++i) {
            d.inputs[i] = straight(i, DType.F32, 3);
            d.inputs[i].affine = new int64[](22);
        }
        bytes memory encoded = abi.encode(d);
        vm.assertGt(encoded.length, 60000, "long");
        uint256 gas = gasleft();
        _harness.decode(encoded);
        vm.assertLe(gas - gasleft(), 2 * MAX_DECODING_GAS, "gas, the way back from the harness included");
        gas = gasleft();
        adjudicator.outline(encoded, CHUNK);
        vm.assertLe(gas - gasleft(), MAX_DECODING_GAS, "gas");
    }

    function test_dirtyBitsAboveANumber_areRefused_withoutData() public {
        bytes memory encoded = abi.encode(good());
        // family, code, dtype, segment, and the size of the iteration axis
        uint256[5] memory places = [uint256(32), 64, 96, 128, 64 + wordAt(encoded, 32 * 5)];
        for (uint256 i = 0; i < places.length; ++i) {
            uint256 right = wordAt(encoded, places[i]);
            setWord(encoded, places[i], right | (1 << 64));
            refused(encoded, "");
            setWord(encoded, places[i], right);
        }
        // An int64 that is not the extension of its sign.
        uint256 affine = encoded.length - 32 * 4;
        vm.assertEq(wordAt(encoded, affine + 64), 1, "the last coefficient");
        setWord(encoded, affine + 64, uint256(type(uint64).max));
        refused(encoded, "");
    }

    function test_unknownFamiliesAndDTypes_areRefused_withoutData() public {
        bytes memory encoded = abi.encode(good());
        setWord(encoded, 32, uint256(type(Family).max) + 1);
        refused(encoded, "");
        encoded = abi.encode(good());
        setWord(encoded, 96, DTYPES);
        refused(encoded, "");
    }

    function testFuzz_whatIsAccepted_isTheOneEncodingOfWhatItSays(uint256 which, uint256 place, uint256 word, bool whole)
        public
        view
    {
        bytes memory encoded = abi.encode(which % 2 == 0 ? good() : sum());
        place %= encoded.length;
        if (whole) setWord(encoded, place / 32 * 32, which % 3 == 0 ? word : word % 1024);
        else encoded[place] = bytes1(uint8(word));
        try _harness.decode(encoded) returns (Descriptor memory descriptor) {
            vm.assertEq(keccak256(abi.encode(descriptor)), keccak256(encoded), "canonical");
        } catch {}
    }

    function test_everyDescriptorOfAProgram_isAccepted() public view {
        string memory json = vm.readFile("tests/vectors/descriptors.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat(".operators[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat(".operators[", vm.toString(count), "].encoded");
            bytes memory encoded = vm.parseJsonBytes(json, key);
            vm.assertEq(keccak256(abi.encode(_harness.decode(encoded))), keccak256(encoded), "accepted as it is");
        }
        vm.assertGt(count, 80, "every operator is there");
    }
}
