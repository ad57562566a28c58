// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame, Terms} from "./IVerificationGame.sol";
import {Duration} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title What a job may ask for
/// @notice Checked once, when the job is posted; everything after relies on it.
library Limits {
    /// @notice Longest content address, in bytes: a CIDv1 with a 64-byte digest in base32 has 111.
    uint256 internal constant MAX_CID_LENGTH = 128;
    /// @notice Far from any overflow of 64-bit timestamps, and nobody's bond is locked for good by a slip of the pen.
    uint256 internal constant MAX_WINDOW = 365 days;
    /// @notice Bounds the depth of every tree, and thereby moves and proofs, to 40.
    uint256 internal constant MAX_LEAVES = 1 << 40;
    uint256 internal constant MAX_CHUNK_SIZE = 1 << 20;
    uint256 internal constant MAX_ROUNDING_POLICY = 1;
    uint256 internal constant MIN_ROUNDING_BITS = 23;
    uint256 internal constant MAX_ROUNDING_BITS = 32;
    /// @notice Two values within d of the exact one can differ by 2d, so a log that holds less than 3d misses ambiguous elements.
    uint256 internal constant MIN_LOG_GUARD = 3;

    function checkSpec(TrainingSpec calldata spec) internal pure {
        within("steps", spec.steps, 1, MAX_LEAVES);
        within("interval", spec.interval, 1, spec.steps);
        if (spec.steps % spec.interval != 0) revert IVerificationGame.IntervalDoesNotDivideSteps(spec.interval, spec.steps);
        nonZero("programRoot", spec.programRoot);
        within("operatorCount", spec.operatorCount, 1, MAX_LEAVES);
        nonZero("initialStateRoot", spec.initialStateRoot);
        within("stateCount", spec.stateCount, 1, MAX_LEAVES);
        nonZero("dataRoot", spec.dataRoot);
        within("dataRows", spec.dataRows, 1, MAX_LEAVES);
        // Every sample has a position step * batchSize + j, which has to fit 64 bits.
        within("batchSize", spec.batchSize, 1, type(uint64).max / spec.steps);
        nonZero("scheduleRoot", spec.scheduleRoot);
        within("chunkSize", spec.chunkSize, 1, MAX_CHUNK_SIZE);
        within("roundingPolicy", spec.roundingPolicy, 0, MAX_ROUNDING_POLICY);
        within("roundingBits", spec.roundingBits, MIN_ROUNDING_BITS, MAX_ROUNDING_BITS);
        within("logGuard", spec.logGuard, MIN_LOG_GUARD, type(uint8).max);
        within("logVersion", spec.logVersion, 1, type(uint8).max);
        within("referee", uint160(spec.referee), 1, type(uint160).max);
    }

    function checkTerms(Terms calldata terms) internal pure {
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
