// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Elementary} from "../../src/arithmetic/Elementary.sol";
import {Test} from "../support/Test.sol";

contract ElementaryHarness {
    function evaluate(uint8 code, uint32 x, uint8 bits) external pure returns (uint32, bool) {
        return Elementary.evaluate(code, x, bits);
    }
}

/// @notice Vectors: the correctly rounded values by series in 700-bit integers (scripts/make_arithmetic_vectors.py).
contract ElementaryTest is Test {
    ElementaryHarness private _functions;

    function setUp() public {
        _functions = new ElementaryHarness();
    }

    function wordAt(bytes memory data, uint256 i) private pure returns (uint32 word) {
        for (uint256 k = 0; k < 4; ++k) {
            word = (word << 8) | uint8(data[4 * i + k]);
        }
    }

    function test_everyFunction_isCorrectlyRounded_andDecided() public view {
        string memory json = vm.readFile("tests/vectors/functions.json");
        string[8] memory names = ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"];
        for (uint8 code = 0; code < names.length; ++code) {
            for (uint8 bits = 23; bits <= 32; bits += 9) {
                string memory key = string.concat(".", names[code], "_", vm.toString(bits));
                bytes memory cases = vm.parseJsonBytes(json, key);
                vm.assertGt(cases.length / 8, 80, "cases of a function");
                for (uint256 i = 0; i < cases.length / 4; i += 2) {
                    (uint32 result, bool decided) = _functions.evaluate(code, wordAt(cases, i), bits);
                    if (!decided || result != wordAt(cases, i + 1)) {
                        vm.assertTrue(decided, string.concat(key, " is decided at ", vm.toString(wordAt(cases, i))));
                        vm.assertEq(result, wordAt(cases, i + 1), string.concat(key, " of ", vm.toString(wordAt(cases, i))));
                    }
                }
            }
        }
    }

    function testFuzz_nothingReverts_andOddFunctionsAreOdd(uint32 x, uint8 code) public view {
        code %= 8;
        (uint32 result, bool decided) = _functions.evaluate(code, x, 32);
        (uint32 mirrored, bool decidedToo) = _functions.evaluate(code, x ^ 0x80000000, 32);
        bool odd = code == 4 || code == 5 || code == 6;
        bool even = code == 7;
        if (!decided || result == 0x7FC00000 || !(odd || even)) return;
        vm.assertTrue(decidedToo, "both or neither");
        vm.assertEq(mirrored, even || result == 0 ? result : result ^ 0x80000000, "symmetric");
    }

    /// @dev Rounding is monotone, and so are the functions and their correctly rounded values.
    function testFuzz_monotoneFunctions_areMonotone(uint32 x, uint16 step, uint8 code) public view {
        code %= 6;
        x = uint32(bound(x, 0, 0x7F7FFFFF));
        uint32 y = uint32(bound(uint256(x) + step, x, 0x7F7FFFFF));
        (uint32 low, bool first) = _functions.evaluate(code, x, 32);
        (uint32 high, bool second) = _functions.evaluate(code, y, 32);
        if (!first || !second) return;
        int256 a = low >> 31 == 0 ? int256(uint256(low)) : -int256(uint256(low & 0x7FFFFFFF));
        int256 b = high >> 31 == 0 ? int256(uint256(high)) : -int256(uint256(high & 0x7FFFFFFF));
        vm.assertTrue(a <= b, "monotone");
    }

    function test_aCodeThatIsNone_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(Elementary.NoSuchFunction.selector, uint8(8)));
        _functions.evaluate(8, 0, 32);
    }
}
