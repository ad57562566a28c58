// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {GroupRule, TensorCore} from "../../src/arithmetic/TensorCore.sol";
import {TensorCoreHarness} from "../support/TensorCoreHarness.sol";
import {Test} from "../support/Test.sol";

/// @notice The vectors come from Python's integers (scripts/make_tensor_core_vectors.py).
contract TensorCoreTest is Test {
    uint32 private constant NO_VALUE = 0x7FC00000;

    TensorCoreHarness private _harness;

    function setUp() public {
        _harness = new TensorCoreHarness();
    }

    function hopper() private pure returns (GroupRule memory) {
        return GroupRule(25, 16, 1, false);
    }

    function wordAt(bytes memory data, uint256 i) private pure returns (uint256 word) {
        for (uint256 k = 0; k < 4; ++k) {
            word = (word << 8) | uint8(data[4 * i + k]);
        }
    }

    function ruleOf(string memory json, string memory key) private pure returns (GroupRule memory) {
        return GroupRule(
            vm.parseJsonUint(json, string.concat(key, ".fraction_bits")),
            vm.parseJsonUint(json, string.concat(key, ".terms")),
            vm.parseJsonUint(json, string.concat(key, ".least_normal")),
            vm.parseJsonUint(json, string.concat(key, ".subnormals")) == 1
        );
    }

    /// @dev Whether the group whose words begin at `start` has a value.
    function check(GroupRule memory rule, bytes memory cases, uint256 start, string memory key) private pure returns (bool) {
        uint256[] memory a = new uint256[](rule.terms);
        uint256[] memory b = new uint256[](rule.terms);
        for (uint256 i = 0; i < rule.terms; ++i) {
            (a[i], b[i]) = (wordAt(cases, start + 1 + i), wordAt(cases, start + 1 + rule.terms + i));
        }
        (uint32 pattern, bool hasValue) = TensorCore.group(rule, wordAt(cases, start), a, b);
        uint256 expected = wordAt(cases, start + 2 * rule.terms + 1);
        if ((hasValue ? pattern : NO_VALUE) != expected) {
            vm.assertEq(hasValue ? pattern : NO_VALUE, expected, string.concat(key, ": the group at word ", vm.toString(start)));
        }
        return hasValue;
    }

    function test_everyGroup_isWhatPythonsIntegersGive() public view {
        string memory json = vm.readFile("tests/vectors/tensor_core.json");
        string[7] memory names =
            ["hopper_bf16", "hopper_f16", "hopper_tf32", "ampere_bf16", "ampere_f16", "ampere_tf32", "volta_f16"];
        uint256 groups = 0;
        uint256 refused = 0;
        for (uint256 k = 0; k < names.length; ++k) {
            string memory key = string.concat(".", names[k]);
            GroupRule memory rule = ruleOf(json, key);
            bytes memory cases = vm.parseJsonBytes(json, string.concat(key, ".cases"));
            uint256 size = 2 * rule.terms + 2;
            vm.assertEq(cases.length % (4 * size), 0, "whole groups");
            for (uint256 start = 0; start < cases.length / 4; start += size) {
                if (!check(rule, cases, start, key)) ++refused;
                ++groups;
            }
        }
        vm.assertEq(groups, 6000, "2,000 groups of each arithmetic");
        vm.assertGt(refused, 600, "groups without a value");
    }

    /// @dev Patterns of BF16 with exponents around 2^0, so that most groups have a value.
    function drawn(uint256 seed, uint256 count) private pure returns (uint256[] memory a, uint256[] memory b) {
        a = new uint256[](count);
        b = new uint256[](count);
        for (uint256 i = 0; i < count; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            a[i] = ((random & 0x807F) << 16) | ((110 + (random >> 16) % 32) << 23);
            b[i] = random >> 253 == 0 ? 0 : (((random >> 32) & 0x807F) << 16) | ((110 + (random >> 64) % 32) << 23);
        }
    }

    function testFuzz_order_doesNotMatter_andSignsAreSymmetric(uint256 seed, uint32 c) public pure {
        c = (c & 0x807FFFFF) | uint32((100 + (c >> 23) % 50) << 23);
        (uint256[] memory a, uint256[] memory b) = drawn(seed, 16);
        (uint32 pattern, bool hasValue) = TensorCore.group(hopper(), c, a, b);
        vm.assertTrue(hasValue, "ordinary numbers");
        (a[3], a[12], b[3], b[12]) = (a[12], a[3], b[12], b[3]);
        (uint32 again,) = TensorCore.group(hopper(), c, a, b);
        vm.assertEq(again, pattern, "another order");
        for (uint256 i = 0; i < 16; ++i) {
            a[i] ^= 1 << 31;
        }
        (uint32 mirrored,) = TensorCore.group(hopper(), c ^ (1 << 31), a, b);
        vm.assertEq(mirrored, pattern == 0 ? 0 : pattern ^ (1 << 31), "all signs");
    }

    function testFuzz_aGroupOfZeros_changesNothing(uint256 seed, uint8 count) public pure {
        (uint256[] memory a, uint256[] memory b) = drawn(seed, count % 17);
        (uint32 pattern, bool hasValue) = TensorCore.group(hopper(), 0, a, b);
        vm.assertTrue(hasValue, "ordinary numbers");
        (uint32 again, bool stillThere) = TensorCore.group(hopper(), pattern, new uint256[](16), new uint256[](16));
        vm.assertTrue(stillThere && again == pattern, "zeros on top");
    }

    function testFuzz_anyPatterns_haveAResultOrNone(uint256 seed, uint256 fractionBits, bool half, bool subnormals) public pure {
        GroupRule memory rule = GroupRule(bound(fractionBits, 23, 25), 16, half ? 113 : 1, subnormals);
        uint256[] memory a = new uint256[](16);
        uint256[] memory b = new uint256[](16);
        for (uint256 i = 0; i < 16; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            (a[i], b[i]) = (random & 0xFFFFFFFF, (random >> 32) & 0xFFFFFFFF);
        }
        (uint32 pattern, bool hasValue) = TensorCore.group(rule, seed & 0xFFFFFFFF, a, b);
        uint256 exponent = (pattern >> 23) & 0xFF;
        vm.assertTrue(exponent < 255 && (exponent > 0 || pattern == 0), "a normal number or +0");
        vm.assertTrue(hasValue || pattern == 0, "none is 0");
    }

    function test_moreThanAGroup_reverts() public {
        uint256[] memory a = new uint256[](17);
        vm.expectRevert(abi.encodeWithSelector(TensorCore.NotAGroup.selector, 17, 17, 16));
        _harness.gasOfGroup(hopper(), 0, a, a);
        vm.expectRevert(abi.encodeWithSelector(TensorCore.NotAGroup.selector, 17, 1, 16));
        _harness.gasOfGroup(hopper(), 0, a, new uint256[](1));
    }

    function test_gas_ofEveryGroup() public view {
        string memory json = vm.readFile("tests/vectors/tensor_core.json");
        uint256 most = 0;
        string[2] memory names = [".hopper_bf16", ".hopper_f16"];
        for (uint256 k = 0; k < names.length; ++k) {
            GroupRule memory rule = ruleOf(json, names[k]);
            bytes memory cases = vm.parseJsonBytes(json, string.concat(names[k], ".cases"));
            uint256[] memory a = new uint256[](16);
            uint256[] memory b = new uint256[](16);
            for (uint256 start = 0; start < cases.length / 4; start += 34) {
                for (uint256 i = 0; i < 16; ++i) {
                    (a[i], b[i]) = (wordAt(cases, start + 1 + i), wordAt(cases, start + 17 + i));
                }
                (uint256 gas,) = _harness.gasOfGroup(rule, wordAt(cases, start), a, b);
                if (gas > most) most = gas;
            }
        }
        vm.assertLe(most, 35_000, "sixteen products");
    }
}
