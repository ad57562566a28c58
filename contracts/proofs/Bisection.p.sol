// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisection, Bisections, Children, Search, Side} from "../src/Bisection.sol";
import {Merkle, Node} from "../src/Merkle.sol";

contract BisectionProof {
    using Bisections for Search;

    Search private _search;

    function check_aMoveKeepsTheLeftmostDifference(
        Node mine,
        Node theirs,
        Children calldata revealed,
        Children calldata opened,
        Children calldata next,
        uint64 index,
        uint8 height,
        bool challenger
    ) external {
        if (mine == theirs || height == 0 || height > 63 || index >> height << height != index) return;
        if (Merkle.join(revealed.left, revealed.right) != theirs) return;
        Side mover = challenger ? Side.CHALLENGER : Side.TRAINER;
        _search.due = mine;
        _search.revealed = revealed;
        _search.index = index;
        _search.height = height;
        _search.turn = mover;
        bool goLeft = _search.advance(opened, next);
        Bisection memory after_ = _search.show();
        assert(Merkle.join(opened.left, opened.right) == mine);
        assert(after_.nodes[0] != after_.nodes[1]);
        assert(after_.height == height - 1);
        assert(goLeft == (opened.left != revealed.left));
        assert(after_.index == index + (goLeft ? 0 : uint64(1) << (height - 1)));
        assert(after_.nodes[uint8(mover)] == (goLeft ? opened.left : opened.right));
        assert(after_.nodes[1 - uint8(mover)] == (goLeft ? revealed.left : revealed.right));
        assert(after_.turn != mover);
        if (height > 1) assert(Merkle.join(next.left, next.right) == after_.nodes[uint8(mover)]);
    }
}
