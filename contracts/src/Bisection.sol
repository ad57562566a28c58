// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Merkle, Node} from "./Merkle.sol";

/// @notice The two parties of a game. Also the index into every two-element array of the contract.
enum Side {
    TRAINER,
    CHALLENGER
}

/// @notice The children of an inner node; both zero where there is no inner node to open.
struct Children {
    Node left;
    Node right;
}

/// @notice A view of the search for the leftmost leaf in which two trees differ.
struct Bisection {
    /// The two sides' nodes at the place that the search has reached, by Side. They always differ.
    Node[2] nodes;
    /// The children of the node of the side that waits, already revealed. Zero once a leaf is reached.
    Children revealed;
    /// The leftmost leaf below the place; the disputed leaf once `height` is zero.
    uint64 index;
    /// Height of the place above the leaves.
    uint8 height;
    /// The side whose node is opened next. Meaningless once `height` is zero.
    Side turn;
}

/// @notice A search as it is stored: only what the next move needs, because every word of storage costs.
struct Search {
    /// The node that is opened next, of the side `turn`.
    Node due;
    /// The node of the side that waits; kept only at a leaf, because above it follows from its children.
    Node waiting;
    /// Its children; meaningless at a leaf.
    Children revealed;
    uint64 index;
    uint8 height;
    Side turn;
}

/// @title Bisection of two Merkle trees
/// @notice The one library behind every level. A move opens the mover's node, compares it with the children that the other side has
///         already revealed, descends into the leftmost half that differs, and reveals the children of the mover's node there. Hashes
///         force every word of a move, so it does not matter who sends it, and a tree of depth d is searched in exactly d moves.
library Bisections {
    /// @notice The search has already reached a leaf.
    error NothingToBisect();
    /// @notice These are not the children of the node that has to be opened.
    error NotTheChildren(bytes32 node, bytes32 left, bytes32 right);
    /// @notice A leaf has no children to reveal.
    error LeafHasNoChildren();

    function other(Side side) internal pure returns (Side) {
        return side == Side.TRAINER ? Side.CHALLENGER : Side.TRAINER;
    }

    /// @notice Starts a search between two different roots, by Side. `revealed` holds the trainer's children already, so the challenger
    ///         moves first.
    function begin(Search storage self, Node[2] memory roots, uint8 height) internal {
        (self.due, self.waiting) = (roots[uint8(Side.CHALLENGER)], roots[uint8(Side.TRAINER)]);
        (self.index, self.height, self.turn) = (0, height, Side.CHALLENGER);
    }

    /// @notice One move.
    /// @param opened the children of the mover's node at the present place
    /// @param next the children of the mover's node at the place to which the search descends; both zero when that is a leaf
    /// @return goLeft whether the search went left
    function advance(Search storage self, Children calldata opened, Children calldata next) internal returns (bool goLeft) {
        (uint64 index, uint8 height, Side mover) = (self.index, self.height, self.turn);
        if (height == 0) revert NothingToBisect();
        requireChildren(self.due, opened);

        // INVARIANT: the nodes above differ, so at least one half does; taking the left one whenever it differs makes everything to
        // the left of the place equal in both trees, which is what "agreed" means for the leaf before the disputed one.
        Node theirs = self.revealed.left;
        goLeft = opened.left != theirs;
        Node mine = goLeft ? opened.left : opened.right;
        if (!goLeft) theirs = self.revealed.right;

        --height;
        if (!goLeft) index += uint64(1) << height;
        if (height > 0) {
            requireChildren(mine, next);
            self.revealed = next;
        } else {
            if (next.left != Merkle.NONE || next.right != Merkle.NONE) revert LeafHasNoChildren();
            self.waiting = mine;
        }
        self.due = theirs;
        (self.index, self.height, self.turn) = (index, height, other(mover));
    }

    /// @notice A side's node at a leaf.
    function leafOf(Search storage self, Side side) internal view returns (Node) {
        return side == self.turn ? self.due : self.waiting;
    }

    function show(Search storage self) internal view returns (Bisection memory shown) {
        (shown.index, shown.height, shown.turn) = (self.index, self.height, self.turn);
        Node waiting = self.waiting;
        if (shown.height > 0) {
            shown.revealed = self.revealed;
            waiting = Merkle.join(shown.revealed.left, shown.revealed.right);
        }
        (shown.nodes[uint8(shown.turn)], shown.nodes[uint8(other(shown.turn))]) = (self.due, waiting);
    }

    /// @notice Reverts unless these are the node's children.
    function requireChildren(Node node, Children calldata children) internal pure {
        if (Merkle.join(children.left, children.right) != node) {
            revert NotTheChildren(Node.unwrap(node), Node.unwrap(children.left), Node.unwrap(children.right));
        }
    }
}
