// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../../src/game/Bisection.sol";
import {IVerificationGame} from "../../src/IVerificationGame.sol";
import {Level} from "../../src/game/Level.sol";
import {Duration, Time} from "../../src/Time.sol";
import {AuditStatus, GameId, JobId, Terms} from "../../src/Types.sol";
import {AuditView} from "../../src/Views.sol";
import {Node} from "../../src/Merkle.sol";
import {Players} from "./Players.sol";
import {Run, Runs} from "./Runs.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Jobs that need attestations, with open or with blind audits.
abstract contract Market is Players {
    uint128 internal constant FEE = 1 ether + 1;
    uint128 internal constant ATTESTATION_BOND = 2 ether;
    uint64 internal constant AUDIT_WINDOW = 8 hours;
    uint64 internal constant OPENING_WINDOW = 7 hours;

    address internal second;
    address internal third;
    /// What jobs are posted with.
    bool internal blind;
    uint32 internal needed = 1;

    function setUp() public virtual override {
        super.setUp();
        second = account("second auditor");
        third = account("third auditor");
    }

    function marketTerms() internal view returns (Terms memory offered) {
        offered = terms();
        (offered.attestationsNeeded, offered.auditFee) = (needed, FEE);
        offered.attestationBond = blind ? CHALLENGER_BOND : ATTESTATION_BOND;
        offered.auditWindow = blind ? Duration.wrap(AUDIT_WINDOW) : Time.NO_TIME;
        offered.openingWindow = blind ? Duration.wrap(OPENING_WINDOW) : Time.NO_TIME;
    }

    function postMarket(Run memory run) internal returns (JobId) {
        return postWith(run, marketTerms());
    }

    function postWith(Run memory run, Terms memory offered) internal returns (JobId) {
        vm.prank(customer);
        return game.postJob{value: uint256(offered.reward) + offered.auditFee}(
            spec(uint64(run.states.length), run.interval), offered, "bafyjob"
        );
    }

    function rootOf(Run memory run) internal pure returns (Node) {
        return Node.wrap(Trees.root(Runs.checkpointTree(run)));
    }

    function bondOf(JobId job) internal view returns (uint128) {
        return game.getJob(job).terms.attestationBond;
    }

    function attestBy(JobId job, address who) internal {
        (bytes32 hash, Node root, uint128 bond) = (hashOf(job), claimedIn(job), bondOf(job));
        vm.prank(who);
        game.attest{value: bond}(job, hash, root, "bafylog", "bafymodel", ANY_PLACE);
    }

    // ------------------------------------------------------------------------------------------------------------------- seals

    function salt(address who) internal pure returns (bytes32) {
        return keccak256(abi.encode("salt", who));
    }

    /// @dev Written out again and not by `Seals`, as a client would.
    function claimSeal(JobId job, address who, Run memory run) internal view returns (bytes32) {
        return keccak256(
            abi.encode(
                block.chainid,
                address(game),
                JobId.unwrap(job),
                who,
                Node.unwrap(rootOf(run)),
                run.states[run.states.length - 1],
                "bafylog",
                "bafymodel",
                salt(who)
            )
        );
    }

    function auditSeal(JobId job, address who, Node root) internal view returns (bytes32) {
        return keccak256(abi.encode(block.chainid, address(game), JobId.unwrap(job), who, Node.unwrap(root), salt(who)));
    }

    function sealClaim(JobId job, Run memory run) internal {
        (bytes32 hash, bytes32 seal) = (hashOf(job), claimSeal(job, trainer, run));
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(job, hash, seal);
    }

    function sealAudit(JobId job, address who, Run memory run) internal {
        sealRoot(job, who, rootOf(run));
    }

    function sealRoot(JobId job, address who, Node root) internal {
        (bytes32 hash, bytes32 seal) = (hashOf(job), auditSeal(job, who, root));
        vm.prank(who);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, seal, ANY_PLACE);
    }

    function openClaim(JobId job, Run memory run) internal {
        openClaimAs(job, trainer, run, salt(trainer));
    }

    function openClaimAs(JobId job, address who, Run memory run, bytes32 salted) internal {
        bytes memory data = openingOfClaim(job, run, salted);
        claimedRow[job] = asNextRoot(Runs.checkpointTree(run)).row;
        vm.prank(who);
        pass(data);
    }

    function openingOfClaim(JobId job, Run memory run, bytes32 salted) internal view returns (bytes memory) {
        Tree memory tree = Runs.checkpointTree(run);
        bytes32 last = run.states[run.states.length - 1];
        return abi.encodeCall(game.openClaim, (job, asNextRoot(tree), last, "bafylog", "bafymodel", salted));
    }

    function openAudit(JobId job, address who, Run memory run) internal returns (GameId) {
        Node root = rootOf(run);
        vm.prank(who);
        return game.openAudit(job, root, "bafylog", "bafymodel", salt(who));
    }

    function openingOfAudit(JobId job, Run memory run, bytes32 salted) internal view returns (bytes memory) {
        return abi.encodeCall(game.openAudit, (job, rootOf(run), "bafylog", "bafymodel", salted));
    }

    function pass(bytes memory data) private {
        (bool ok, bytes memory why) = address(game).call(data);
        if (ok) return;
        assembly ("memory-safe") {
            revert(add(why, 32), mload(why))
        }
    }

    /// @notice The call is refused, for this reason exactly.
    function refused(address who, bytes memory data, bytes memory why) internal {
        vm.prank(who);
        (bool ok, bytes memory found) = address(game).call(data);
        vm.assertTrue(!ok, "refused");
        vm.assertEq(keccak256(found), keccak256(why), "for this reason");
    }

    function tooEarly(uint256 now_, uint256 deadline) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(IVerificationGame.TooEarly.selector, now_, deadline);
    }

    function tooLate(uint256 now_, uint256 deadline) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(IVerificationGame.TooLate.selector, now_, deadline);
    }

    /// @notice The challenger opens, and the other side is silent until its time is out.
    function silence(GameId id, Run memory claimed, Run memory challenged) internal {
        playToOpening(id, Level.CHECKPOINT, claimed, challenged);
        open(id, Side.CHALLENGER, challenged);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
    }

    /// @notice A blind job in which `audited` is sealed by `auditor`, up to the opening of the claim.
    function blindClaim(Run memory claimed, Run memory audited) internal returns (JobId job) {
        blind = true;
        job = postMarket(claimed);
        sealClaim(job, claimed);
        sealAudit(job, auditor, audited);
        later(AUDIT_WINDOW + 1);
        openClaim(job, claimed);
    }

    // ------------------------------------------------------------------------------------------------------------------- the end

    function appealBy(JobId job, address who) internal returns (GameId) {
        bytes32 hash = hashOf(job);
        vm.prank(who);
        return game.appeal{value: CHALLENGER_BOND}(job, hash);
    }

    function credit(address who) internal view returns (uint256) {
        return game.creditOf(who);
    }

    function audit(JobId job, uint256 index) internal view returns (AuditView memory) {
        return game.auditsOf(job, index, 1)[0];
    }

    function assertAudit(JobId job, uint256 index, AuditStatus status) internal view {
        vm.assertEq(uint8(audit(job, index).status), uint8(status), "audit status");
    }

    /// @dev Everybody named here is all that has money in the contract.
    function assertConserved() internal view {
        uint256 credits = credit(customer) + credit(trainer) + credit(auditor) + credit(second) + credit(third) + credit(stranger);
        vm.assertEq(credits + game.burnt(), address(game).balance, "every wei");
    }
}
