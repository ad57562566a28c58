// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame} from "../IVerificationGame.sol";
import {Node} from "../Merkle.sol";
import {JobId} from "../Types.sol";

/// @title Seals of claims and audits
/// @notice A seal hides a root until its owner opens it. It names the chain, the contract, the job and the account, so it says nothing in
///         the hands of another account, and nothing about another job.
library Seals {
    /// @param salt 32 random bytes, without which the seal of a root that somebody guesses could be found
    function ofClaim(
        JobId job,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid,
        bytes32 salt
    ) internal view returns (bytes32) {
        return keccak256(
            abi.encode(block.chainid, address(this), job, msg.sender, checkpointRoot, finalStateRoot, logCid, modelCid, salt)
        );
    }

    /// @param salt 32 random bytes, as above
    function ofAudit(JobId job, Node checkpointRoot, bytes32 salt) internal view returns (bytes32) {
        return keccak256(abi.encode(block.chainid, address(this), job, msg.sender, checkpointRoot, salt));
    }

    function requireSame(bytes32 computed, bytes32 expected) internal pure {
        if (computed != expected) revert IVerificationGame.WrongSeal(computed, expected);
    }
}
