// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// @notice The forge cheatcodes that these tests use.
interface Vm {
    function warp(uint256 timestamp) external;
    function getBlockTimestamp() external view returns (uint256);
    function fee(uint256 baseFee) external;
    function txGasPrice(uint256 price) external;
    function deal(address account, uint256 balance) external;
    function prank(address sender) external;
    function label(address account, string calldata name) external;
    function assume(bool condition) external pure;
    function expectRevert(bytes calldata data) external;
    function expectRevert() external;
    function expectEmit(bool topic1, bool topic2, bool topic3, bool data, address emitter) external;
    function getCode(string calldata artifact) external view returns (bytes memory creationCode);
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonBytes32Array(string calldata json, string calldata key) external pure returns (bytes32[] memory);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function parseJsonBytesArray(string calldata json, string calldata key) external pure returns (bytes[] memory);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonUintArray(string calldata json, string calldata key) external pure returns (uint256[] memory);
    function parseJsonIntArray(string calldata json, string calldata key) external pure returns (int256[] memory);
    function parseJsonAddress(string calldata json, string calldata key) external pure returns (address);
    function keyExistsJson(string calldata json, string calldata key) external view returns (bool);
    function toString(uint256 value) external pure returns (string memory);
    function assertTrue(bool condition, string calldata what) external pure;
    function assertEq(uint256 left, uint256 right, string calldata what) external pure;
    function assertEq(bytes32 left, bytes32 right, string calldata what) external pure;
    function assertEq(address left, address right, string calldata what) external pure;
    function assertEq(string calldata left, string calldata right, string calldata what) external pure;
    function assertLe(uint256 left, uint256 right, string calldata what) external pure;
    function assertGt(uint256 left, uint256 right, string calldata what) external pure;
    function snapshotGasLastCall(string calldata name) external returns (uint256 gasUsed);
    function snapshotValue(string calldata group, string calldata name, uint256 value) external;
    function lastCallGas() external view returns (Gas memory gas);

    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }
}

/// @notice What a forge test needs and no more; npm has no maintained package of forge-std.
abstract contract Test {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    /// @notice An account with a name, rich enough for every bond.
    function account(string memory name) internal returns (address created) {
        created = address(uint160(uint256(keccak256(bytes(name)))));
        vm.label(created, name);
        vm.deal(created, 1_000_000 ether);
    }

    /// @notice Folds a random number into [low, high].
    function bound(uint256 value, uint256 low, uint256 high) internal pure returns (uint256) {
        uint256 size = high - low + 1;
        return size == 0 ? value : low + value % size;
    }
}
