// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ChunkOpening} from "../adjudication/Openings.sol";
import {Partial} from "../adjudication/IAdjudicator.sol";
import {Node} from "../Merkle.sol";

/// @notice A side's opening of the leaf that the search of level CHECKPOINT or STEP has found.
struct LeafOpening {
    /// The side's own payload of the disputed leaf (a state root).
    bytes32 payload;
    /// The payload of the leaf before it, on which both trees agree; before leaf 0, what the game agreed on above this level.
    bytes32 agreed;
    /// Proof of `agreed` into the side's own root; empty before leaf 0.
    bytes32[] agreedProof;
}

/// @notice A side's root of the tree below the leaf, tied to its claim above.
struct NextRoot {
    /// At CHECKPOINT the root over the interval's steps. At STEP the node over the operators' half of the trace: the contract itself joins
    /// it with the state root that the side has claimed.
    Node root;
    /// At CHECKPOINT the proof that the side's payload above is the last leaf of `root`; at STEP empty.
    bytes32[] lastLeafProof;
    /// The row of the whole tree's root, of the side that opens first; that of the other is not looked at, and may be empty.
    Node[] row;
}

/// @notice A side's opening of the operator that the search of level OPERATOR has found.
struct OperatorOpening {
    /// The operator's descriptor, a leaf under the program root. Only the side that opens first is asked for it.
    bytes descriptor;
    bytes32[] descriptorProof;
    /// Payload of the side's leaf: the root of the output's chunks, and so this side's root of level CHUNK.
    bytes32 tensorRoot;
    /// The row of `tensorRoot`, of the side that opens first; empty if the output is a single chunk.
    Node[] row;
}

/// @notice The tensor root of an operand, in the order of the descriptor's inputs.
struct OperandRoot {
    /// May be zero, with an empty proof, if nothing of this operand is opened.
    bytes32 root;
    /// Into the challenger's trace; both are equal there.
    bytes32[] proof;
}

/// @notice A proof of one element of the disputed chunk.
struct ElementProof {
    bytes descriptor;
    /// The trainer's chunk.
    bytes chunk;
    /// Number of the element in the chunk.
    uint32 position;
    OperandRoot[] operands;
    ChunkOpening[] openings;
}

/// @notice A side's tree over the running results of the disputed element.
struct PartialsOpening {
    bytes descriptor;
    Node root;
    /// The last leaf, which comes to the element.
    Partial last;
    bytes32[] lastLeafProof;
    /// The row of `root`, of the side that opens first.
    Node[] row;
}

/// @notice A proof of one segment of the disputed element's terms.
struct SegmentProof {
    bytes descriptor;
    /// The agreed running result before the segment; all zero before segment 0.
    Partial before;
    /// Into the challenger's tree of running results; empty before segment 0.
    bytes32[] beforeProof;
    OperandRoot[] operands;
    ChunkOpening[] openings;
}
