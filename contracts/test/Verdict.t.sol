// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Display} from "../src/Display.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, JobStatus} from "../src/Types.sol";
import {Node} from "../src/Merkle.sol";
import {VerdictView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Trees} from "./support/Trees.sol";
import {IDisplay, IEAS, VerdictAttester} from "./support/VerdictAttester.sol";

/// @notice An attestation as EAS's Common.sol declares it.
struct Attestation {
    bytes32 uid;
    bytes32 schema;
    uint64 time;
    uint64 expirationTime;
    uint64 revocationTime;
    bytes32 refUID;
    address recipient;
    address attester;
    bool revocable;
    bytes data;
}

interface IAttestations {
    function getAttestation(bytes32 uid) external view returns (Attestation memory);
}

interface ISchemas {
    function register(string calldata schema, address resolver, bool revocable) external returns (bytes32);
}

/// @notice `Display.verdictOf`, and the example that attests to it, with EAS's own contracts as npm brings them.
contract VerdictTest is Players {
    string private constant EAS = "node_modules/@ethereum-attestation-service/eas-contracts/artifacts/contracts/";

    string private constant SCHEMA =
        "address game,uint64 job,bytes32 specHash,bytes32 checkpointRoot,bytes32 finalStateRoot,uint128 reward";

    IEAS private eas;
    VerdictAttester private attester;

    function setUp() public override {
        super.setUp();
        address registry = create(vm.getCode(string.concat(EAS, "SchemaRegistry.sol/SchemaRegistry.json")));
        eas = IEAS(create(bytes.concat(vm.getCode(string.concat(EAS, "EAS.sol/EAS.json")), abi.encode(registry))));
        bytes32 schema = ISchemas(registry).register(SCHEMA, address(0), false);
        attester = new VerdictAttester(eas, IDisplay(address(Display)), address(game), schema);
    }

    function create(bytes memory code) private returns (address created) {
        assembly {
            created := create(0, add(code, 32), mload(code))
        }
        vm.assertTrue(created.code.length > 0, "EAS is deployed");
    }

    function test_aFinalVerdict_isAttestedOnce() public {
        Run memory honest = honestRun(60, 5);
        JobId job = post(60, 5);
        commitRun(job, honest);
        vm.expectRevert(abi.encodeWithSelector(VerdictAttester.NotFinal.selector, job, JobStatus.CLAIMED));
        attester.attest(JobId.unwrap(job));
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        bytes32 uid = attester.attest(JobId.unwrap(job));
        Attestation memory made = IAttestations(address(eas)).getAttestation(uid);
        vm.assertEq(made.attester, address(attester), "attester");
        vm.assertEq(made.recipient, trainer, "recipient");
        vm.assertTrue(!made.revocable && made.schema == attester.schema(), "schema");
        bytes32 root = Trees.root(Runs.checkpointTree(honest));
        bytes memory wanted = abi.encode(address(game), job, hashOf(job), root, honest.states[59], REWARD);
        vm.assertEq(keccak256(made.data), keccak256(wanted), "data");
        vm.expectRevert(abi.encodeWithSelector(VerdictAttester.AttestedBefore.selector, job, uid));
        attester.attest(JobId.unwrap(job));
    }

    function test_aRejectedClaim_isNotAttested_andTheViewSaysWhatBecameOfIt() public {
        Run memory wrong = Runs.with(40, 2, Lie(8, Toy.SUM, 1, 1));
        (JobId job, GameId id) = dispute(wrong, honestRun(40, 2));
        step(id, wrong, honestRun(40, 2));
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        vm.expectRevert(abi.encodeWithSelector(VerdictAttester.NotFinal.selector, job, JobStatus.REJECTED));
        attester.attest(JobId.unwrap(job));
        VerdictView memory shown = Display.verdictOf(address(game), JobId.unwrap(job));
        vm.assertTrue(shown.outcome == JobStatus.REJECTED && shown.gameCount == 1 && shown.attestations == 0, "outcome");
        vm.assertTrue(shown.customer == customer && shown.trainer == trainer && shown.specHash == hashOf(job), "parties");
        vm.assertEq(Node.unwrap(shown.checkpointRoot), Trees.root(Runs.checkpointTree(wrong)), "root");
        vm.assertEq(shown.finalStateRoot, wrong.states[39], "final state");
        vm.assertTrue(shown.reward == REWARD && shown.trainerBond == TRAINER_BOND, "amounts");
    }

    function test_aJobThatDoesNotExist_isRefused() public {
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, JobId.wrap(9), JobStatus.NONE, JobStatus.OPEN)
        );
        attester.attest(9);
    }
}
