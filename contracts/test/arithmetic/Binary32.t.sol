// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Binary32} from "../../src/arithmetic/Binary32.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {Test} from "../support/Test.sol";

/// @notice The vectors come from Python's integers and fractions (scripts/make_arithmetic_vectors.py); the properties need no oracle.
contract Binary32Test is Test {
    uint32 private constant ONE = 0x3F800000;
    uint32 private constant INFINITY = 0x7F800000;
    uint32 private constant NAN = 0x7FC00000;

    function binary(string memory name, uint32 x, uint32 y) private pure returns (uint256) {
        (Float32 a, Float32 b) = (Float32.wrap(x), Float32.wrap(y));
        bytes32 operator = keccak256(bytes(name));
        if (operator == keccak256("add")) return Float32.unwrap(Binary32.add(a, b, Rounding.FULL_BITS));
        if (operator == keccak256("sub")) return Float32.unwrap(Binary32.sub(a, b, Rounding.FULL_BITS));
        if (operator == keccak256("mul")) return Float32.unwrap(Binary32.mul(a, b, Rounding.FULL_BITS));
        if (operator == keccak256("div")) return Float32.unwrap(Binary32.div(a, b, Rounding.FULL_BITS));
        if (operator == keccak256("maximum")) return Float32.unwrap(Binary32.maximum(a, b));
        if (operator == keccak256("minimum")) return Float32.unwrap(Binary32.minimum(a, b));
        if (operator == keccak256("eq")) return Binary32.eq(a, b) ? 1 : 0;
        if (operator == keccak256("lt")) return Binary32.lt(a, b) ? 1 : 0;
        return Binary32.le(a, b) ? 1 : 0;
    }

    function unary(string memory name, uint32 x) private pure returns (uint256) {
        Float32 a = Float32.wrap(x);
        bytes32 operator = keccak256(bytes(name));
        if (operator == keccak256("sqrt")) return Float32.unwrap(Binary32.sqrt(a, Rounding.FULL_BITS));
        if (operator == keccak256("floor")) return Float32.unwrap(Binary32.floor(a));
        if (operator == keccak256("neg")) return Float32.unwrap(Binary32.neg(a));
        return Float32.unwrap(Binary32.abs(a));
    }

    function wordAt(bytes memory data, uint256 i) private pure returns (uint32 word) {
        for (uint256 k = 0; k < 4; ++k) {
            word = (word << 8) | uint8(data[4 * i + k]);
        }
    }

    function test_everyOperator_givesWhatIntegersAndFractionsGive() public view {
        string memory json = vm.readFile("tests/vectors/binary32.json");
        string[9] memory two = ["add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt", "le"];
        for (uint256 k = 0; k < two.length; ++k) {
            bytes memory cases = vm.parseJsonBytes(json, string.concat(".", two[k]));
            vm.assertGt(cases.length / 12, 1000, "cases of an operator");
            for (uint256 i = 0; i < cases.length / 4; i += 3) {
                (uint32 a, uint32 b, uint32 expected) = (wordAt(cases, i), wordAt(cases, i + 1), wordAt(cases, i + 2));
                if (binary(two[k], a, b) != expected) {
                    vm.assertEq(binary(two[k], a, b), expected, string.concat(two[k], " of ", vm.toString(a), ", ", vm.toString(b)));
                }
            }
        }
        string[4] memory one = ["sqrt", "floor", "neg", "abs"];
        for (uint256 k = 0; k < one.length; ++k) {
            bytes memory cases = vm.parseJsonBytes(json, string.concat(".", one[k]));
            vm.assertGt(cases.length / 8, 500, "cases of an operator");
            for (uint256 i = 0; i < cases.length / 4; i += 2) {
                (uint32 a, uint32 expected) = (wordAt(cases, i), wordAt(cases, i + 1));
                if (unary(one[k], a) != expected) {
                    vm.assertEq(unary(one[k], a), expected, string.concat(one[k], " of ", vm.toString(a)));
                }
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------------------ properties

    /// @dev A finite pattern in units of 2^-149 fits 278 bits; with exponents held below 2^100 it fits an int256.
    function units(uint32 bits) private pure returns (int256) {
        uint256 exponent = (bits >> 23) & 0xFF;
        uint256 fraction = bits & 0x7FFFFF;
        int256 magnitude = exponent == 0 ? int256(fraction) : int256((fraction + 0x800000) << (exponent - 1));
        return bits >> 31 == 0 ? magnitude : -magnitude;
    }

    function distance(int256 a, int256 b) private pure returns (uint256) {
        return a > b ? uint256(a - b) : uint256(b - a);
    }

    /// @dev Keeps sign and fraction, and folds the exponent into 0..227, so that sums of `units` stay below 2^253.
    function small(uint32 bits) private pure returns (uint32) {
        uint32 exponent = ((bits >> 23) & 0xFF) % 228;
        return (bits & 0x807FFFFF) | (exponent << 23);
    }

    /// @dev No pattern is nearer to an exact number of units, and on a tie the result is the even one.
    function assertNearest(uint32 result, int256 exact) private pure {
        uint256 off = distance(units(result), exact);
        uint32[2] memory neighbours = [result & 0x7FFFFFFF == 0 ? result ^ 0x80000001 : result - 1, result + 1];
        for (uint256 k = 0; k < 2; ++k) {
            uint256 other = distance(units(neighbours[k]), exact);
            vm.assertTrue(off < other || (off == other && result & 1 == 0), "a neighbour is not better");
        }
    }

    function testFuzz_sum_isTheNearestNumber(uint32 x, uint32 y) public pure {
        (x, y) = (small(x), small(y));
        uint32 result = Float32.unwrap(Binary32.add(Float32.wrap(x), Float32.wrap(y), Rounding.FULL_BITS));
        assertNearest(result, units(x) + units(y));
    }

    function testFuzz_sumOfNeighbouringExponents_isTheNearestNumber(uint32 x, uint32 y, uint32 away) public pure {
        x = small(x);
        uint32 exponent = uint32(bound(uint256((x >> 23) & 0xFF) + away % 52, 26, 227 + 26) - 26);
        y = (y & 0x807FFFFF) | (exponent << 23);
        assertNearest(Float32.unwrap(Binary32.add(Float32.wrap(x), Float32.wrap(y), Rounding.FULL_BITS)), units(x) + units(y));
    }

    function testFuzz_multiplicationByAPowerOfTwo_movesTheExponent(uint32 x, uint8 e) public pure {
        x = (x & 0x807FFFFF) | (uint32(64 + (x >> 23) % 64) << 23);
        uint32 power = uint32(bound(e, 64, 190)) << 23;
        uint32 result = Float32.unwrap(Binary32.mul(Float32.wrap(x), Float32.wrap(power), Rounding.FULL_BITS));
        unchecked {
            vm.assertEq(result, x + power - ONE, "x * 2^e");
        }
        vm.assertEq(Float32.unwrap(Binary32.div(Float32.wrap(result), Float32.wrap(power), Rounding.FULL_BITS)), x, "and back");
    }

    /// @dev 2 |r y - x| <= ulp(r) |y|, in integers: nothing but mantissas, as exponents only move a quotient.
    function testFuzz_quotient_isWithinHalfALastPlace(uint32 p, uint32 q) public pure {
        uint256 dividend = (p & 0x7FFFFF) | 0x800000;
        uint256 divisor = (q & 0x7FFFFF) | 0x800000;
        uint32 result = Float32.unwrap(
            Binary32.div(Float32.wrap(ONE | (p & 0x7FFFFF)), Float32.wrap(ONE | (q & 0x7FFFFF)), Rounding.FULL_BITS)
        );
        // In [1/2, 2): units of 2^-24 or 2^-23.
        uint256 shift = result < ONE ? 24 : 23;
        int256 remainder = int256(dividend << shift) - int256(((result & 0x7FFFFF) | 0x800000) * divisor);
        vm.assertLe(2 * distance(remainder, 0), divisor, "a quotient of numbers with 24 bits never ties");
    }

    /// @dev (r - 1/2)^2 < x < (r + 1/2)^2 in units of the last place.
    function testFuzz_root_isWithinHalfALastPlace(uint32 x) public pure {
        x = (x & 0x7FFFFF) | (uint32(bound(x >> 23, 1, 254)) << 23);
        uint32 result = Float32.unwrap(Binary32.sqrt(Float32.wrap(x), Rounding.FULL_BITS));
        uint256 exponent = x >> 23;
        uint256 mantissa = uint256((x & 0x7FFFFF) | 0x800000) << (exponent % 2 == 1 ? 23 : 24);
        uint256 root = (result & 0x7FFFFF) | 0x800000;
        vm.assertGt(4 * mantissa + 1, 4 * root * root - 4 * root + 1, "not too large");
        vm.assertGt(4 * root * root + 4 * root + 1, 4 * mantissa, "not too small");
        vm.assertEq(result >> 23, (exponent + (exponent % 2 == 1 ? 127 : 126)) / 2, "half the exponent");
    }

    function testFuzz_sumsAndProducts_commute(uint32 x, uint32 y) public pure {
        (Float32 a, Float32 b) = (Float32.wrap(x), Float32.wrap(y));
        vm.assertEq(
            Float32.unwrap(Binary32.add(a, b, Rounding.FULL_BITS)), Float32.unwrap(Binary32.add(b, a, Rounding.FULL_BITS)), "a + b"
        );
        vm.assertEq(
            Float32.unwrap(Binary32.mul(a, b, Rounding.FULL_BITS)), Float32.unwrap(Binary32.mul(b, a, Rounding.FULL_BITS)), "a * b"
        );
    }

    function testFuzz_signs_factorOut(uint32 x, uint32 y) public pure {
        vm.assume(x & 0x7FFFFFFF <= INFINITY && y & 0x7FFFFFFF <= INFINITY);
        (Float32 a, Float32 b) = (Float32.wrap(x), Float32.wrap(y));
        uint32 product = Float32.unwrap(Binary32.mul(a, b, Rounding.FULL_BITS));
        uint32 quotient = Float32.unwrap(Binary32.div(a, b, Rounding.FULL_BITS));
        if (product != NAN) {
            vm.assertEq(Float32.unwrap(Binary32.mul(Binary32.neg(a), b, Rounding.FULL_BITS)), product ^ 0x80000000, "-a * b");
        }
        if (quotient != NAN) {
            vm.assertEq(Float32.unwrap(Binary32.div(a, Binary32.neg(b), Rounding.FULL_BITS)), quotient ^ 0x80000000, "a / -b");
        }
    }

    function testFuzz_order_isTotalOnNumbers(uint32 x, uint32 y) public pure {
        vm.assume(x & 0x7FFFFFFF <= INFINITY && y & 0x7FFFFFFF <= INFINITY);
        (Float32 a, Float32 b) = (Float32.wrap(x), Float32.wrap(y));
        uint256 count = (Binary32.lt(a, b) ? 1 : 0) + (Binary32.lt(b, a) ? 1 : 0) + (Binary32.eq(a, b) ? 1 : 0);
        vm.assertEq(count, 1, "less, greater or equal");
        vm.assertTrue(Binary32.le(a, b) == (Binary32.lt(a, b) || Binary32.eq(a, b)), "le");
        // The sign of a difference is the order (gradual underflow: no difference of different numbers is zero).
        uint32 difference = Float32.unwrap(Binary32.sub(a, b, Rounding.FULL_BITS));
        if (difference != NAN) vm.assertTrue(Binary32.lt(Float32.wrap(difference), Float32.wrap(0)) == Binary32.lt(a, b), "a - b");
    }

    function testFuzz_floorSqrt_isTheFloorOfTheRoot(uint256 x, uint8 shift) public pure {
        x >>= shift;
        uint256 root = Binary32.floorSqrt(x);
        vm.assertLe(root, type(uint128).max, "half the bits");
        vm.assertTrue(root * root <= x, "not above");
        vm.assertTrue(root == type(uint128).max || (root + 1) * (root + 1) > x, "not below");
    }

    function testFuzz_floor_isTheIntegerBelow(uint32 x) public pure {
        x = (x & 0x807FFFFF) | (uint32(bound((x >> 23) & 0xFF, 100, 160)) << 23);
        int256 below = units(Float32.unwrap(Binary32.floor(Float32.wrap(x))));
        int256 one = int256(1) << 149;
        vm.assertTrue(below % one == 0 && below <= units(x) && units(x) - below < one, "floor");
    }

    function testFuzz_integer_isRoundedToNearest(int64 number, uint8 shift) public pure {
        number >>= shift % 64;
        uint32 result = Float32.unwrap(Binary32.fromInt64(number, Rounding.FULL_BITS));
        assertNearest(result, int256(number) << 149);
        vm.assertTrue(result != 0x80000000, "no -0 from an integer");
    }

    // ----------------------------------------------------------------------------------------------------------------- rounding

    /// @dev Rounding itself, against its definition: the neighbours in units of 2^exponent, compared by doubling.
    function testFuzz_rounding_takesTheNearest_andTheEvenOne(uint256 magnitude, uint8 cut, int8 exponent) public pure {
        magnitude = (magnitude >> cut) >> 4;
        int256 e = exponent < 100 ? exponent : int256(100);
        uint256 bits = Float32.unwrap(Rounding.nearest(0, magnitude, e));
        if (bits == INFINITY) {
            // The tie between the largest number and 2^128 goes to infinity.
            vm.assertTrue(
                e >= 0 ? magnitude >= ((1 << 25) - 1) << (103 - uint256(e)) : magnitude >> uint256(-e) >= ((1 << 25) - 1) << 103,
                "overflow"
            );
            return;
        }
        (uint256 mantissa, uint256 biased) = Binary32.split(bits);
        int256 place = int256(biased) + Rounding.MIN_EXPONENT - e;
        if (place <= 0) {
            vm.assertEq(mantissa, magnitude << uint256(-place), "exact");
            return;
        }
        if (place > 255) {
            vm.assertTrue(mantissa == 0, "below half of the smallest number");
            return;
        }
        uint256 value = mantissa << uint256(place);
        uint256 off = value > magnitude ? value - magnitude : magnitude - value;
        uint256 half = 1 << uint256(place - 1);
        // Below a power of two the spacing is half as wide.
        if (mantissa == 1 << 23 && biased > 0 && magnitude < value) half >>= 1;
        vm.assertTrue(off < half || (off == half && bits & 1 == 0), "nearest, even on a tie");
    }

    /// @dev Rounding to fewer bits, against full rounding of the same count: the format's numbers are FP32 numbers 2^dropped apart.
    function testFuzz_fewerBits_areTheNearestNumberOfTheFormat(uint256 magnitude, uint8 cut, int8 exponent, uint8 bits)
        public
        pure
    {
        bits = uint8(bound(bits, 23, 31));
        magnitude = uint256(uint64(magnitude)) >> (cut % 64);
        int256 e = exponent < 40 ? int256(exponent) : int256(40);
        uint256 result = Float32.unwrap(Rounding.nearestOf(0, magnitude, e - 80, bits));
        uint256 step = 1 << (32 - bits);
        vm.assertEq(result % step, 0, "of the format");
        // Units of 2^-208 hold everything exactly: 2^-149 and up for results, 2^-208 and up for magnitudes.
        uint256 exact = magnitude << uint256(e + 128);
        uint256 value = inUnits(result);
        uint256 off = value > exact ? value - exact : exact - value;
        uint256 above = inUnits(result + step) - exact;
        vm.assertTrue(off < above || (off == above && (result / step) % 2 == 0), "not nearer to the next");
        if (result == 0) return;
        uint256 below = exact - inUnits(result - step);
        vm.assertTrue(off < below || (off == below && (result / step) % 2 == 0), "not nearer to the last");
    }

    function inUnits(uint256 bits) private pure returns (uint256) {
        (uint256 mantissa, uint256 exponent) = Binary32.split(bits);
        return mantissa << (exponent + 59);
    }

    function testFuzz_topBit_isTheLogarithm(uint256 x, uint8 shift) public pure {
        x >>= shift;
        uint256 top = Rounding.topBit(x);
        if (x == 0) vm.assertEq(top, 0, "zero");
        else vm.assertTrue(x >> top == 1, "the highest bit");
    }
}
