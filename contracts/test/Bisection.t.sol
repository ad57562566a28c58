// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisection, Bisections, Descent, Search, Side} from "../src/game/Bisection.sol";
import {Node} from "../src/Merkle.sol";
import {Test} from "./support/Test.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Gives the library a storage slot to work on.
contract BisectionHarness {
    using Bisections for Search;

    Search private _search;

    function begin(Node[2] calldata roots, uint8 height, Side first, Node[] calldata row) external {
        delete _search;
        (Node root, Node shown) = first == Side.TRAINER ? (roots[0], roots[1]) : (roots[1], roots[0]);
        _search.begin(first, root, Bisections.shownOf(shown, height, row), height);
    }

    function advance(Descent calldata move) external {
        _search.advance(move);
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

    function test_everyDivergencePosition_ofEveryTreeUpToHeightSix_isFoundInAQuarterOfItsMoves() public {
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
        begin(trees, seed % 2 == 0 ? Side.CHALLENGER : Side.TRAINER);

        uint256 moves = 0;
        Bisection memory search = _harness.show();
        while (search.height > 0) {
            _harness.advance(honestMove(trees, search));
            ++moves;
            search = _harness.show();
        }
        vm.assertEq(moves, (Trees.height(trees[0]) + 3) / 4, "one move for four levels");
        vm.assertEq(search.index, expected, "the leftmost difference");
        vm.assertEq(Node.unwrap(search.nodes[0]), trees[0].rows[0][expected], "the trainer's leaf");
        vm.assertEq(Node.unwrap(search.nodes[1]), trees[1].rows[0][expected], "the challenger's leaf");
    }

    function begin(Tree[2] memory trees, Side first) private {
        uint256 height = Trees.height(trees[0]);
        Node[] memory row = rowIn(trees[first == Side.TRAINER ? 1 : 0], height, 0);
        _harness.begin([Node.wrap(Trees.root(trees[0])), Node.wrap(Trees.root(trees[1]))], uint8(height), first, row);
    }

    function rowIn(Tree memory tree, uint256 height, uint256 index) private pure returns (Node[] memory nodes) {
        bytes32[] memory row = Trees.rowOf(tree, height, index);
        nodes = new Node[](row.length);
        for (uint256 i = 0; i < row.length; ++i) {
            nodes[i] = Node.wrap(row[i]);
        }
    }

    function honestMove(Tree[2] memory trees, Bisection memory search) private pure returns (Descent memory move) {
        Tree memory tree = trees[uint8(search.turn)];
        move.mine = rowIn(tree, search.height, search.index);
        move.theirs = rowIn(trees[1 - uint8(search.turn)], search.height, search.index);
        uint256 place = 0;
        while (move.mine[place] == move.theirs[place]) ++place;
        uint256 below = search.height - Trees.stride(search.height);
        move.next = rowIn(tree, below, search.index + (place << below));
    }

    // ------------------------------------------------------------------------------------------------------------- how far a move goes

    function test_everyHeight_isDescendedInEqualParts_ofAtMostFourLevels() public pure {
        for (uint8 height = 1; height <= 64; ++height) {
            uint8 moves = 0;
            uint8 longest = 0;
            uint8 shortest = 4;
            for (uint8 left = height; left > 0; left -= Bisections.stride(left)) {
                uint8 levels = Bisections.stride(left);
                vm.assertEq(levels, Trees.stride(left), "as the tests have it");
                if (levels > longest) longest = levels;
                if (levels < shortest) shortest = levels;
                ++moves;
            }
            vm.assertEq(moves, Bisections.movesIn(height), "as many moves as it takes");
            vm.assertEq(moves, (height + 3) / 4, "a quarter of the height");
            vm.assertTrue(longest <= 4 && longest - shortest <= 1, "equal parts");
        }
        vm.assertEq(uint256(Bisections.stride(0)) + Bisections.movesIn(0), 0, "a leaf");
    }

    // ------------------------------------------------------------------------------------------------------------- trees of any height

    /// @dev Trees of equal leaves but for two positions each; every other node is the same as its neighbours.
    struct Sparse {
        bytes32[65] uniform;
        uint64[2] positions;
        bytes32[2] leaves;
    }

    function node(Sparse memory tree, uint256 height, uint256 index) private pure returns (bytes32) {
        bool[2] memory below;
        for (uint256 i = 0; i < 2; ++i) {
            below[i] = uint256(tree.positions[i]) >> height == index;
        }
        if (!below[0] && !below[1]) return tree.uniform[height];
        if (height == 0) return tree.leaves[below[0] ? 0 : 1];
        return Trees.hashPair(node(tree, height - 1, 2 * index), node(tree, height - 1, 2 * index + 1));
    }

    function sparseRow(Sparse memory tree, uint256 height, uint256 index) private pure returns (Node[] memory nodes) {
        if (height == 0) return nodes;
        uint256 levels = Trees.stride(height);
        nodes = new Node[](1 << levels);
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = Node.wrap(node(tree, height - levels, (index >> height << levels) + i));
        }
    }

    function sparse(uint64[2] memory positions, bytes32[2] memory leaves) private pure returns (Sparse memory tree) {
        (tree.positions, tree.leaves) = (positions, leaves);
        tree.uniform[0] = keccak256("leaf");
        for (uint256 h = 1; h <= 64; ++h) {
            tree.uniform[h] = Trees.hashPair(tree.uniform[h - 1], tree.uniform[h - 1]);
        }
    }

    function testFuzz_treesOfEveryHeight_areSearchedToTheirFirstDifference(
        uint256 height,
        uint64 first,
        uint64 second,
        bool challenger
    ) public {
        height = bound(height, 1, 63);
        uint64 mask = uint64((uint256(1) << height) - 1);
        this.checkSparse(height, first & mask, second & mask, challenger);
    }

    function test_treesOfEveryHeight_areSearchedToTheirFirstAndTheirLastLeaf() public {
        for (uint256 height = 1; height <= 63; ++height) {
            this.checkSparse(height, 0, 0, true);
            this.checkSparse(height, uint64((uint256(1) << height) - 1), 0, false);
        }
    }

    function checkSparse(uint256 height, uint64 first, uint64 second, bool challenger) external {
        Sparse[2] memory trees = [
            sparse([first, second], [keccak256("trainer's"), keccak256("both")]),
            sparse([first, second], [keccak256("challenger's"), keccak256("both")])
        ];
        Side turn = challenger ? Side.CHALLENGER : Side.TRAINER;
        _harness.begin(
            [Node.wrap(node(trees[0], height, 0)), Node.wrap(node(trees[1], height, 0))],
            uint8(height),
            turn,
            sparseRow(trees[challenger ? 0 : 1], height, 0)
        );
        Bisection memory search = _harness.show();
        while (search.height > 0) {
            Descent memory move;
            move.mine = sparseRow(trees[uint8(search.turn)], search.height, search.index);
            move.theirs = sparseRow(trees[1 - uint8(search.turn)], search.height, search.index);
            uint256 below = search.height - Trees.stride(search.height);
            // The oracle: the ancestor of the position, not the first of the nodes that differ.
            move.next = sparseRow(trees[uint8(search.turn)], below, uint256(first) >> below << below);
            _harness.advance(move);
            search = _harness.show();
        }
        vm.assertEq(search.index, first, "the position");
    }

    // ---------------------------------------------------------------------------------------------------------- illegal moves

    function beginExample() private returns (Tree[2] memory trees, Descent memory move) {
        bytes32[] memory trainer = new bytes32[](64);
        bytes32[] memory challenger = new bytes32[](64);
        for (uint256 i = 0; i < 64; ++i) {
            trainer[i] = bytes32(i + 1);
            challenger[i] = i < 29 ? trainer[i] : bytes32(i + 100);
        }
        trees = [Trees.build(trainer), Trees.build(challenger)];
        begin(trees, Side.CHALLENGER);
        move = honestMove(trees, _harness.show());
    }

    function refuse(Descent memory move, bytes4 why) private {
        bytes32 before = keccak256(abi.encode(_harness.show()));
        (bool ok, bytes memory answer) = address(_harness).call(abi.encodeCall(_harness.advance, (move)));
        vm.assertTrue(!ok, "it is refused");
        vm.assertEq(bytes32(bytes4(answer)), bytes32(why), "for this reason");
        vm.assertEq(keccak256(abi.encode(_harness.show())), before, "and nothing has happened");
    }

    function test_everySingleNodeOfAMove_isForced() public {
        (, Descent memory move) = beginExample();
        for (uint256 i = 0; i < 8; ++i) {
            Node right = move.mine[i];
            move.mine[i] = Node.wrap(keccak256("forged"));
            refuse(move, Bisections.NotWhatIsDue.selector);
            move.mine[i] = right;
            right = move.theirs[i];
            move.theirs[i] = Node.wrap(keccak256("forged"));
            refuse(move, Bisections.NotWhatIsDue.selector);
            move.theirs[i] = right;
            right = move.next[i];
            move.next[i] = Node.wrap(keccak256("forged"));
            refuse(move, Bisections.NotTheRow.selector);
            move.next[i] = right;
        }
        _harness.advance(move);
    }

    function test_twoNodesOfARow_inTheOtherOrder_areRefused() public {
        (, Descent memory move) = beginExample();
        (move.mine[2], move.mine[3]) = (move.mine[3], move.mine[2]);
        refuse(move, Bisections.NotWhatIsDue.selector);
    }

    function test_rowsOfEveryOtherLength_areRefused_alsoWhereTheyFoldToTheSameNode() public {
        (Tree[2] memory trees, Descent memory move) = beginExample();
        Descent memory bent = honestMove(trees, _harness.show());
        for (uint256 levels = 0; levels < 7; ++levels) {
            if (levels == 3) continue;
            // As many levels below the root as a shorter or a longer stride would go: a right row, but for its length.
            bent.mine = nodesAt(trees[1], 6 - levels);
            refuse(bent, Bisections.WrongRowLength.selector);
            bent.mine = move.mine;
            bent.theirs = nodesAt(trees[0], 6 - levels);
            refuse(bent, Bisections.NotWhatIsDue.selector);
            bent.theirs = move.theirs;
            bent.next = nodesAt(trees[1], 6 - levels);
            refuse(bent, Bisections.WrongRowLength.selector);
            bent.next = move.next;
        }
        bent.mine = new Node[](0);
        refuse(bent, Bisections.WrongRowLength.selector);
        (bent.mine, bent.next) = (move.mine, new Node[](7));
        refuse(bent, Bisections.WrongRowLength.selector);
    }

    function nodesAt(Tree memory tree, uint256 level) private pure returns (Node[] memory nodes) {
        nodes = new Node[](tree.rows[level].length);
        for (uint256 i = 0; i < nodes.length; ++i) {
            nodes[i] = Node.wrap(tree.rows[level][i]);
        }
    }

    function test_rowsOfTheWrongNodes_areRefused() public {
        (Tree[2] memory trees, Descent memory move) = beginExample();
        Descent memory bent = honestMove(trees, _harness.show());
        // The mover's own row in the place of the other's, or the other way round; both rows the same, so that nothing differs.
        bent.theirs = move.mine;
        refuse(bent, Bisections.NotWhatIsDue.selector);
        (bent.mine, bent.theirs) = (move.theirs, move.mine);
        refuse(bent, Bisections.NotWhatIsDue.selector);
        bent.theirs = move.theirs;
        refuse(bent, Bisections.NotWhatIsDue.selector);
        // Below: of the other side; of the node before the first difference, on which both agree; of a later one that differs, too.
        bent.mine = move.mine;
        bent.next = rowIn(trees[0], 3, 24);
        refuse(bent, Bisections.NotTheRow.selector);
        bent.next = rowIn(trees[1], 3, 16);
        refuse(bent, Bisections.NotTheRow.selector);
        bent.next = rowIn(trees[1], 3, 32);
        refuse(bent, Bisections.NotTheRow.selector);
    }

    function test_aRowThatWasShownBefore_isNoAnswerToALaterMove() public {
        (Tree[2] memory trees, Descent memory first) = beginExample();
        _harness.advance(first);
        refuse(first, Bisections.NotWhatIsDue.selector);
        Descent memory move = honestMove(trees, _harness.show());
        Node[] memory right = move.theirs;
        move.theirs = first.theirs;
        refuse(move, Bisections.NotWhatIsDue.selector);
        (move.theirs, move.mine) = (right, first.mine);
        refuse(move, Bisections.NotWhatIsDue.selector);
    }

    function test_belowTheLeaves_thereIsNothingToShow_andNothingToSearch() public {
        (Tree[2] memory trees, Descent memory move) = beginExample();
        _harness.advance(move);
        move = honestMove(trees, _harness.show());
        move.next = new Node[](1);
        refuse(move, Bisections.WrongRowLength.selector);
        move.next = new Node[](2);
        refuse(move, Bisections.WrongRowLength.selector);
        move.next = new Node[](0);
        _harness.advance(move);
        vm.assertEq(_harness.show().index, 29, "the first difference");
        refuse(move, Bisections.NothingToBisect.selector);
    }

    function testFuzz_anyOtherMove_isRefused(Descent memory junk, uint256 place, bytes32 node_, uint256 which) public {
        (Tree[2] memory trees, Descent memory move) = beginExample();
        if (which % 2 == 0) {
            _harness.advance(move);
            move = honestMove(trees, _harness.show());
        }
        bytes32 right = keccak256(abi.encode(move));
        if (which % 7 == 0) move = junk;
        else if (which % 7 == 1) move.mine = junk.mine;
        else if (which % 7 == 2) move.theirs = junk.theirs;
        else if (which % 7 == 3) move.next = junk.next;
        else if (which % 7 == 4) move.mine[place % 8] = Node.wrap(node_);
        else if (which % 7 == 5) move.theirs[place % 8] = Node.wrap(node_);
        else if (move.next.length > 0) move.next[place % 8] = Node.wrap(node_);
        if (keccak256(abi.encode(move)) == right) return;
        bytes32 before = keccak256(abi.encode(_harness.show()));
        (bool ok,) = address(_harness).call(abi.encodeCall(_harness.advance, (move)));
        vm.assertTrue(!ok, "only the right move passes");
        vm.assertEq(keccak256(abi.encode(_harness.show())), before, "and nothing has happened");
    }
}
