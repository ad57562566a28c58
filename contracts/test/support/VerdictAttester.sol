// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {JobStatus} from "../../src/Types.sol";
import {VerdictView} from "../../src/Views.sol";

/// @notice `verdictOf` of the library Display.
interface IDisplay {
    function verdictOf(address game, uint64 job) external view returns (VerdictView memory);
}

/// @notice What is called of the Ethereum Attestation Service, as its IEAS.sol declares it.
struct AttestationRequestData {
    address recipient;
    uint64 expirationTime;
    bool revocable;
    bytes32 refUID;
    bytes data;
    uint256 value;
}

struct AttestationRequest {
    bytes32 schema;
    AttestationRequestData data;
}

interface IEAS {
    function attest(AttestationRequest calldata request) external payable returns (bytes32);
}

/// @title Example: attests that a claim is final
/// @notice Anybody may ask for it; what it attests to follows from the game. A job is attested to once.
contract VerdictAttester {
    IEAS public immutable eas;
    IDisplay public immutable display;
    address public immutable game;
    /// UID of "address game,uint64 job,bytes32 specHash,bytes32 checkpointRoot,bytes32 finalStateRoot,uint128 reward".
    bytes32 public immutable schema;
    mapping(uint64 job => bytes32) public attested;

    error NotFinal(uint64 job, JobStatus status);
    error AttestedBefore(uint64 job, bytes32 uid);

    constructor(IEAS eas_, IDisplay display_, address game_, bytes32 schema_) {
        (eas, display, game, schema) = (eas_, display_, game_, schema_);
    }

    function attest(uint64 job) external returns (bytes32 uid) {
        VerdictView memory verdict = display.verdictOf(game, job);
        if (verdict.outcome != JobStatus.FINAL) revert NotFinal(job, verdict.outcome);
        if (attested[job] != 0) revert AttestedBefore(job, attested[job]);
        bytes memory data = abi.encode(game, job, verdict.specHash, verdict.checkpointRoot, verdict.finalStateRoot, verdict.reward);
        attested[job] = uid = eas.attest(AttestationRequest(schema, AttestationRequestData(verdict.trainer, 0, false, 0, data, 0)));
    }
}
