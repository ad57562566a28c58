// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Binary32} from "../../src/arithmetic/Binary32.sol";
import {Accumulator, ExactSum, Total} from "../../src/arithmetic/ExactSum.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {Test} from "../support/Test.sol";

contract ExactSumHarness {
    using ExactSum for Accumulator;
    using ExactSum for Total;

    function resume(Total memory from) external pure returns (Total memory) {
        return ExactSum.resume(from).total();
    }

    /// @dev The gas of the loop itself, without call data and rounding.
    function gasOfTerms(uint256 a, uint256 b, uint256 count) external view returns (uint256 gas) {
        Accumulator memory sum;
        gas = gasleft();
        for (uint256 i = 0; i < count; ++i) {
            sum.addProduct(a, b);
        }
        gas -= gasleft();
    }
}

contract ExactSumTest is Test {
    using ExactSum for Accumulator;
    using ExactSum for Total;

    uint32 private constant ONE = 0x3F800000;

    ExactSumHarness private _harness;

    function setUp() public {
        _harness = new ExactSumHarness();
    }

    function wordAt(bytes memory data, uint256 i) private pure returns (uint32 word) {
        for (uint256 k = 0; k < 4; ++k) {
            word = (word << 8) | uint8(data[4 * i + k]);
        }
    }

    function encode(Total memory sum) private pure returns (bytes memory) {
        return abi.encodePacked(sum.high, sum.middle, sum.low);
    }

    function test_sums_areWhatPythonsIntegersGive() public view {
        string memory json = vm.readFile("tests/vectors/sums.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat(".cases[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat(".cases[", vm.toString(count), "]");
            bytes memory a = vm.parseJsonBytes(json, string.concat(key, ".a"));
            bytes memory b = vm.parseJsonBytes(json, string.concat(key, ".b"));
            Accumulator memory sum;
            for (uint256 i = 0; i < a.length / 4; ++i) {
                sum.addProduct(wordAt(a, i), wordAt(b, i));
            }
            Total memory total = sum.total();
            vm.assertEq(sum.special, 0, key);
            vm.assertEq(keccak256(encode(total)), keccak256(vm.parseJsonBytes(json, string.concat(key, ".total"))), key);
            vm.assertEq(Float32.unwrap(total.rounded(32)), vm.parseJsonUint(json, string.concat(key, ".rounded")), key);
        }
        vm.assertGt(count, 40, "the file holds sums");
    }

    // ----------------------------------------------------------------------------------------- against a slow second implementation

    /// @dev A sum in units of 2^-298 as ten digits of 64 bits, least significant first, each taken modulo 2^64: school arithmetic.
    function slowAdd(uint256[10] memory digits, uint32 a, uint32 b) private pure {
        (uint256 ma, uint256 ea) = slowSplit(a);
        (uint256 mb, uint256 eb) = slowSplit(b);
        uint256 shift = ea + eb;
        uint256 product = (ma * mb) << (shift % 64);
        bool negative = (a ^ b) >> 31 == 1;
        uint256 carry = 0;
        for (uint256 i = 0; i < 10; ++i) {
            uint256 digit = i < shift / 64 ? 0 : i - shift / 64 > 1 ? 0 : (product >> (64 * (i - shift / 64))) % (1 << 64);
            if (negative) {
                uint256 taken = digit + carry;
                carry = digits[i] < taken ? 1 : 0;
                digits[i] = digits[i] + (carry << 64) - taken;
            } else {
                uint256 whole = digits[i] + digit + carry;
                carry = whole >> 64;
                digits[i] = whole % (1 << 64);
            }
        }
    }

    function slowSplit(uint32 x) private pure returns (uint256, uint256) {
        uint256 exponent = (x / (1 << 23)) % 256;
        uint256 fraction = x % (1 << 23);
        return exponent == 0 ? (fraction, 0) : (fraction + (1 << 23), exponent - 1);
    }

    function finite(uint256 random) private pure returns (uint32 x) {
        x = uint32(random);
        if ((x >> 23) & 0xFF == 0xFF) x ^= 1 << 23;
    }

    function testFuzz_accumulation_equalsTheMathematicalSum(uint256 seed, uint8 length, bool nearCancellation) public pure {
        Accumulator memory sum;
        uint256[10] memory digits;
        uint256 lastTerm = 0;
        for (uint256 i = 0; i < length % 40; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            (uint32 a, uint32 b) = (finite(random), finite(random >> 32));
            // Every other term takes the one before it back, but for a few low bits.
            if (nearCancellation && i % 2 == 1) (a, b) = (finite(lastTerm ^ (1 << 31) ^ (random >> 250)), finite(lastTerm >> 32));
            lastTerm = (uint256(b) << 32) | a;
            sum.addProduct(a, b);
            slowAdd(digits, a, b);
        }
        Total memory total = sum.total();
        for (uint256 i = 0; i < 10; ++i) {
            uint256 word = i < 4 ? total.low : i < 8 ? total.middle : uint256(total.high);
            vm.assertEq((word >> (64 * (i % 4))) % (1 << 64), digits[i], "a digit");
        }
        vm.assertTrue(total.high >> 128 == (digits[9] >> 63 == 1 ? -1 : int256(0)), "the sign");
    }

    function testFuzz_order_doesNotMatter(uint256 seed, uint8 length) public pure {
        Accumulator memory forwards;
        Accumulator memory backwards;
        for (uint256 i = 0; i < length % 30; ++i) {
            uint256 first = uint256(keccak256(abi.encode(seed, i)));
            uint256 last = uint256(keccak256(abi.encode(seed, length % 30 - 1 - i)));
            forwards.addProduct(finite(first), finite(first >> 32));
            backwards.addProduct(finite(last >> 32), finite(last));
        }
        vm.assertEq(keccak256(encode(forwards.total())), keccak256(encode(backwards.total())), "one sum");
    }

    function testFuzz_aSumOfTwoProductsWithOne_isTheRoundedSum(uint32 x, uint32 y) public pure {
        (x, y) = (finite(x), finite(y));
        Accumulator memory sum;
        sum.addProduct(x, ONE);
        sum.addProduct(ONE, y);
        uint32 expected = Float32.unwrap(Binary32.add(Float32.wrap(x), Float32.wrap(y), Rounding.FULL_BITS));
        vm.assertEq(Float32.unwrap(sum.total().rounded(32)), expected == 1 << 31 ? 0 : expected, "x + y");
    }

    function testFuzz_aSingleProduct_isTheRoundedProduct(uint32 x, uint32 y) public pure {
        (x, y) = (finite(x), finite(y));
        Accumulator memory sum;
        sum.addProduct(x, y);
        uint32 expected = Float32.unwrap(Binary32.mul(Float32.wrap(x), Float32.wrap(y), Rounding.FULL_BITS));
        vm.assertEq(Float32.unwrap(sum.total().rounded(32)), expected == 1 << 31 ? 0 : expected, "x * y");
    }

    function testFuzz_aSumCutAnywhere_goesOnToTheSameTotal(uint256 seed, uint8 length, uint8 cut) public pure {
        Accumulator memory whole;
        Accumulator memory part;
        for (uint256 i = 0; i < length % 30; ++i) {
            if (i == cut % 30) part = ExactSum.resume(part.total());
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            whole.addProduct(finite(random), finite(random >> 32));
            part.addProduct(finite(random), finite(random >> 32));
        }
        vm.assertEq(keccak256(encode(part.total())), keccak256(encode(whole.total())), "one sum");
    }

    function testFuzz_anOpenedPartialSum_isItself(int256 high, uint256 middle, uint256 low) public view {
        high = int256(bound(uint256(high), 0, 1 << 83)) - (int256(1) << 82);
        if (high == ExactSum.MAX_HIGH) --high;
        Total memory again = _harness.resume(Total(high, middle, low));
        vm.assertEq(keccak256(encode(again)), keccak256(abi.encodePacked(high, middle, low)), "the same");
    }

    function test_partialSumThatNoTermsReach_reverts() public {
        int256[4] memory highs = [ExactSum.MAX_HIGH, -ExactSum.MAX_HIGH - 1, type(int256).max, type(int256).min];
        for (uint256 i = 0; i < highs.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(ExactSum.PartialSumOutOfRange.selector, highs[i]));
            _harness.resume(Total(highs[i], 0, 0));
        }
    }

    /// @dev The largest sum that the bounds promise: 2^40 terms of the largest product, added up by doubling and opened again.
    function test_theLongestSumOfTheLargestProducts_neitherWrapsNorIsRefused() public pure {
        Accumulator memory sum;
        sum.addProduct(0x7F7FFFFF, 0xFF7FFFFF);
        // Every window as full as the bound allows, checked arithmetic on purpose.
        int256 full = sum.window3 * int256(ExactSum.MAX_TERMS);
        (sum.window0, sum.window1, sum.window2, sum.window3) = (full, full, full, full);
        Total memory total = sum.total();
        Accumulator memory again = ExactSum.resume(total);
        vm.assertEq(keccak256(encode(again.total())), keccak256(encode(total)), "resumed");
        vm.assertEq(Float32.unwrap(total.rounded(32)), 0xFF800000, "minus infinity");
    }

    /// The sum of the terms that are infinite or NaN, by the operators + and *, is all that is left: whatever the others are, wherever
    /// the sum is cut.
    function testFuzz_infiniteAndUndefinedTerms_areAddedAsIeee754Says(uint32[6] memory x, uint8 special, uint8 cut) public pure {
        Accumulator memory sum;
        Float32 expected = Float32.wrap(0);
        bool any = false;
        for (uint256 i = 0; i < 6; i += 2) {
            uint32 a = (special >> i) & 1 == 1 ? infinite(x[i]) : finite(x[i]);
            uint32 b = (special >> i) & 2 == 2 ? infinite(x[i + 1]) : finite(x[i + 1]);
            sum.addProduct(a, b);
            if ((special >> i) & 3 != 0) {
                Float32 term = Binary32.mul(Float32.wrap(a), Float32.wrap(b), Rounding.FULL_BITS);
                expected = any ? Binary32.add(expected, term, Rounding.FULL_BITS) : term;
                any = true;
            }
            if (cut == i) sum = ExactSum.resume(sum.total());
        }
        Total memory total = sum.total();
        vm.assertEq(sum.special, any ? Float32.unwrap(expected) : 0, "noticed");
        if (!any) return;
        vm.assertEq(
            keccak256(encode(total)), keccak256(encode(Total(int256(uint256(Float32.unwrap(expected)) << 224), 0, 0))), "canonical"
        );
        vm.assertEq(Float32.unwrap(total.rounded(32)), Float32.unwrap(expected), "rounded");
        vm.assertEq(Float32.unwrap(total.rounded(23)), Float32.unwrap(expected), "in any format");
    }

    /// An infinity of either sign, or NaN of any bits.
    function infinite(uint32 x) private pure returns (uint32) {
        return 0x7F800000 | (x & 0x80000000) | (x % 3 == 0 ? x & 0x7FFFFF : 0);
    }

    function test_aTerm_costsAtMost400Gas() public view {
        uint32[4] memory kinds = [ONE, 0, 1, 0xFF7FFFFF];
        for (uint256 i = 0; i < kinds.length; ++i) {
            for (uint256 j = 0; j < kinds.length; ++j) {
                vm.assertLe(_harness.gasOfTerms(kinds[i], kinds[j], 100), 100 * 400, "a term of the loop");
            }
        }
    }
}
