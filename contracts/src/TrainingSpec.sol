// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IAdjudicator} from "./adjudication/IAdjudicator.sol";

/// @notice Everything that decides the bits of a training run. `specHash = keccak256(abi.encode(spec))`; all fields are static, so
///         the preimage is exactly eighteen 32-byte words in this order.
struct TrainingSpec {
    /// T, the number of optimizer steps.
    uint64 steps;
    /// k, the steps between two checkpoints; divides `steps`.
    uint64 interval;
    /// Merkle root over the canonical operator descriptors of one step.
    bytes32 programRoot;
    /// Leaves under `programRoot`.
    uint64 operatorCount;
    /// State root before the first step: what both parties agree on before leaf 0.
    bytes32 initialStateRoot;
    /// Tensors in a state, that is leaves under a state root.
    uint64 stateCount;
    /// Merkle root over the tensor roots of the data set's fields. The program says how many there are.
    bytes32 dataRoot;
    /// Rows of the data set. Each field has as many.
    uint64 dataRows;
    /// Rows that one step reads.
    uint64 batchSize;
    /// Tensor root of the f32[steps, columns] table of per-step scalars (learning rate, ...).
    bytes32 scheduleRoot;
    /// Seed of the counter-based generator and of the data order.
    uint64 seed;
    /// Bytes in one leaf of a tensor root.
    uint32 chunkSize;
    /// 0 = certified (correct rounding), 1 = threshold (the policy of the OVT paper).
    uint8 roundingPolicy;
    /// b_r, the bits that a stored value keeps: 23 to 32.
    uint8 roundingBits;
    /// The log holds an entry for every element within this many error bounds of a rounding boundary.
    uint8 logGuard;
    /// Version of the log format.
    uint8 logVersion;
    /// The account that computes an element whose rounding the contract's precision does not decide.
    address referee;
    /// The contract that computes an element. Like the referee it decides, so that both parties have to look at it before they bond.
    IAdjudicator adjudicator;
}
