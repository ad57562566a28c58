// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// @notice A whole tree in memory: rows[0] are the padded leaves, the last row is the root.
struct Tree {
    uint64 count;
    bytes32[][] rows;
}

/// @title The tests' own Merkle trees
/// @notice Written from the scheme's text, level by level; shares no code with contracts/src.
library Trees {
    function hashLeaf(bytes memory payload) internal pure returns (bytes32) {
        return sha256(bytes.concat(hex"00", payload));
    }

    function hashPair(bytes32 a, bytes32 b) internal pure returns (bytes32) {
        return sha256(bytes.concat(hex"01", a, b));
    }

    function pad() internal pure returns (bytes32) {
        return sha256(hex"02");
    }

    /// @notice The smallest power of two that is not below `count`.
    function width(uint256 count) internal pure returns (uint256 size) {
        size = 1;
        while (size < count) size *= 2;
    }

    function build(bytes32[] memory payloads) internal pure returns (Tree memory) {
        bytes32[] memory leaves = new bytes32[](width(payloads.length));
        for (uint256 i = 0; i < leaves.length; ++i) {
            leaves[i] = i < payloads.length ? hashLeaf(bytes.concat(payloads[i])) : pad();
        }
        return fromLeaves(leaves, uint64(payloads.length));
    }

    function buildBytes(bytes[] memory payloads) internal pure returns (Tree memory) {
        bytes32[] memory leaves = new bytes32[](width(payloads.length));
        for (uint256 i = 0; i < leaves.length; ++i) {
            leaves[i] = i < payloads.length ? hashLeaf(payloads[i]) : pad();
        }
        return fromLeaves(leaves, uint64(payloads.length));
    }

    /// @notice A tree over any leaf hashes at all, also over such as a cheat would make.
    function fromLeaves(bytes32[] memory leaves, uint64 count) internal pure returns (Tree memory tree) {
        uint256 rows = 1;
        for (uint256 size = leaves.length; size > 1; size /= 2) {
            ++rows;
        }
        tree.count = count;
        tree.rows = new bytes32[][](rows);
        tree.rows[0] = leaves;
        for (uint256 r = 1; r < rows; ++r) {
            bytes32[] memory below = tree.rows[r - 1];
            bytes32[] memory row = new bytes32[](below.length / 2);
            for (uint256 i = 0; i < row.length; ++i) {
                row[i] = hashPair(below[2 * i], below[2 * i + 1]);
            }
            tree.rows[r] = row;
        }
    }

    function height(Tree memory tree) internal pure returns (uint256) {
        return tree.rows.length - 1;
    }

    function root(Tree memory tree) internal pure returns (bytes32) {
        return tree.rows[tree.rows.length - 1][0];
    }

    function proof(Tree memory tree, uint256 index) internal pure returns (bytes32[] memory siblings) {
        siblings = new bytes32[](height(tree));
        for (uint256 r = 0; r < siblings.length; ++r) {
            siblings[r] = tree.rows[r][index % 2 == 0 ? index + 1 : index - 1];
            index /= 2;
        }
    }

    /// @notice Levels that a move descends from a node `level` above the leaves: at most four, and as many in each of the moves that are left
    ///         as in the next one, or one less.
    function stride(uint256 level) internal pure returns (uint256 levels) {
        uint256 moves = 0;
        while (4 * moves < level) ++moves;
        while (moves * levels < level) ++levels;
    }

    /// @notice The row of the node at `level` above leaf `index`; empty for a leaf.
    function rowOf(Tree memory tree, uint256 level, uint256 index) internal pure returns (bytes32[] memory nodes) {
        if (level == 0) return nodes;
        uint256 below = level - stride(level);
        nodes = new bytes32[](1 << stride(level));
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = tree.rows[below][(index >> level << stride(level)) + i];
        }
    }

    /// @notice The oracle: looks at one leaf after the other.
    function firstDifference(Tree memory a, Tree memory b) internal pure returns (uint256 index) {
        while (a.rows[0][index] == b.rows[0][index]) ++index;
    }
}
