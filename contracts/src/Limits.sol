// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame, Terms} from "./IVerificationGame.sol";
import {Duration} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title What a job may ask for
/// @notice Checked once, when the job is posted; everything after relies on it. A contract of its own for the sake of the limit on code.
library Limits {
    /// @notice Longest content address, in bytes: a CIDv1 with a 64-byte digest in base32 has 111.
    uint256 internal constant MAX_CID_LENGTH = 128;
    /// @notice Far from any overflow of 64-bit timestamps, and nobody's bond is locked for good by a slip of the pen.
    uint256 internal constant MAX_WINDOW = 365 days;
    /// @notice Bounds the depth of every tree, and thereby moves and proofs, to 40.
    uint256 internal constant MAX_LEAVES = 1 << 40;
    /// @notice A trainer has to be able to post a chunk in one transaction, at up to 40 gas a byte.
    uint256 internal constant MAX_CHUNK_SIZE = 1 << 16;
    /// @notice Elements have 1, 4 or 8 bytes, and none lies in two chunks.
    uint256 internal constant LARGEST_ELEMENT = 8;
    /// @notice The contract computes the correct rounding; the threshold policy has no one right answer.
    uint256 internal constant CERTIFIED_ROUNDING = 0;
    uint256 internal constant MIN_ROUNDING_BITS = 23;
    uint256 internal constant MAX_ROUNDING_BITS = 32;
    /// @notice Two values within d of the exact one can differ by 2d, so a log that holds less than 3d misses ambiguous elements.
    uint256 internal constant MIN_LOG_GUARD = 3;

    function check(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) external view {
        checkSpec(spec);
        checkTerms(terms);
        checkCid(jobCid);
    }

    function checkSpec(TrainingSpec calldata spec) private view {
        within("steps", spec.steps, 1, MAX_LEAVES);
        within("interval", spec.interval, 1, spec.steps);
        if (spec.steps % spec.interval != 0) revert IVerificationGame.IntervalDoesNotDivideSteps(spec.interval, spec.steps);
        nonZero("programRoot", spec.programRoot);
        within("stateCount", spec.stateCount, 1, MAX_LEAVES);
        // A program ends with a store operator for every state slot.
        within("operatorCount", spec.operatorCount, spec.stateCount, MAX_LEAVES);
        nonZero("initialStateRoot", spec.initialStateRoot);
        nonZero("dataRoot", spec.dataRoot);
        within("dataRows", spec.dataRows, 1, MAX_LEAVES);
        // Every sample has a position step * batchSize + j, which has to fit 64 bits.
        within("batchSize", spec.batchSize, 1, type(uint64).max / spec.steps);
        nonZero("scheduleRoot", spec.scheduleRoot);
        within("chunkSize", spec.chunkSize, 1, MAX_CHUNK_SIZE);
        if (spec.chunkSize % LARGEST_ELEMENT != 0) revert IVerificationGame.ChunkSizeSplitsElements(spec.chunkSize);
        within("roundingPolicy", spec.roundingPolicy, CERTIFIED_ROUNDING, CERTIFIED_ROUNDING);
        within("roundingBits", spec.roundingBits, MIN_ROUNDING_BITS, MAX_ROUNDING_BITS);
        within("logGuard", spec.logGuard, MIN_LOG_GUARD, type(uint8).max);
        within("logVersion", spec.logVersion, 1, type(uint8).max);
        within("referee", uint160(spec.referee), 1, type(uint160).max);
        if (address(spec.adjudicator).code.length == 0) revert IVerificationGame.NoAdjudicator(address(spec.adjudicator));
    }

    function checkTerms(Terms calldata terms) private pure {
        within("reward", terms.reward, 1, type(uint128).max);
        // INVARIANT: nobody plays for nothing; a free challenge would let anyone hold up a claim and make the trainer pay gas.
        within("trainerBond", terms.trainerBond, 1, type(uint128).max);
        within("challengerBond", terms.challengerBond, 1, type(uint128).max);
        window("commitWindow", terms.commitWindow);
        window("challengeWindow", terms.challengeWindow);
        window("clockAllowance", terms.clockAllowance);
        window("refereeAllowance", terms.refereeAllowance);
    }

    function checkCid(string calldata cid) internal pure {
        uint256 length = bytes(cid).length;
        if (length == 0 || length > MAX_CID_LENGTH) revert IVerificationGame.CidLengthOutOfRange(length, MAX_CID_LENGTH);
    }

    function window(string memory field, Duration value) private pure {
        within(field, Duration.unwrap(value), 1, MAX_WINDOW);
    }

    function nonZero(string memory field, bytes32 value) private pure {
        within(field, uint256(value), 1, type(uint256).max);
    }

    function within(string memory field, uint256 value, uint256 minimum, uint256 maximum) private pure {
        if (value < minimum || value > maximum) revert IVerificationGame.FieldOutOfRange(field, value, minimum, maximum);
    }
}
