// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Philox} from "../../src/arithmetic/Philox.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {SwapOrNot} from "../../src/arithmetic/SwapOrNot.sol";
import {Test} from "../support/Test.sol";

contract RandomnessHarness {
    function shuffledIndex(uint256 position, uint256 count, bytes32 seed) external pure returns (uint256) {
        return SwapOrNot.shuffledIndex(position, count, seed);
    }

    function rowOfPosition(uint64 seed, uint256 position, uint64 rows) external pure returns (uint256) {
        return SwapOrNot.rowOfPosition(seed, position, rows);
    }
}

contract RandomnessTest is Test {
    RandomnessHarness private _harness;

    function setUp() public {
        _harness = new RandomnessHarness();
    }

    /// @dev Random123 1.14, tests/kat_vectors, "philox4x64 10".
    function test_philox_givesThePublishedBlocks() public pure {
        uint64[4] memory zero = Philox.block4x64([uint64(0), 0, 0, 0], [uint64(0), 0]);
        vm.assertTrue(zero[0] == 0x16554D9ECA36314C && zero[1] == 0xDB20FE9D672D0FDC, "zeros, first half");
        vm.assertTrue(zero[2] == 0xD7E772CEE186176B && zero[3] == 0x7E68B68AEC7BA23B, "zeros, second half");
        uint64 top = type(uint64).max;
        uint64[4] memory ones = Philox.block4x64([top, top, top, top], [top, top]);
        vm.assertTrue(ones[0] == 0x87B092C3013FE90B && ones[1] == 0x438C3C67BE8D0224, "ones, first half");
        vm.assertTrue(ones[2] == 0x9CC7D7C69CD777B6 && ones[3] == 0xA09CAEBF594F0BA0, "ones, second half");
    }

    function test_words_areThoseOfNumPy() public view {
        string memory json = vm.readFile("tests/vectors/randomness.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat(".philox[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat(".philox[", vm.toString(count), "]");
            uint64 seed = uint64(vm.parseJsonUint(json, string.concat(key, ".seed")));
            uint32 step = uint32(vm.parseJsonUint(json, string.concat(key, ".step")));
            uint32 stream = uint32(vm.parseJsonUint(json, string.concat(key, ".stream")));
            uint64 index = uint64(vm.parseJsonUint(json, string.concat(key, ".index")));
            uint256 word = vm.parseJsonUint(json, string.concat(key, ".word"));
            vm.assertEq(Philox.word(seed, step, stream, index), word, key);
        }
        vm.assertGt(count, 20, "the file holds words");
    }

    function testFuzz_uniform_isTheTop24BitsAsAFraction(uint64 seed, uint32 step, uint32 stream, uint64 index) public pure {
        uint256 top = Philox.word(seed, step, stream, index) >> 8;
        uint256 bits = Float32.unwrap(Philox.uniform(seed, step, stream, index));
        if (top == 0) {
            vm.assertEq(bits, 0, "+0");
            return;
        }
        // 1.fraction * 2^(exponent - 127) = top * 2^-24
        uint256 exponent = bits >> 23;
        vm.assertLe(exponent, 126, "below 1");
        vm.assertEq(((bits & 0x7FFFFF) | 0x800000) << (exponent + 24 + 1 - 127 - 1 + 26), top << (23 + 26), "the same number");
    }

    function test_rows_areThoseOfTheConsensusSpecs() public view {
        string memory json = vm.readFile("tests/vectors/randomness.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat(".shuffle[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat(".shuffle[", vm.toString(count), "]");
            uint64 seed = uint64(vm.parseJsonUint(json, string.concat(key, ".seed")));
            uint256 position = vm.parseJsonUint(json, string.concat(key, ".position"));
            uint64 rows = uint64(vm.parseJsonUint(json, string.concat(key, ".rows")));
            uint256 row = vm.parseJsonUint(json, string.concat(key, ".row"));
            vm.assertEq(_harness.rowOfPosition(seed, position, rows), row, key);
        }
        vm.assertGt(count, 20, "the file holds rows");
    }

    function test_aShuffle_isAPermutation() public view {
        uint256[4] memory counts = [uint256(1), 2, 31, 40];
        for (uint256 k = 0; k < counts.length; ++k) {
            uint256 seen = 0;
            for (uint256 i = 0; i < counts[k]; ++i) {
                seen |= 1 << _harness.shuffledIndex(i, counts[k], keccak256(abi.encode(k)));
            }
            vm.assertEq(seen, (1 << counts[k]) - 1, "every row once");
        }
    }

    function test_aShuffleThatIsNone_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(SwapOrNot.CountOutOfRange.selector, 0));
        _harness.shuffledIndex(0, 0, bytes32(0));
        vm.expectRevert(abi.encodeWithSelector(SwapOrNot.CountOutOfRange.selector, 0));
        _harness.rowOfPosition(0, 5, 0);
        vm.expectRevert(abi.encodeWithSelector(SwapOrNot.CountOutOfRange.selector, (1 << 40) + 1));
        _harness.shuffledIndex(0, (1 << 40) + 1, bytes32(0));
        vm.expectRevert(abi.encodeWithSelector(SwapOrNot.PositionOutOfRange.selector, 7, 7));
        _harness.shuffledIndex(7, 7, bytes32(0));
    }
}
