// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Merkle, Node} from "../Merkle.sol";
import {TrainingSpec} from "../TrainingSpec.sol";

/// @title The tree of level OPERATOR
/// @notice Two halves of 2^h leaves, h the depth of an operators' tree:
///           leaf q < operatorCount          payload: tensor root of the output of operator q
///           leaf 2^h + s, s < stateCount    payload: tensor root of state slot s after the step
///         and PAD elsewhere. So the right half is the state's own tree, extended with PAD to height h: of a trace a party chooses the
///         left half only. A program's last `stateCount` operators store the slots, in their order.
library Trace {
    /// @notice h, the height of each half. Every slot is stored by an operator (`Limits`), so a state is never the larger one.
    function halfHeight(TrainingSpec storage spec) internal view returns (uint8) {
        return Merkle.depth(spec.operatorCount);
    }

    /// @notice Leaves of the left half, and so the index of state slot 0.
    function half(TrainingSpec storage spec) internal view returns (uint64) {
        return uint64(1) << halfHeight(spec);
    }

    /// @notice Leaves of the tree, with the gap behind the operators.
    function leafCount(TrainingSpec storage spec) internal view returns (uint64) {
        return half(spec) + spec.stateCount;
    }

    /// @notice Whether PAD belongs there: behind the operators, and behind the state.
    function isPadding(TrainingSpec storage spec, uint64 index) internal view returns (bool) {
        uint64 start = half(spec);
        return index < start ? index >= spec.operatorCount : index - start >= spec.stateCount;
    }

    /// @notice Leaf of the operator that stores the slot whose leaf is `index`.
    function storeOf(TrainingSpec storage spec, uint64 index) internal view returns (uint64) {
        return spec.operatorCount - spec.stateCount + (index - half(spec));
    }

    /// @notice The right half, from a state root.
    function stateHalf(TrainingSpec storage spec, Node stateRoot) internal view returns (Node node) {
        (uint8 height, uint8 start) = (halfHeight(spec), Merkle.depth(spec.stateCount));
        node = stateRoot;
        Node padding = Merkle.PAD;
        for (uint8 h = 0; h < height; ++h) {
            if (h >= start) node = Merkle.join(node, padding);
            padding = Merkle.join(padding, padding);
        }
    }
}
