// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisection, Bisections, Children, Search, Side} from "../src/Bisection.sol";
import {Node} from "../src/Merkle.sol";
import {Test} from "./support/Test.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Gives the library a storage slot to work on.
contract BisectionHarness {
    using Bisections for Search;

    Search private _search;

    function begin(Tree calldata trainer, Tree calldata challenger) external {
        uint256 height = Trees.height(trainer);
        delete _search;
        (bytes32 left, bytes32 right) = Trees.children(trainer, height, 0);
        _search.revealed = Children(Node.wrap(left), Node.wrap(right));
        _search.begin([Node.wrap(Trees.root(trainer)), Node.wrap(Trees.root(challenger))], uint8(height));
    }

    function advance(Children calldata opened, Children calldata next) external {
        _search.advance(opened, next);
    }

    function show() external view returns (Bisection memory) {
        return _search.show();
    }
}

contract BisectionTest is Test {
    BisectionHarness private _harness;

    function setUp() public {
        _harness = new BisectionHarness();
    }

    function test_everyDivergencePosition_ofEveryTreeUpToHeightSix_isFoundInExactlyHeightMoves() public {
        for (uint256 count = 1; count <= 64; ++count) {
            // Every position for the full trees and for those with most and least padding, a stride of them between.
            bool whole = count == Trees.width(count) || count == Trees.width(count) / 2 + 1 || count == Trees.width(count) - 1;
            for (uint256 position = 0; position < count; position += whole ? 1 : 7) {
                this.checkOnePosition(count, position);
            }
        }
    }

    function test_everyDivergencePosition_ofTreesOfHeightSeven_isFound() public {
        for (uint256 position = 0; position < 128; ++position) {
            this.checkOnePosition(128, position);
        }
        for (uint256 position = 0; position < 65; ++position) {
            this.checkOnePosition(65, position);
        }
    }

    function test_everyDivergencePosition_ofTheTreeOfHeightEight_isFound() public {
        for (uint256 position = 0; position < 256; ++position) {
            this.checkOnePosition(256, position);
        }
    }

    function test_everyDivergencePosition_ofTreesOfHeightEightWithPadding_isFound() public {
        for (uint256 position = 0; position < 129; ++position) {
            this.checkOnePosition(129, position);
        }
        for (uint256 position = 0; position < 199; position += 3) {
            this.checkOnePosition(199, position);
        }
    }

    function testFuzz_leftmostOfAnySetOfDifferences_isFound(uint256 count, uint256 differences, uint256 extra, uint256 seed)
        public
    {
        count = bound(count, 1, 256);
        // A sparse set (two numbers ANDed) and always at least one difference.
        differences &= extra;
        if (count < 256) differences &= (1 << count) - 1;
        if (differences == 0) differences = 1 << (seed % count);
        this.checkDifferences(count, differences, seed);
    }

    /// @dev External, so that its memory is freed afterwards.
    function checkOnePosition(uint256 count, uint256 position) external {
        check(count, uint256(1) << position, position);
        // The same with everything after the position different too, as in a real training run.
        check(count, count == 256 ? type(uint256).max << position : ((1 << count) - 1) & (type(uint256).max << position), position);
    }

    function checkDifferences(uint256 count, uint256 differences, uint256 seed) external {
        check(count, differences, seed);
    }

    function check(uint256 count, uint256 differences, uint256 seed) private {
        bytes32[] memory trainer = new bytes32[](count);
        bytes32[] memory challenger = new bytes32[](count);
        uint256 expected = type(uint256).max;
        for (uint256 i = 0; i < count; ++i) {
            trainer[i] = keccak256(abi.encode("state", seed, i));
            bool differs = (differences >> i) & 1 == 1;
            challenger[i] = differs ? keccak256(abi.encode("other state", seed, i)) : trainer[i];
            if (differs && expected == type(uint256).max) expected = i;
        }
        Tree[2] memory trees = [Trees.build(trainer), Trees.build(challenger)];
        vm.assertEq(Trees.firstDifference(trees[0], trees[1]), expected, "the two oracles agree");
        _harness.begin(trees[0], trees[1]);

        uint256 moves = 0;
        Bisection memory search = _harness.show();
        while (search.height > 0) {
            play(trees, search);
            ++moves;
            search = _harness.show();
            vm.assertTrue(search.nodes[0] != search.nodes[1], "the nodes at the place always differ");
        }
        vm.assertEq(moves, Trees.height(trees[0]), "one move a level");
        vm.assertEq(search.index, expected, "the leftmost difference");
        vm.assertEq(Node.unwrap(search.nodes[0]), trees[0].rows[0][expected], "the trainer's leaf");
        vm.assertEq(Node.unwrap(search.nodes[1]), trees[1].rows[0][expected], "the challenger's leaf");
    }

    function play(Tree[2] memory trees, Bisection memory search) private {
        (Children memory opened, Children memory next) = honestMove(trees, search);
        _harness.advance(opened, next);
    }

    function honestMove(Tree[2] memory trees, Bisection memory search)
        private
        pure
        returns (Children memory opened, Children memory next)
    {
        Tree memory mine = trees[uint8(search.turn)];
        uint256 height = search.height;
        (bytes32 left, bytes32 right) = Trees.children(mine, height, search.index);
        opened = Children(Node.wrap(left), Node.wrap(right));
        uint256 below = left != Node.unwrap(search.revealed.left) ? search.index : search.index + (1 << (height - 1));
        (left, right) = Trees.children(mine, height - 1, below);
        next = Children(Node.wrap(left), Node.wrap(right));
    }

    // ---------------------------------------------------------------------------------------------------------- illegal moves

    function beginExample() private returns (Tree[2] memory trees, Children memory opened, Children memory next) {
        bytes32[] memory trainer = new bytes32[](4);
        bytes32[] memory challenger = new bytes32[](4);
        for (uint256 i = 0; i < 4; ++i) {
            trainer[i] = bytes32(i + 1);
            challenger[i] = i < 2 ? trainer[i] : bytes32(i + 100);
        }
        trees = [Trees.build(trainer), Trees.build(challenger)];
        _harness.begin(trees[0], trees[1]);
        (opened, next) = honestMove(trees, _harness.show());
    }

    function expectNotTheChildren(Node node, Children memory children) private {
        vm.expectRevert(
            abi.encodeWithSelector(
                Bisections.NotTheChildren.selector, Node.unwrap(node), Node.unwrap(children.left), Node.unwrap(children.right)
            )
        );
    }

    function test_advance_withForgedChildrenOfTheOpenedNode_reverts() public {
        (, Children memory opened, Children memory next) = beginExample();
        Children memory forged = Children(opened.left, Node.wrap(bytes32(uint256(7))));
        expectNotTheChildren(_harness.show().nodes[1], forged);
        _harness.advance(forged, next);
    }

    function test_advance_withSwappedChildren_reverts() public {
        (, Children memory opened, Children memory next) = beginExample();
        Children memory swapped = Children(opened.right, opened.left);
        expectNotTheChildren(_harness.show().nodes[1], swapped);
        _harness.advance(swapped, next);
    }

    function test_advance_withChildrenOfTheHalfThatIsAgreed_reverts() public {
        (Tree[2] memory trees, Children memory opened,) = beginExample();
        (bytes32 left, bytes32 right) = Trees.children(trees[1], 1, 0);
        Children memory wrongHalf = Children(Node.wrap(left), Node.wrap(right));
        expectNotTheChildren(opened.right, wrongHalf);
        _harness.advance(opened, wrongHalf);
    }

    function test_advance_withTheOtherSidesNode_reverts() public {
        (Tree[2] memory trees,, Children memory next) = beginExample();
        (bytes32 left, bytes32 right) = Trees.children(trees[0], 2, 0);
        Children memory theirs = Children(Node.wrap(left), Node.wrap(right));
        expectNotTheChildren(_harness.show().nodes[1], theirs);
        _harness.advance(theirs, next);
    }

    function test_advance_belowTheLeaves_reverts() public {
        (Tree[2] memory trees, Children memory opened, Children memory next) = beginExample();
        _harness.advance(opened, next);
        play(trees, _harness.show());
        vm.expectRevert(abi.encodeWithSelector(Bisections.NothingToBisect.selector));
        _harness.advance(opened, next);
    }

    function test_advance_revealingChildrenOfALeaf_reverts() public {
        (Tree[2] memory trees, Children memory opened, Children memory next) = beginExample();
        _harness.advance(opened, next);
        (opened,) = honestMove(trees, _harness.show());
        vm.expectRevert(abi.encodeWithSelector(Bisections.LeafHasNoChildren.selector));
        _harness.advance(opened, Children(Node.wrap(0), Node.wrap(bytes32(uint256(1)))));
    }
}
