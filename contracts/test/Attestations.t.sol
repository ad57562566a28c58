// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame} from "../src/IVerificationGame.sol";
import {Level} from "../src/game/Level.sol";
import {Node} from "../src/Merkle.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Reason} from "../src/Types.sol";
import {AuditView, JobView} from "../src/Views.sol";
import {Market} from "./support/Market.sol";
import {Run} from "./support/Runs.sol";

/// @notice Open audits: attestations with a bond, without which a claim is not paid.
contract AttestationsTest is Market {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    function claim(Run memory run) private returns (JobId job) {
        job = postMarket(run);
        commitRun(job, run);
    }

    function end(JobId job) private {
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
    }

    // ------------------------------------------------------------------------------------------------------------------ attesting

    function test_anAttestation_isKeptWithItsAddresses() public {
        JobId job = claim(_honest);
        (bytes32 hash, Node root) = (hashOf(job), claimedIn(job));
        vm.expectEmit(true, true, true, true, address(game));
        emit IVerificationGame.Attested(job, auditor, "bafkreilog", "bafkreimodel");
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, hash, root, "bafkreilog", "bafkreimodel", ANY_PLACE);
        attestBy(job, second);
        vm.assertTrue(game.hasAttested(job, auditor), "attested");
        JobView memory shown = game.getJob(job);
        vm.assertEq(shown.attestations, 2, "counted");
        vm.assertEq(shown.audits.count, 2, "kept");
        AuditView memory first = audit(job, 0);
        vm.assertEq(first.auditor, auditor, "whose");
        vm.assertEq(uint8(first.status), uint8(AuditStatus.ATTESTED), "status");
        vm.assertEq(first.logCid, "bafkreilog", "log");
        vm.assertEq(first.modelCid, "bafkreimodel", "model");
        vm.assertEq(audit(job, 1).auditor, second, "the second");
        vm.assertEq(game.auditsOf(job, 1, 9).length, 1, "a page");
        vm.assertEq(game.auditsOf(job, 7, type(uint256).max).length, 0, "behind the end");
    }

    function test_anAttestation_hasToBePaid_once_withAddresses_inTime() public {
        JobId job = claim(_honest);
        (bytes32 hash, Node root) = (hashOf(job), claimedIn(job));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, ATTESTATION_BOND - 1, ATTESTATION_BOND));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND - 1}(job, hash, root, "l", "m", ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 0, 128));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, hash, root, "l", "", ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, hash, root, string(new bytes(129)), "m", ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongSpec.selector, root, hash));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, Node.unwrap(root), root, "l", "m", ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AnotherRootWasCommitted.selector, hash, root));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, hash, Node.wrap(hash), "l", "m", ANY_PLACE);
        later(CHALLENGE_WINDOW);
        attestBy(job, auditor);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyAttested.selector, job, auditor));
        vm.prank(auditor);
        game.attest{value: ATTESTATION_BOND}(job, hash, root, "l", "m", ANY_PLACE);
        later(1);
        uint256 deadline = START + CHALLENGE_WINDOW;
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, deadline + 1, deadline));
        vm.prank(second);
        game.attest{value: ATTESTATION_BOND}(job, hash, root, "l", "m", ANY_PLACE);
    }

    function test_whereNoneIsNeeded_anAttestationIsFree_andKeepsNoBond() public {
        JobId job = post(6, 3);
        commitRun(job, _honest);
        (bytes32 hash, Node root) = (hashOf(job), claimedIn(job));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 1, 0));
        vm.prank(auditor);
        game.attest{value: 1}(job, hash, root, "l", "m", ANY_PLACE);
        refused(
            auditor,
            abi.encodeCall(game.attest, (job, hash, root, "", string(new bytes(129)), ANY_PLACE)),
            abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128)
        );
        vm.prank(auditor);
        game.attest(job, hash, root, "", "", ANY_PLACE);
        vm.assertEq(game.getJob(job).attestations, 1, "counted");
        vm.assertEq(game.getJob(job).audits.count, 0, "not kept");
        end(job);
        assertJob(job, JobStatus.FINAL);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        assertConserved();
    }

    function test_sealsAreForBlindAudits() public {
        JobId job = postMarket(_honest);
        bytes32 hash = hashOf(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AuditsAreOpen.selector, job));
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(job, hash, hash);
        commitRun(job, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.SEALED));
        vm.prank(auditor);
        game.sealAudit{value: ATTESTATION_BOND}(job, hash, hash, ANY_PLACE);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongAuditStatus.selector, job, auditor, AuditStatus.NONE, AuditStatus.SEALED)
        );
        vm.prank(auditor);
        game.openAudit(job, Node.wrap(hash), "l", "m", hash);
    }

    // --------------------------------------------------------------------------------------------------------------------- FINAL

    function test_aFinalClaim_dividesTheFee_andReturnsTheBonds() public {
        needed = 3;
        JobId job = claim(_honest);
        attestBy(job, auditor);
        attestBy(job, second);
        attestBy(job, third);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        end(job);
        assertJob(job, JobStatus.FINAL);
        uint256 each = FEE / 3;
        vm.assertEq(credit(trainer), REWARD + TRAINER_BOND, "the trainer");
        vm.assertEq(credit(customer), FEE - 3 * each, "the dust");
        vm.assertTrue(FEE - 3 * each > 0, "there is some");
        // Anybody may collect for an auditor.
        vm.prank(stranger);
        game.collect(job, auditor);
        game.collect(job, second);
        game.collect(job, third);
        vm.assertEq(credit(auditor), ATTESTATION_BOND + each, "the first");
        vm.assertEq(credit(second), ATTESTATION_BOND + each, "the second");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        assertAudit(job, 0, AuditStatus.CLOSED);
        assertConserved();
        vm.assertEq(game.burnt(), 0, "nothing is burnt");
    }

    function test_aHundredAttestations_shutNobodyOut() public {
        JobId job = claim(_honest);
        for (uint256 i = 0; i < 100; ++i) {
            attestBy(job, account(vm.toString(i)));
        }
        attestBy(job, auditor);
        end(job);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), ATTESTATION_BOND, "its bond, and no share: others were earlier");
    }

    function test_exactlyAsManyAsAreNeeded_areEnough_andOneLessIsNot() public {
        needed = 2;
        JobId job = claim(_honest);
        attestBy(job, auditor);
        attestBy(job, second);
        JobId lapses = claim(_honest);
        attestBy(lapses, auditor);
        end(job);
        game.finalize(lapses);
        assertJob(job, JobStatus.FINAL);
        assertJob(lapses, JobStatus.LAPSED);
    }

    function test_aLapsedClaim_givesBackWhatWasPaidIn_butForTheSharesOfThoseWhoAttested() public {
        needed = 2;
        JobId job = claim(_honest);
        attestBy(job, auditor);
        later(CHALLENGE_WINDOW);
        uint256 deadline = START + CHALLENGE_WINDOW;
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, deadline, deadline));
        game.finalize(job);
        later(1);
        vm.expectEmit(true, true, true, true, address(game));
        emit IVerificationGame.ClaimLapsed(job, trainer);
        game.finalize(job);
        game.collect(job, auditor);
        assertCredits(uint256(REWARD) + FEE - FEE / 2, TRAINER_BOND, ATTESTATION_BOND + FEE / 2);
        assertConserved();
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.LAPSED, JobStatus.CLAIMED));
        game.finalize(job);
    }

    function test_aClaimWithALiveGame_neitherLapsesNorBecomesFinal() public {
        needed = 2;
        JobId job = claim(_honest);
        GameId id = challengeRun(job, second, _wrong);
        later(CHALLENGE_WINDOW + 1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.LiveGames.selector, job, uint64(1)));
        game.finalize(job);
        game.claimTimeout(id);
        game.finalize(job);
        assertJob(job, JobStatus.LAPSED);
        vm.assertEq(credit(trainer), TRAINER_BOND + CHALLENGER_BOND / 2, "what it has won is its own");
        assertConserved();
    }

    function test_anUnclaimedJob_returnsTheFeeWithTheReward() public {
        JobId job = postMarket(_honest);
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        vm.assertEq(credit(customer), uint256(REWARD) + FEE, "both");
    }

    // ------------------------------------------------------------------------------------------------------------------ REJECTED

    function test_withoutAttestations_aVerdictIsPaidAtOnce_andTheFeeReturns() public {
        JobId job = claim(_wrong);
        GameId id = challengeRun(job, auditor, _honest);
        play(id, _wrong, _honest);
        assertJob(job, JobStatus.REJECTED);
        uint256 rest = TRAINER_BOND;
        vm.assertEq(credit(auditor), CHALLENGER_BOND + rest / 2, "the auditor");
        vm.assertEq(credit(customer), uint256(REWARD) + FEE + rest / 4, "the customer");
        assertConserved();
    }

    function test_whereBothSidesLose_theAttestationsAreFree() public {
        JobId job = claim(_wrong);
        attestBy(job, second);
        GameId id = challengeRun(job, auditor, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        game.collect(job, second);
        vm.assertEq(credit(second), ATTESTATION_BOND + FEE, "nothing is shown about the root");
        vm.assertEq(credit(customer), uint256(REWARD) + (TRAINER_BOND + CHALLENGER_BOND) / 2, "the customer");
        assertConserved();
    }
}
