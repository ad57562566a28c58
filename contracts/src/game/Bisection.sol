// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Merkle, Node} from "../Merkle.sol";

/// @notice The two parties of a game. Also the index into every two-element array of the contract.
enum Side {
    TRAINER,
    CHALLENGER
}

/// @notice A view of the search for the leftmost leaf in which two trees differ.
struct Bisection {
    /// At a leaf both sides' leaves, by Side; in the place of a side that has opened its own, the hash of its row at the root of the next
    /// level. Zero above the leaves.
    Node[2] nodes;
    /// Above the leaves, what the next move has to show: keccak256 of the mover's node at the place, and keccak256 of the other side's row
    /// there. Zero at a leaf.
    bytes32 due;
    /// The leftmost leaf below the place that the search has reached; the disputed leaf once `height` is zero.
    uint64 index;
    /// Height of the place above the leaves.
    uint8 height;
    /// The side that moves next. Meaningless once `height` is zero.
    Side turn;
    /// Number of the block in which the last row was shown: the one that the next move needs.
    uint32 shownIn;
}

/// @notice A move of a search. A row are all the nodes `Bisections.stride` levels below a node, from the left.
struct Descent {
    /// The row of the mover's node at the place that the search has reached.
    Node[] mine;
    /// The row of the other side's node there, which that side has shown.
    Node[] theirs;
    /// The row of the mover's node where the two first differ; empty if that is a leaf.
    Node[] next;
}

/// @notice A search as it is stored: only what the next move needs, because every word of storage costs.
struct Search {
    /// Above the leaves `Bisection.due`; at a leaf that of the side `turn`.
    bytes32 due;
    /// At a leaf that of the other side; meaningless above.
    bytes32 waiting;
    uint64 index;
    uint8 height;
    Side turn;
    uint32 shownIn;
}

/// @title Search in two Merkle trees
/// @notice The one library behind every level. A move shows the mover's row at the place that the search has reached, finds where it
///         first differs from the row that the other side has shown there, descends to that node, and shows the mover's row below it. Hashes
///         force every word of a move, so it does not matter who sends it, and a tree of depth d is searched in exactly `movesIn(d)` moves.
library Bisections {
    /// @notice Levels that a move descends at most.
    uint8 internal constant LEVELS = 4;

    /// @notice The search has already reached a leaf.
    error NothingToBisect();
    /// @notice The row of a node at this height has another number of nodes; that of a leaf has none.
    error WrongRowLength(uint256 given, uint256 expected);
    /// @notice The row hashes to another node.
    error NotTheRow(Node computed, Node expected);
    /// @notice The mover's row does not hash to its node at the place, or the other one is not what the other side has shown.
    error NotWhatIsDue(bytes32 computed, bytes32 expected);

    function other(Side side) internal pure returns (Side) {
        return side == Side.TRAINER ? Side.CHALLENGER : Side.TRAINER;
    }

    /// @notice Moves of both sides together in a search of this depth.
    function movesIn(uint8 depth) internal pure returns (uint8) {
        return (depth + LEVELS - 1) / LEVELS;
    }

    /// @notice Levels from a place at this height to those of its row: the rest of the height in equal parts, because a longer row costs
    ///         more than it saves.
    function stride(uint8 height) internal pure returns (uint8) {
        uint8 moves = movesIn(height);
        return height == 0 ? 0 : (height + moves - 1) / moves;
    }

    /// @notice Starts a search between two different roots.
    /// @param root of the side that moves first
    /// @param row what the other side has shown: keccak256 of the row of its root; its root itself in a tree of one leaf
    function begin(Search storage self, Side first, Node root, bytes32 row, uint8 height) internal {
        (self.index, self.height, self.turn) = (0, height, first);
        if (height == 0) (self.due, self.waiting) = (Node.unwrap(root), row);
        else self.due = dueOf(root, row);
    }

    /// @notice One move.
    function advance(Search storage self, Descent calldata move) internal {
        (uint64 index, uint8 height, Side mover) = (self.index, self.height, self.turn);
        if (height == 0) revert NothingToBisect();
        requireLength(move.mine, height);
        // The other row needs no look at its length: it is the very row that was shown.
        bytes32 computed = dueOf(Merkle.fold(move.mine), hash(move.theirs));
        if (computed != self.due) revert NotWhatIsDue(computed, self.due);

        uint256 place = firstDifference(move.mine, move.theirs);
        (Node mine, Node theirs) = (move.mine[place], move.theirs[place]);
        height -= stride(height);
        requireRow(mine, height, move.next);
        (self.index, self.height, self.turn) = (index + uint64(place << height), height, other(mover));
        if (height == 0) {
            (self.due, self.waiting) = (Node.unwrap(theirs), Node.unwrap(mine));
        } else {
            self.due = dueOf(theirs, hash(move.next));
            self.shownIn = uint32(block.number);
        }
    }

    /// @dev INVARIANT: the nodes above differ, so the rows do; taking the first difference makes everything to the left of the place equal in
    ///      both trees, which is what "agreed" means for the leaf before the disputed one.
    function firstDifference(Node[] calldata mine, Node[] calldata theirs) private pure returns (uint256 place) {
        while (mine[place] == theirs[place]) ++place;
    }

    /// @notice A side's node at a leaf, or what stands in its place.
    function leafOf(Search storage self, Side side) internal view returns (Node) {
        return Node.wrap(side == self.turn ? self.due : self.waiting);
    }

    /// @notice Keeps what a side has shown of the next level in the place of its leaf, which nobody needs any more.
    function replaceLeaf(Search storage self, Side side, bytes32 row) internal {
        if (side == self.turn) self.due = row;
        else self.waiting = row;
    }

    function show(Search storage self) internal view returns (Bisection memory shown) {
        (shown.index, shown.height, shown.turn, shown.shownIn) = (self.index, self.height, self.turn, self.shownIn);
        if (shown.height > 0) shown.due = self.due;
        else (shown.nodes[0], shown.nodes[1]) = (leafOf(self, Side.TRAINER), leafOf(self, Side.CHALLENGER));
    }

    /// @notice What a search begins with of a root: keccak256 of its row, which has to be the right one; in a tree of one leaf the root.
    function shownOf(Node root, uint8 height, Node[] calldata row) internal view returns (bytes32) {
        requireRow(root, height, row);
        return height == 0 ? Node.unwrap(root) : hash(row);
    }

    /// @notice Reverts unless this is the row of a node at this height.
    function requireRow(Node node, uint8 height, Node[] calldata row) private view {
        requireLength(row, height);
        if (height == 0) return;
        Node computed = Merkle.fold(row);
        if (computed != node) revert NotTheRow(computed, node);
    }

    function requireLength(Node[] calldata row, uint8 height) private pure {
        uint256 expected = height == 0 ? 0 : uint256(1) << stride(height);
        if (row.length != expected) revert WrongRowLength(row.length, expected);
    }

    /// @dev keccak256(abi.encodePacked(row))
    function hash(Node[] calldata row) private pure returns (bytes32 found) {
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            let size := mul(row.length, 32)
            let start := mload(0x40)
            calldatacopy(start, row.offset, size)
            found := keccak256(start, size)
        }
    }

    function dueOf(Node node, bytes32 row) private pure returns (bytes32) {
        return keccak256(abi.encode(node, row));
    }
}
