// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @title The order of the data
/// @notice The swap-or-not shuffle of the Ethereum consensus specs (phase0/beacon-chain.md, `compute_shuffled_index`; Hoang, Morris,
///         Rogaway, "An enciphering scheme based on a card shuffle", 2012) with the 90 rounds of mainnet, one epoch after the other.
library SwapOrNot {
    uint256 internal constant ROUNDS = 90;
    /// @notice Positions are hashed in blocks of 256, and a block's number as a uint32.
    uint256 internal constant MAX_COUNT = 1 << 40;

    error CountOutOfRange(uint256 count);
    error EpochOutOfRange(uint256 epoch);
    error PositionOutOfRange(uint256 position, uint256 count);

    /// @notice The row at `position` of the permutation of `count` rows under a seed.
    function shuffledIndex(uint256 position, uint256 count, bytes32 seed) internal pure returns (uint256 index) {
        if (count == 0 || count > MAX_COUNT) revert CountOutOfRange(count);
        if (position >= count) revert PositionOutOfRange(position, count);
        index = position;
        for (uint256 round = 0; round < ROUNDS; ++round) {
            // forge-lint: disable-next-line(unsafe-typecast)
            bytes1 number = bytes1(uint8(round));
            uint256 pivot = littleEndian64(sha256(bytes.concat(seed, number))) % count;
            uint256 flip = (pivot + count - index) % count;
            uint256 larger = index > flip ? index : flip;
            bytes4 blockNumber = littleEndian32(larger / 256);
            uint256 source = uint256(sha256(bytes.concat(seed, number, blockNumber)));
            // Byte larger % 256 / 8 counted from the first, bit larger % 8 of it counted from the lowest.
            uint256 place = (31 - (larger % 256) / 8) * 8 + larger % 8;
            if ((source >> place) & 1 == 1) index = flip;
        }
    }

    /// @notice The seed of an epoch: SHA-256("tiebreak/epoch" || uint64 seed || uint64 epoch), both big-endian.
    function epochSeed(uint64 seed, uint64 epoch) internal pure returns (bytes32) {
        return sha256(abi.encodePacked("tiebreak/epoch", seed, epoch));
    }

    /// @notice The dataset row at a position of the endless order. Sample j of step s stands at position s * batchSize + j.
    function rowOfPosition(uint64 seed, uint256 position, uint64 rows) internal pure returns (uint256) {
        if (rows == 0) revert CountOutOfRange(rows);
        uint256 epoch = position / rows;
        if (epoch > type(uint64).max) revert EpochOutOfRange(epoch);
        // forge-lint: disable-next-line(unsafe-typecast)
        return shuffledIndex(position % rows, rows, epochSeed(seed, uint64(epoch)));
    }

    /// @dev The first eight bytes of a hash as a little-endian number.
    function littleEndian64(bytes32 hash) private pure returns (uint64 x) {
        x = uint64(bytes8(hash));
        x = ((x & 0x00FF00FF00FF00FF) << 8) | ((x >> 8) & 0x00FF00FF00FF00FF);
        x = ((x & 0x0000FFFF0000FFFF) << 16) | ((x >> 16) & 0x0000FFFF0000FFFF);
        return (x << 32) | (x >> 32);
    }

    function littleEndian32(uint256 x) private pure returns (bytes4) {
        x = ((x & 0x00FF00FF) << 8) | ((x >> 8) & 0x00FF00FF);
        // forge-lint: disable-next-line(unsafe-typecast)
        return bytes4(uint32((x << 16) | (x >> 16)));
    }
}
