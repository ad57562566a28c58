// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Merkle, Node} from "../src/Merkle.sol";
import {Trace} from "../src/game/Trace.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {Test} from "./support/Test.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice The shape of a trace, against one that is laid out leaf by leaf.
contract TraceTest is Test {
    TrainingSpec private _spec;

    function shape(uint256 operators, uint256 slots) private {
        (_spec.operatorCount, _spec.stateCount) = (uint64(operators), uint64(slots));
    }

    function testFuzz_theStatesHalf_isTheStateTreePaddedToTheHalfsHeight(uint256 operators, uint256 slots, bytes32 seed) public {
        slots = bound(slots, 1, 40);
        operators = bound(operators, slots, 300);
        shape(operators, slots);
        bytes32[] memory roots = new bytes32[](slots);
        for (uint256 i = 0; i < slots; ++i) {
            roots[i] = keccak256(abi.encode(seed, i));
        }
        Tree memory state = Trees.build(roots);
        uint256 half = Trees.width(operators);
        bytes32[] memory leaves = new bytes32[](half);
        for (uint256 i = 0; i < half; ++i) {
            leaves[i] = i < slots ? state.rows[0][i] : Trees.pad();
        }
        bytes32 expected = Trees.root(Trees.fromLeaves(leaves, uint64(slots)));
        vm.assertEq(Node.unwrap(Trace.stateHalf(_spec, Node.wrap(Trees.root(state)))), expected, "leaf by leaf");
        vm.assertEq(Trace.half(_spec), half, "the first slot");
        vm.assertEq(Trace.leafCount(_spec), half + slots, "leaves");
        vm.assertEq(uint256(1) << Merkle.depth(Trace.leafCount(_spec)), 2 * half, "two halves");
        vm.assertEq(Trace.storeOf(_spec, uint64(half)), operators - slots, "the first store");
        vm.assertEq(Trace.storeOf(_spec, uint64(half + slots - 1)), operators - 1, "the last operator");
    }

    function testFuzz_padding_isWhatIsNeitherOperatorNorSlot(uint256 operators, uint256 slots) public {
        slots = bound(slots, 1, 40);
        operators = bound(operators, slots, 300);
        shape(operators, slots);
        uint256 half = Trees.width(operators);
        for (uint64 i = 0; i < 2 * half; ++i) {
            bool isLeaf = i < half ? i < operators : i < half + slots;
            vm.assertTrue(Trace.isPadding(_spec, i) == !isLeaf, "padding");
        }
    }

    function test_theLargestTraces_haveTreesOf41Levels() public {
        shape(1 << 40, 1 << 40);
        vm.assertEq(Trace.half(_spec), 1 << 40, "half");
        vm.assertEq(Merkle.depth(Trace.leafCount(_spec)), 41, "depth");
        vm.assertTrue(!Trace.isPadding(_spec, (1 << 41) - 1), "the last slot");
        shape(1, 1);
        vm.assertEq(Trace.leafCount(_spec), 2, "one operator, one slot");
        vm.assertEq(Node.unwrap(Trace.stateHalf(_spec, Node.wrap(bytes32(uint256(7))))), bytes32(uint256(7)), "the state itself");
        shape((1 << 39) + 1, 1);
        vm.assertEq(Trace.leafCount(_spec), (1 << 40) + 1, "a gap of nearly half");
    }
}
