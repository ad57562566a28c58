// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisection, Bisections, Descent, Search, Side} from "../src/game/Bisection.sol";
import {Merkle, Node} from "../src/Merkle.sol";

/// @notice A move that the contract takes leads to the first difference of the two rows, which hashes force, and to a search with the same
///         property: it holds a node of each side, which differ, and the row below that of the side which has moved.
contract BisectionProof {
    using Bisections for Search;

    Search private _search;

    function advance(Descent calldata move) external {
        _search.advance(move);
    }

    function fold(Node[] calldata row) external view returns (Node) {
        return Merkle.fold(row);
    }

    function check_aMoveOfOneLevel_toALeaf(Node mine, Node[2] calldata shown, Node[2] calldata a, Node[2] calldata b, uint64 index)
        external
    {
        check(1, index, mine, list(shown), Descent(list(a), list(b), new Node[](0)));
    }

    /// @dev From height 2 to a leaf, and from height 5 by three levels to height 2: the row below has as many nodes as this one has there.
    function check_aMoveOfTwoLevels_toALeaf(Node mine, Node[4] calldata shown, Node[4] calldata a, Node[4] calldata b, uint64 index)
        external
    {
        check(2, index, mine, list(shown), Descent(list(a), list(b), new Node[](0)));
    }

    function check_aMoveOfThreeLevels_toARow(
        Node mine,
        Node[8] calldata shown,
        Node[8] calldata a,
        Node[8] calldata b,
        Node[4] calldata next,
        uint64 index
    ) external {
        check(5, index, mine, list(shown), Descent(list(a), list(b), list(next)));
    }

    function check(uint8 height, uint64 index, Node mine, Node[] memory shown, Descent memory move) private {
        if (index >> height << height != index) return;
        Node theirs = this.fold(shown);
        if (mine == theirs) return;
        (_search.due, _search.index, _search.height) = (due(mine, shown), index, height);
        try this.advance(move) {
            require_(mine, shown, move, height, index);
        } catch {}
    }

    function require_(Node mine, Node[] memory shown, Descent memory move, uint8 height, uint64 index) private view {
        assert(this.fold(move.mine) == mine);
        uint256 place = 0;
        while (move.mine[place] == shown[place]) ++place;
        Bisection memory found = _search.show();
        assert(found.height == height - Bisections.stride(height));
        assert(found.index == index + (uint64(place) << found.height));
        assert(found.turn == Side.CHALLENGER);
        if (found.height == 0) {
            assert(found.nodes[uint8(Side.TRAINER)] == move.mine[place]);
            assert(found.nodes[uint8(Side.CHALLENGER)] == shown[place]);
        } else {
            assert(found.due == due(shown[place], move.next));
            assert(this.fold(move.next) == move.mine[place]);
        }
    }

    function due(Node node, Node[] memory row) private pure returns (bytes32) {
        return keccak256(abi.encode(node, keccak256(abi.encodePacked(row))));
    }

    function list(Node[2] calldata nodes) private pure returns (Node[] memory all) {
        all = new Node[](2);
        for (uint256 i = 0; i < 2; ++i) {
            all[i] = nodes[i];
        }
    }

    function list(Node[4] calldata nodes) private pure returns (Node[] memory all) {
        all = new Node[](4);
        for (uint256 i = 0; i < 4; ++i) {
            all[i] = nodes[i];
        }
    }

    function list(Node[8] calldata nodes) private pure returns (Node[] memory all) {
        all = new Node[](8);
        for (uint256 i = 0; i < 8; ++i) {
            all[i] = nodes[i];
        }
    }
}
