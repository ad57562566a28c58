// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Accumulator, ExactSum, Total} from "../../src/arithmetic/ExactSum.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {DType} from "../../src/adjudication/Descriptor.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {Finding} from "../../src/adjudication/IAdjudicator.sol";
import {Numbers} from "../../src/adjudication/Numbers.sol";
import {Scalar} from "../../src/adjudication/Scalars.sol";
import {Test} from "../support/Test.sol";

/// @notice BF16 and FP16. The vectors come from Python's integers and fractions (scripts/make_format_vectors.py).
contract FormatsTest is Test {
    using ExactSum for Accumulator;
    using ExactSum for Total;

    bytes private constant PANIC = abi.encodeWithSignature("Panic(uint256)", 1);

    Functions private immutable _functions = new Functions();

    function vectors() private view returns (string memory) {
        return vm.readFile("tests/vectors/formats.json");
    }

    function numberAt(bytes memory data, uint256 i, uint256 width) private pure returns (uint64 number) {
        for (uint256 k = 0; k < width; ++k) {
            number = (number << 8) | uint8(data[width * i + k]);
        }
    }

    function key(string memory what, uint256 a, uint256 b) private pure returns (string memory) {
        return string.concat(".", what, "_", vm.toString(a), "_", vm.toString(b));
    }

    function operands(uint64 a, uint64 b, uint256 count) private pure returns (uint64[] memory x) {
        x = new uint64[](count);
        x[0] = a;
        if (count == 2) x[1] = b;
    }

    function mapIsRight(string memory json, DType dtype, uint8 code) private view {
        string memory name = key("map", uint256(dtype), code);
        bytes memory cases = vm.parseJsonBytes(json, name);
        bool isUnary = code >= uint8(Scalar.FLOAT_SQRT) && code <= uint8(Scalar.FLOAT_FLOOR);
        uint256 count = isUnary ? 1 : 2;
        vm.assertGt(cases.length, 500 * 4 * (count + 1), "cases of an operator");
        DType to = code >= uint8(Scalar.FLOAT_EQ) ? DType.BOOL : dtype;
        for (uint256 i = 0; i < cases.length / 4; i += count + 1) {
            uint64[] memory x = operands(numberAt(cases, i, 4), numberAt(cases, i + 1, 4), count);
            uint64 expected = numberAt(cases, i + count, 4);
            uint64 found = _functions.map(code, x, dtype, to);
            if (found != expected) vm.assertEq(found, expected, string.concat(name, " of ", vm.toString(x[0])));
        }
    }

    function test_everyOperator_roundsOnceToTheFormat() public view {
        string memory json = vectors();
        for (uint8 code = 0; code <= uint8(Scalar.FLOAT_LE); ++code) {
            mapIsRight(json, DType.BF16, code);
            mapIsRight(json, DType.F16, code);
        }
    }

    function conversionIsRight(string memory json, DType from, DType to, Scalar code) private view {
        string memory name = key("convert", uint256(from), uint256(to));
        bytes memory cases = vm.parseJsonBytes(json, name);
        for (uint256 i = 0; i < cases.length / 8; i += 2) {
            uint64[] memory x = operands(numberAt(cases, i, 8), 0, 1);
            uint64 expected = numberAt(cases, i + 1, 8);
            uint64 found = _functions.map(uint8(code), x, from, to);
            if (found != expected) vm.assertEq(found, expected, string.concat(name, " of ", vm.toString(x[0])));
        }
    }

    function test_conversions_roundOnce() public view {
        string memory json = vectors();
        DType[2] memory short = [DType.BF16, DType.F16];
        for (uint256 i = 0; i < 2; ++i) {
            conversionIsRight(json, DType.F32, short[i], Scalar.FLOAT_TO_FLOAT);
            conversionIsRight(json, short[1 - i], short[i], Scalar.FLOAT_TO_FLOAT);
            conversionIsRight(json, DType.I64, short[i], Scalar.I64_TO_FLOAT);
            conversionIsRight(json, DType.BOOL, short[i], Scalar.BOOL_TO_FLOAT);
        }
    }

    /// @dev Every number of the 65,536 comes back, and NaN as the canonical one; to FP32 all are exact.
    function test_everyNumber_isOneOfFP32() public view {
        DType[2] memory short = [DType.BF16, DType.F16];
        uint64[2] memory nans = [uint64(0x7FC0), 0x7E00];
        for (uint256 i = 0; i < 2; ++i) {
            for (uint64 bits = 0; bits < 1 << 16; ++bits) {
                Float32 wide = Numbers.toFloat32(short[i], bits);
                uint256 magnitude = Float32.unwrap(wide) & 0x7FFFFFFF;
                if (magnitude > Rounding.INFINITY) {
                    vm.assertEq(_functions.map(uint8(Scalar.FLOAT_NEG), operands(bits, 0, 1), short[i], short[i]), nans[i], "NaN");
                } else if (Numbers.ofFloat32(short[i], wide) != bits) {
                    vm.assertEq(Numbers.ofFloat32(short[i], wide), bits, "a number");
                }
            }
        }
    }

    /// @dev Not taken for FP16, as what is neither FP32 nor BF16.
    function test_whatHasNoNumbers_hasNoFormat() public {
        DType[2] memory others = [DType.I64, DType.BOOL];
        uint64[] memory x = operands(0, 0, 2);
        for (uint256 i = 0; i < 2; ++i) {
            vm.expectRevert(PANIC);
            _functions.map(uint8(Scalar.FLOAT_ADD), x, DType.F32, others[i]);
            vm.expectRevert(PANIC);
            _functions.map(uint8(Scalar.FLOAT_EQ), x, others[i], DType.BOOL);
            vm.expectRevert(PANIC);
            _functions.map(uint8(Scalar.FLOAT_NEG), x, DType.F32, others[i]);
            vm.expectRevert(PANIC);
            _functions.evaluate(0, 0, others[i], 32);
        }
    }

    function functionIsRight(string memory json, DType dtype, uint8 code) private view {
        string memory name = key("function", uint256(dtype), code);
        bytes memory cases = vm.parseJsonBytes(json, name);
        vm.assertGt(cases.length / 8, 100, "cases of a function");
        for (uint256 i = 0; i < cases.length / 4; i += 2) {
            uint64 x = numberAt(cases, i, 4);
            (Finding finding, uint64 found) = _functions.evaluate(code, x, dtype, 32);
            if (finding != Finding.VALUE || found != numberAt(cases, i + 1, 4)) {
                vm.assertTrue(finding == Finding.VALUE, string.concat(name, " is decided at ", vm.toString(x)));
                vm.assertEq(found, numberAt(cases, i + 1, 4), string.concat(name, " of ", vm.toString(x)));
            }
        }
    }

    function test_everyFunction_isCorrectlyRounded_andDecided() public view {
        string memory json = vectors();
        for (uint8 code = 0; code < 8; ++code) {
            functionIsRight(json, DType.BF16, code);
            functionIsRight(json, DType.F16, code);
        }
    }

    /// @dev The spec's rounding bits are those of FP32.
    function test_otherRoundingBits_changeNothing() public view {
        for (uint8 bits = 23; bits <= 32; ++bits) {
            (, uint64 found) = _functions.evaluate(0, 0x3F80, DType.BF16, bits);
            vm.assertEq(found, 0x402E, "e in BF16");
            (, found) = _functions.evaluate(0, 0x3C00, DType.F16, bits);
            vm.assertEq(found, 0x4170, "e in FP16");
        }
    }

    function sumsAreRight(string memory json, DType dtype) private view {
        uint256 count = 0;
        string memory all = string.concat(".sums_", vm.toString(uint256(dtype)));
        for (; vm.keyExistsJson(json, string.concat(all, "[", vm.toString(count), "]")); ++count) {
            string memory one = string.concat(all, "[", vm.toString(count), "]");
            bytes memory a = vm.parseJsonBytes(json, string.concat(one, ".a"));
            bytes memory b = vm.parseJsonBytes(json, string.concat(one, ".b"));
            Accumulator memory sum;
            for (uint256 i = 0; i < a.length / 4; ++i) {
                Float32 left = Numbers.toFloat32(dtype, numberAt(a, i, 4));
                Float32 right = Numbers.toFloat32(dtype, numberAt(b, i, 4));
                sum.addProduct(Float32.unwrap(left), Float32.unwrap(right));
            }
            Float32 rounded = sum.total().rounded(Numbers.formatOf(dtype, 32));
            vm.assertEq(Numbers.ofFloat32(dtype, rounded), vm.parseJsonUint(json, string.concat(one, ".rounded")), one);
        }
        vm.assertGt(count, 40, "the file holds sums");
    }

    function test_sums_areRoundedOnceToTheFormat() public view {
        string memory json = vectors();
        sumsAreRight(json, DType.BF16);
        sumsAreRight(json, DType.F16);
    }
}
