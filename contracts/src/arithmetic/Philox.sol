// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32, Rounding} from "./Rounding.sol";

/// @title Philox4x64-10
/// @notice Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with the counter and the word order of
///         NumPy's `Philox`: the key is (seed, step * 2^32 + stream), block b comes from counter b + 1, and its four 64-bit words are
///         read as eight 32-bit words, low halves first.
library Philox {
    uint256 private constant MASK = type(uint64).max;
    uint256 private constant MULTIPLIER_0 = 0xD2E7470EE14C6C93;
    uint256 private constant MULTIPLIER_1 = 0xCA5A826395121157;
    uint256 private constant WEYL_0 = 0x9E3779B97F4A7C15;
    uint256 private constant WEYL_1 = 0xBB67AE8584CAA73B;
    uint256 private constant ROUNDS = 10;
    uint64 private constant WORDS_PER_BLOCK = 8;

    /// @notice One block: four 64-bit words.
    function block4x64(uint64[4] memory counter, uint64[2] memory key) internal pure returns (uint64[4] memory words) {
        (uint256 c0, uint256 c1, uint256 c2, uint256 c3) = (counter[0], counter[1], counter[2], counter[3]);
        (uint256 k0, uint256 k1) = (key[0], key[1]);
        unchecked {
            for (uint256 i = 0; i < ROUNDS; ++i) {
                (uint256 p0, uint256 p1) = (MULTIPLIER_0 * c0, MULTIPLIER_1 * c2);
                (c0, c1, c2, c3) = ((p1 >> 64) ^ c1 ^ k0, p1 & MASK, (p0 >> 64) ^ c3 ^ k1, p0 & MASK);
                (k0, k1) = ((k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK);
            }
        }
        // forge-lint: disable-next-line(unsafe-typecast)
        return [uint64(c0), uint64(c1), uint64(c2), uint64(c3)];
    }

    /// @notice The 32-bit word `index` of the stream of one operator in one step.
    function word(uint64 seed, uint32 step, uint32 stream, uint64 index) internal pure returns (uint32) {
        uint64[4] memory words = block4x64([index / WORDS_PER_BLOCK + 1, 0, 0, 0], [seed, (uint64(step) << 32) | uint64(stream)]);
        uint64 pair = words[(index % WORDS_PER_BLOCK) / 2];
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint32(index % 2 == 0 ? pair : pair >> 32);
    }

    /// @notice Element `index` of the operator `uniform`: (word >> 8) * 2^-24, in [0, 1). Exact.
    function uniform(uint64 seed, uint32 step, uint32 stream, uint64 index) internal pure returns (Float32) {
        return Rounding.nearest(0, word(seed, step, stream, index) >> 8, -24);
    }
}
