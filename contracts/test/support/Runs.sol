// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Toy} from "./Toy.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice What a party believes of a whole training: the state after every step. All its trees follow from that.
struct Run {
    uint64 interval;
    /// After every step, w and s.
    uint256[][] numbers;
    /// Their roots.
    bytes32[] states;
    /// What the party gets wrong, if anything.
    Lie lie;
}

/// @notice One wrong number in every step from one on; all that depends on it follows from it.
struct Lie {
    /// The first wrong step.
    uint256 step;
    /// An operator, whose first number is wrong; or OPERATORS + a state slot, which is wrong although all operators are right.
    uint256 place;
    uint256 delta;
    /// Of the sum: the first wrong running result.
    uint256 segment;
}

/// @title Runs of the toy program, and their trees
library Runs {
    function honest(uint256 steps, uint64 interval) internal pure returns (Run memory) {
        return with(steps, interval, Lie(type(uint256).max, 0, 0, 0));
    }

    /// @notice As honest up to the first step of the lie, and different ever after.
    function with(uint256 steps, uint64 interval, Lie memory lie) internal pure returns (Run memory run) {
        run.interval = interval;
        run.lie = lie;
        run.numbers = new uint256[][](steps);
        run.states = new bytes32[](steps);
        for (uint256 s = 0; s < steps; ++s) {
            run.numbers[s] = Toy.stored(computed(run, s));
            if (s >= lie.step && lie.place >= Toy.OPERATORS) {
                run.numbers[s][lie.place == Toy.OPERATORS ? 0 : Toy.ELEMENTS] += lie.delta;
            }
            seal(run, s);
        }
    }

    /// @notice Works out the root of a state again, after a test has changed its numbers.
    function seal(Run memory run, uint256 s) internal pure {
        run.states[s] = Trees.root(Toy.stateTree(run.numbers[s]));
    }

    function before(Run memory run, uint256 s) internal pure returns (uint256[] memory) {
        return s == 0 ? Toy.initial() : run.numbers[s - 1];
    }

    /// @notice What the operators compute in a step.
    function computed(Run memory run, uint256 s) internal pure returns (uint256[][] memory) {
        return Toy.outputs(before(run, s), s >= run.lie.step ? run.lie.place : type(uint256).max, run.lie.delta);
    }

    /// @notice The running results of the sum of a step.
    function partials(Run memory run, uint256 s) internal pure returns (bytes32[3][] memory) {
        bool bent = s >= run.lie.step && run.lie.place == Toy.SUM;
        return Toy.partials(computed(run, s)[2], bent ? run.lie.segment : Toy.SEGMENTS, run.lie.delta);
    }

    /// @notice The state roots of level CHECKPOINT, or of level STEP inside one interval.
    function payloads(Run memory run, bool inside, uint256 interval) internal pure returns (bytes32[] memory states) {
        if (!inside) {
            states = new bytes32[](run.states.length / run.interval);
            for (uint256 i = 0; i < states.length; ++i) {
                states[i] = run.states[(i + 1) * run.interval - 1];
            }
            return states;
        }
        states = new bytes32[](run.interval);
        for (uint256 j = 0; j < states.length; ++j) {
            states[j] = run.states[interval * run.interval + j];
        }
    }

    function checkpointTree(Run memory run) internal pure returns (Tree memory) {
        return Trees.build(payloads(run, false, 0));
    }

    function stepTree(Run memory run, uint256 interval) internal pure returns (Tree memory) {
        return Trees.build(payloads(run, true, interval));
    }

    function traceTree(Run memory run, uint256 s) internal pure returns (Tree memory) {
        return Toy.traceTree(computed(run, s), run.numbers[s]);
    }

    function outputTree(Run memory run, uint256 s, uint256 q) internal pure returns (Tree memory) {
        return Toy.tensorTree(computed(run, s)[q]);
    }

    function partialTree(Run memory run, uint256 s) internal pure returns (Tree memory) {
        return Toy.partialTree(partials(run, s));
    }
}
