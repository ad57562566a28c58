// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice A hash inside a Merkle tree: a leaf, an inner node or a root. A payload (for example a state root, which is itself the
///         root of another tree) is a plain `bytes32` and becomes a `Node` only through `Merkle.leaf`.
type Node is bytes32;

using {equalNodes as ==, differentNodes as !=} for Node global;

function equalNodes(Node a, Node b) pure returns (bool) {
    return Node.unwrap(a) == Node.unwrap(b);
}

function differentNodes(Node a, Node b) pure returns (bool) {
    return Node.unwrap(a) != Node.unwrap(b);
}

/// @title The project's one Merkle scheme
/// @notice SHA-256, domain separated: leaf = H(0x00 || payload), node = H(0x01 || left || right), PAD = H(0x02). A tree of n leaves
///         is padded on the right with PAD to 2^depth(n) leaves; a proof holds exactly depth(n) siblings, from the leaf upwards.
library Merkle {
    /// @notice The padding leaf, sha256(0x02).
    Node internal constant PAD = Node.wrap(0xdbc1b4c900ffe48d575b5da5c638040125f65db0fe3e24494b76ea986457d986);

    /// @notice A tree of `count` leaves has no leaf `index`.
    error LeafIndexOutOfRange(uint64 index, uint64 count);
    /// @notice A proof must have exactly as many siblings as the tree is deep.
    error WrongProofLength(uint256 given, uint256 expected);
    /// @notice The payload and its siblings hash to another root.
    error WrongProof(bytes32 computed, bytes32 expected);

    /// @notice Height of the tree over `count` leaves: ceil(log2(max(count, 1))).
    function depth(uint64 count) internal pure returns (uint8 height) {
        while (height < 64 && (uint256(1) << height) < count) ++height;
    }

    function leaf(bytes32 payload) internal pure returns (Node) {
        return Node.wrap(sha256(abi.encodePacked(bytes1(0x00), payload)));
    }

    function leafOfBytes(bytes memory payload) internal pure returns (Node) {
        return Node.wrap(sha256(abi.encodePacked(bytes1(0x00), payload)));
    }

    function join(Node left, Node right) internal pure returns (Node) {
        return Node.wrap(sha256(abi.encodePacked(bytes1(0x01), left, right)));
    }

    /// @notice The node above a row of nodes, which are as many as a power of two. As `join` of each pair, in half its gas.
    function fold(Node[] calldata row) internal view returns (Node node) {
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            let size := mul(row.length, 32)
            let nodes := mload(0x40)
            calldatacopy(nodes, row.offset, size)
            // 65 bytes behind the nodes: the prefix, and a pair.
            let pair := add(nodes, size)
            mstore8(pair, 1)
            for {} gt(size, 32) {} {
                for { let i := 0 } lt(i, size) { i := add(i, 64) } {
                    mcopy(add(pair, 1), add(nodes, i), 64)
                    if iszero(staticcall(gas(), 2, pair, 65, add(nodes, div(i, 2)), 32)) { revert(0, 0) }
                }
                size := div(size, 2)
            }
            node := mload(nodes)
        }
    }

    /// @notice The root above leaf `index` of `count`.
    function climb(Node start, uint64 index, uint64 count, bytes32[] calldata siblings) internal pure returns (Node root) {
        // INVARIANT: an index in the padding is never a leaf, so no proof can speak about one.
        if (index >= count) revert LeafIndexOutOfRange(index, count);
        // INVARIANT: exact depth; a shorter or longer proof would let an inner node pass for a leaf or a leaf for an inner node.
        uint256 height = depth(count);
        if (siblings.length != height) revert WrongProofLength(siblings.length, height);
        root = start;
        for (uint256 level = 0; level < height; ++level) {
            Node sibling = Node.wrap(siblings[level]);
            root = (index >> level) & 1 == 0 ? join(root, sibling) : join(sibling, root);
        }
    }

    /// @notice Reverts unless `start` is the last of `count` leaves under `root`.
    function requireLast(Node root, Node start, uint64 count, bytes32[] calldata siblings) internal pure {
        Node computed = climb(start, count - 1, count, siblings);
        if (computed != root) revert WrongProof(Node.unwrap(computed), Node.unwrap(root));
    }

    /// @notice Reverts unless `payload` is leaf `index` of the tree of `count` leaves under `root`.
    function requireLeaf(Node root, bytes32 payload, uint64 index, uint64 count, bytes32[] calldata siblings) internal pure {
        Node computed = climb(leaf(payload), index, count, siblings);
        if (computed != root) revert WrongProof(Node.unwrap(computed), Node.unwrap(root));
    }

    /// @notice Reverts unless `payload`, of any length (such as a chunk of a tensor), is leaf `index` of the tree under `root`.
    function requireLeafOfBytes(Node root, bytes memory payload, uint64 index, uint64 count, bytes32[] calldata siblings)
        internal
        pure
    {
        Node computed = climb(leafOfBytes(payload), index, count, siblings);
        if (computed != root) revert WrongProof(Node.unwrap(computed), Node.unwrap(root));
    }
}
