// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descent} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {NextRoot} from "../src/game/Moves.sol";
import {Timestamp} from "../src/Time.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {AuditsView, JobView} from "../src/Views.sol";
import {Market} from "./support/Market.sol";
import {Run, Runs} from "./support/Runs.sol";

/// @notice Blind audits: everybody seals, then everybody opens.
contract BlindAuditsTest is Market {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        blind = true;
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    function sealedJob(Run memory claimed) private returns (JobId job) {
        job = postMarket(claimed);
        sealClaim(job, claimed);
    }

    function assertInstant(Timestamp found, uint256 expected, string memory what) private pure {
        vm.assertEq(Timestamp.unwrap(found), expected, what);
    }

    // -------------------------------------------------------------------------------------------------------------- a whole course

    function test_equalRoots_shareTheFee() public {
        needed = 2;
        JobId job = sealedJob(_honest);
        sealAudit(job, auditor, _honest);
        sealAudit(job, second, _honest);
        assertJob(job, JobStatus.SEALED);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        assertJob(job, JobStatus.CLAIMED);
        vm.assertEq(GameId.unwrap(openAudit(job, auditor, _honest)), 0, "an attestation");
        vm.assertEq(GameId.unwrap(openAudit(job, second, _honest)), 0, "an attestation");
        vm.assertEq(game.getJob(job).attestations, 2, "both");
        vm.assertEq(audit(job, 1).modelCid, "bafymodel", "with addresses");
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        game.collect(job, auditor);
        game.collect(job, second);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + FEE / 2, "bond and half of the fee");
        vm.assertEq(credit(trainer), REWARD + TRAINER_BOND, "the trainer");
        assertConserved();
    }

    function test_anotherRoot_isAChallenge_withTheSealedBond() public {
        JobId job = blindClaim(_wrong, _honest);
        uint256 before = address(game).balance;
        vm.expectEmit(true, true, true, true, address(game));
        emit IVerificationGame.Challenged(job, GameId.wrap(1), auditor, rootOf(_honest));
        GameId id = openAudit(job, auditor, _honest);
        vm.assertEq(GameId.unwrap(id), 1, "a game");
        vm.assertEq(address(game).balance, before, "no further bond");
        assertAudit(job, 0, AuditStatus.CHALLENGED);
        assertPhase(id, Phase.QUEUED);
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        play(id, _wrong, _honest);
        assertJob(job, JobStatus.REJECTED);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + TRAINER_BOND / 2, "as any challenger");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        assertConserved();
    }

    function test_theViewShowsEveryDeadline_asSoonAsItIsKnown() public {
        JobId job = postMarket(_honest);
        AuditsView memory shown = game.getJob(job).audits;
        assertInstant(shown.auditDeadline, 0, "before the seal");
        sealClaim(job, _honest);
        shown = game.getJob(job).audits;
        assertInstant(shown.auditDeadline, START + AUDIT_WINDOW, "audits");
        assertInstant(shown.openingDeadline, START + AUDIT_WINDOW + OPENING_WINDOW, "the claim's opening");
        assertInstant(shown.auditOpeningDeadline, 0, "not known");
        JobView memory whole = game.getJob(job);
        vm.assertEq(whole.claim.trainer, trainer, "who has sealed");
        assertInstant(whole.claim.challengeDeadline, 0, "no claim to challenge yet");
        later(AUDIT_WINDOW + 60);
        openClaim(job, _honest);
        assertInstant(
            game.getJob(job).audits.auditOpeningDeadline, START + AUDIT_WINDOW + 60 + OPENING_WINDOW, "from the opening on"
        );
    }

    // ----------------------------------------------------------------------------------------------------------------------- seals

    function test_aBlindJob_takesNoOpenClaim_andNoOpenAttestation() public {
        JobId job = postMarket(_honest);
        bytes32 hash = hashOf(job);
        Node root = rootOf(_honest);
        NextRoot memory claimed = asNextRoot(Runs.checkpointTree(_honest));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AuditsAreBlind.selector, job));
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(job, hash, claimed, _honest.states[5], "l", "m");
        sealClaim(job, _honest);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AuditsAreBlind.selector, job));
        vm.prank(auditor);
        game.attest{value: CHALLENGER_BOND}(job, hash, root, "l", "m", ANY_PLACE);
    }

    function test_sealsAreBonded_andNameTheSpec_andTheTermsTrainer() public {
        Terms memory offered = marketTerms();
        offered.trainer = trainer;
        JobId job = postWith(_honest, offered);
        bytes32 hash = hashOf(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheTrainer.selector, stranger, trainer));
        vm.prank(stranger);
        game.sealClaim{value: TRAINER_BOND}(job, hash, hash);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, TRAINER_BOND));
        vm.prank(trainer);
        game.sealClaim(job, hash, hash);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongSpec.selector, bytes32(0), hash));
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(job, 0, hash);
        later(COMMIT_WINDOW);
        sealClaim(job, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 1, CHALLENGER_BOND));
        vm.prank(auditor);
        game.sealAudit{value: 1}(job, hash, hash, ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongSpec.selector, bytes32(0), hash));
        vm.prank(auditor);
        game.sealAudit{value: CHALLENGER_BOND}(job, 0, hash, ANY_PLACE);
        // The instant of the deadline is the auditor's.
        later(AUDIT_WINDOW);
        sealAudit(job, auditor, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyAttested.selector, job, auditor));
        vm.prank(auditor);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, hash, ANY_PLACE);
        later(1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, time(), time() - 1));
        vm.prank(second);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, hash, ANY_PLACE);
    }

    function test_aClaimSealedAfterTheCommitDeadline_isRefused() public {
        JobId job = postMarket(_honest);
        bytes32 hash = hashOf(job);
        later(COMMIT_WINDOW + 1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, time(), time() - 1));
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(job, hash, hash);
    }

    function test_aCopiedSeal_cannotBeOpened() public {
        JobId job = sealedJob(_honest);
        // The seal of an honest auditor, seen on the chain and sent from another account.
        bytes32 seal = auditSeal(job, auditor, rootOf(_honest));
        sealAudit(job, auditor, _honest);
        bytes32 hash = hashOf(job);
        vm.prank(second);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, seal, ANY_PLACE);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        openAudit(job, auditor, _honest);
        bytes32 computed = keccak256(
            abi.encode(block.chainid, address(game), JobId.unwrap(job), second, Node.unwrap(rootOf(_honest)), salt(auditor))
        );
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongSeal.selector, computed, seal);
        refused(second, openingOfAudit(job, _honest, salt(auditor)), why);
    }

    function test_aSealOfAnotherJob_cannotBeOpened() public {
        (JobId one, JobId other) = (postMarket(_honest), postMarket(_honest));
        bytes32 seal = claimSeal(one, trainer, _honest);
        bytes32 hash = hashOf(other);
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(other, hash, seal);
        later(AUDIT_WINDOW + 1);
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongSeal.selector, claimSeal(other, trainer, _honest), seal);
        refused(trainer, openingOfClaim(other, _honest, salt(trainer)), why);
    }

    function test_onlyWhatWasSealed_canBeOpened_byWhoSealedIt() public {
        JobId job = sealedJob(_wrong);
        later(AUDIT_WINDOW + 1);
        bytes32 seal = claimSeal(job, trainer, _wrong);
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongSeal.selector, claimSeal(job, trainer, _honest), seal);
        refused(trainer, openingOfClaim(job, _honest, salt(trainer)), why);
        bytes32 strangers = keccak256(
            abi.encode(
                block.chainid,
                address(game),
                JobId.unwrap(job),
                stranger,
                Node.unwrap(rootOf(_wrong)),
                _wrong.states[5],
                "bafylog",
                "bafymodel",
                salt(trainer)
            )
        );
        why = abi.encodeWithSelector(IVerificationGame.WrongSeal.selector, strangers, seal);
        refused(stranger, openingOfClaim(job, _wrong, salt(trainer)), why);
        openClaim(job, _wrong);
    }

    function test_aClaimWhoseFinalStateIsNotItsLastLeaf_cannotBeOpened() public {
        JobId job = postMarket(_honest);
        Run memory bent = wrongRun(6, 3, 0, "bent");
        // The root of one run with the last state of another: sealed as it will be opened.
        bent.states[5] = _honest.states[5];
        bytes32 seal = claimSeal(job, trainer, bent);
        bytes32 hash = hashOf(job);
        vm.prank(trainer);
        game.sealClaim{value: TRAINER_BOND}(job, hash, seal);
        later(AUDIT_WINDOW + 1);
        NextRoot memory claimed = asNextRoot(Runs.checkpointTree(bent));
        claimed.lastLeafProof = new bytes32[](1);
        bytes32 state = bent.states[5];
        bytes32 salted = salt(trainer);
        vm.prank(trainer);
        (bool ok, bytes memory why) =
            address(game).call(abi.encodeCall(game.openClaim, (job, claimed, state, "bafylog", "bafymodel", salted)));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "as of a commit");
    }

    // ------------------------------------------------------------------------------------------------------------------- deadlines

    function test_theClaimOpens_strictlyAfterTheAuditDeadline_andByItsOwn() public {
        JobId job = sealedJob(_honest);
        later(AUDIT_WINDOW);
        refused(trainer, openingOfClaim(job, _honest, salt(trainer)), tooEarly(time(), time()));
        later(OPENING_WINDOW);
        openClaim(job, _honest);
        job = sealedJob(_honest);
        later(AUDIT_WINDOW + OPENING_WINDOW + 1);
        refused(trainer, openingOfClaim(job, _honest, salt(trainer)), tooLate(time(), time() - 1));
    }

    function test_aClaimThatIsNotOpened_losesItsBond_andFreesTheAuditors() public {
        JobId job = sealedJob(_wrong);
        sealAudit(job, auditor, _honest);
        later(AUDIT_WINDOW + OPENING_WINDOW);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), time()));
        game.reclaim(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        later(1);
        vm.prank(stranger);
        game.reclaim(job);
        assertJob(job, JobStatus.EXPIRED);
        game.collect(job, auditor);
        assertCredits(uint256(REWARD) + FEE + TRAINER_BOND / 2, 0, CHALLENGER_BOND + FEE);
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 - FEE, "half pays the audit, the rest of it is burnt");
        assertConserved();
        bytes memory why =
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.EXPIRED, JobStatus.SEALED);
        refused(trainer, openingOfClaim(job, _wrong, salt(trainer)), why);
    }

    function test_anAuditThatIsNotOpened_losesItsBond() public {
        JobId job = blindClaim(_honest, _honest);
        later(OPENING_WINDOW);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), time()));
        game.collect(job, auditor);
        later(1);
        refused(auditor, openingOfAudit(job, _honest, salt(auditor)), tooLate(time(), time() - 1));
        vm.prank(stranger);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), 0, "nothing");
        vm.assertEq(credit(customer), CHALLENGER_BOND / 2, "half is the customer's");
        vm.assertEq(game.burnt(), CHALLENGER_BOND / 2, "half is burnt");
        later(CHALLENGE_WINDOW);
        game.finalize(job);
        assertJob(job, JobStatus.LAPSED);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, auditor));
        game.collect(job, auditor);
        assertConserved();
    }

    function test_anAuditOpensAtTheInstantOfItsDeadline_andALateOneIsLostInEveryEnd() public {
        JobId job = postMarket(_honest);
        sealClaim(job, _honest);
        sealAudit(job, auditor, _honest);
        sealAudit(job, second, _honest);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        later(OPENING_WINDOW);
        openAudit(job, auditor, _honest);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        game.collect(job, second);
        game.collect(job, auditor);
        vm.assertEq(credit(second), 0, "who did not open has no share");
        vm.assertEq(credit(auditor), CHALLENGER_BOND + FEE, "who did has all of it");
        assertConserved();
    }

    // ------------------------------------------------------------------------------------------------- challenges before all is open

    function test_noGameStarts_beforeAllAuditsAreOpen_andThenInTheirOrder() public {
        JobId job = blindClaim(_wrong, _honest);
        GameId puppets = challengeRun(job, stranger, _honest);
        GameId audits = openAudit(job, auditor, _honest);
        assertPhase(puppets, Phase.QUEUED);
        later(OPENING_WINDOW);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NoGameToStart.selector, job));
        game.startGame(job);
        Descent memory nothing;
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, puppets, Phase.QUEUED, Phase.BISECTION);
        refused(stranger, abi.encodeCall(game.bisect, (puppets, nothing)), why);
        later(1);
        game.startGame(job);
        assertPhase(puppets, Phase.BISECTION);
        assertPhase(audits, Phase.QUEUED);
        game.startGame(job);
        assertPhase(audits, Phase.BISECTION);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NoGameToStart.selector, job));
        game.startGame(job);
    }

    function test_aClaimWithAGameThatWaits_isNotPaid() public {
        JobId job = blindClaim(_honest, _honest);
        openAudit(job, auditor, _honest);
        challengeRun(job, second, _wrong);
        later(CHALLENGE_WINDOW + 1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.LiveGames.selector, job, uint64(1)));
        game.finalize(job);
        game.startGame(job);
        timeOut(GameId.wrap(1));
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
    }

    /// @dev The trainer opens a wrong claim and challenges it in the same block with the right root. The seal was earlier.
    function test_whoSealedTheRightRoot_isEarlierThanAnyoneWhoSawTheClaim() public {
        JobId job = blindClaim(_wrong, _honest);
        GameId puppets = challengeRun(job, trainer, _honest);
        later(60);
        GameId audits = openAudit(job, auditor, _honest);
        later(OPENING_WINDOW);
        game.startGame(job);
        play(puppets, _wrong, _honest);
        assertOver(puppets, Outcome.CHALLENGER_WON, Reason.PROOF);
        game.releaseBond(audits);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + TRAINER_BOND / 2, "the half");
        vm.assertEq(credit(trainer), CHALLENGER_BOND, "the puppet: its bond");
        assertConserved();
    }

    function test_aSealedChallengeThatIsLost_isNotTheEarliestAnyMore() public {
        JobId job = blindClaim(_wrong, _honest);
        GameId sealed_ = openAudit(job, auditor, _honest);
        GameId open = challengeRun(job, second, _honest);
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        later(ALLOWANCE + 1);
        game.claimTimeout(sealed_);
        assertPhase(open, Phase.BISECTION);
        uint256 before = credit(second);
        play(open, _wrong, _honest);
        vm.assertEq(credit(second) - before, CHALLENGER_BOND + TRAINER_BOND / 2, "the one that is left");
        vm.assertEq(credit(auditor), 0, "who let its time run out");
        assertConserved();
    }

    /// @dev Its bond is paid and would be lost otherwise, so a sealed audit opens although its account has a challenge with this root.
    function test_aSealedAudit_opensBesideAChallengeOfTheSameAccount() public {
        JobId job = blindClaim(_wrong, _honest);
        GameId open = challengeRun(job, auditor, _honest);
        GameId sealed_ = openAudit(job, auditor, _honest);
        vm.assertTrue(GameId.unwrap(sealed_) != GameId.unwrap(open), "two games");
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        play(open, _wrong, _honest);
        game.releaseBond(sealed_);
        vm.assertEq(credit(auditor), 2 * CHALLENGER_BOND + TRAINER_BOND / 2, "both bonds, and the half");
        assertConserved();
    }
}
