// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {GroupRule, TensorCore} from "../../src/arithmetic/TensorCore.sol";

/// @notice Groups of a tensor core, a whole batch of cases at once: c, a and b of each, four bytes a number, one behind the other.
contract TensorCoreHarness {
    /// @notice What stands for a group without a value: NaN, which no group gives.
    uint32 public constant NO_VALUE = 0x7FC00000;

    function groups(GroupRule memory rule, bytes calldata cases) external pure returns (bytes memory results) {
        uint256 size = 4 + 8 * rule.terms;
        for (uint256 start = 0; start < cases.length; start += size) {
            (uint32 pattern, bool hasValue) = one(rule, cases[start:start + size]);
            results = abi.encodePacked(results, hasValue ? pattern : NO_VALUE);
        }
    }

    /// @dev The gas of a group by itself, without call data.
    function gasOfGroup(GroupRule memory rule, uint256 c, uint256[] memory a, uint256[] memory b)
        external
        view
        returns (uint256 gas, uint32 pattern)
    {
        gas = gasleft();
        (pattern,) = TensorCore.group(rule, c, a, b);
        gas -= gasleft();
    }

    function one(GroupRule memory rule, bytes calldata numbers) private pure returns (uint32, bool) {
        uint256[] memory a = new uint256[](rule.terms);
        uint256[] memory b = new uint256[](rule.terms);
        for (uint256 i = 0; i < rule.terms; ++i) {
            a[i] = uint32(bytes4(numbers[4 + 4 * i:]));
            b[i] = uint32(bytes4(numbers[4 + 4 * (rule.terms + i):]));
        }
        return TensorCore.group(rule, uint32(bytes4(numbers)), a, b);
    }
}
