// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding} from "../src/adjudication/IAdjudicator.sol";
import {Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {Level} from "../src/game/Level.sol";
import {ElementProof} from "../src/game/Moves.sol";
import {Timestamp} from "../src/Time.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {GameView} from "../src/Views.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";
import {Market} from "./support/Market.sol";
import {Run} from "./support/Runs.sol";

/// @notice Verdicts against claims with bonded attestations: what they take, and how an auditor keeps its bond.
contract AppealsTest is Market {
    uint256 private constant GAS_PRICE = 12 gwei;

    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    /// @notice A right claim with attestations of `auditor` and `second`, which its trainer loses to `stranger`, its puppet, by silence.
    function lostOnPurpose() private returns (JobId job, GameId verdict) {
        job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        attestBy(job, second);
        verdict = challengeRun(job, stranger, _wrong);
        silence(verdict, _honest, _wrong);
        assertOver(verdict, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    /// @notice A wrong claim with attestations of `second` and `third`, that `auditor` has proven wrong.
    function provenWrong() private returns (JobId job, GameId verdict) {
        job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        verdict = challengeRun(job, auditor, _honest);
        play(verdict, _wrong, _honest);
        assertOver(verdict, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function uphold(JobId job) private {
        vm.warp(Timestamp.unwrap(game.getJob(job).audits.appealDeadline) + 1);
        game.finalize(job);
    }

    // -------------------------------------------------------------------------------------------------------- while it is appealable

    function test_aVerdictAgainstAttestations_isNotPaidBeforeTheTimeForAppealsIsOver() public {
        (JobId job, GameId verdict) = provenWrong();
        assertJob(job, JobStatus.APPEALABLE);
        vm.assertEq(game.burnt() + credit(auditor) + credit(customer), 0, "nothing is paid");
        vm.assertTrue(game.getGame(verdict).bondHeld, "the winner's bond stays");
        vm.assertEq(GameId.unwrap(game.getJob(job).audits.verdict), GameId.unwrap(verdict), "the verdict");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, verdict));
        game.releaseBond(verdict);
        uint256 deadline = Timestamp.unwrap(game.getJob(job).audits.appealDeadline);
        vm.assertEq(deadline, time() + CHALLENGE_WINDOW, "as long as there was for challenges");
        vm.warp(deadline);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, deadline, deadline));
        game.finalize(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, second));
        game.collect(job, second);
    }

    function test_theBondsOfAttestations_goWhereTheTrainersGoes() public {
        vm.fee(10 gwei);
        vm.txGasPrice(GAS_PRICE);
        (JobId job, GameId verdict) = provenWrong();
        vm.warp(Timestamp.unwrap(game.getJob(job).audits.appealDeadline) + 1);
        vm.expectEmit(true, true, true, true, address(game));
        emit IVerificationGame.VerdictUpheld(job, verdict);
        game.finalize(job);
        assertJob(job, JobStatus.REJECTED);
        uint256 gas = game.getGame(verdict).spent[uint8(Side.CHALLENGER)];
        uint256 rest = TRAINER_BOND + 2 * ATTESTATION_BOND - gas;
        vm.assertGt(gas, 0, "metered");
        vm.assertEq(credit(auditor), CHALLENGER_BOND + gas + rest / 2, "the winner");
        vm.assertEq(credit(customer), uint256(REWARD) + FEE + rest / 4, "the customer");
        vm.assertEq(game.burnt(), rest - rest / 2 - rest / 4, "burnt");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, second));
        game.collect(job, second);
        vm.assertTrue(!game.getGame(verdict).bondHeld, "paid");
        assertConserved();
    }

    function test_otherChallengers_getTheirBondsBackAtOnce_andTheEarliestWithTheRootKeepsTheHalf() public {
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        GameId early = challengeRun(job, auditor, _honest);
        GameId puppets = challengeRun(job, stranger, _honest);
        play(puppets, _wrong, _honest);
        assertJob(job, JobStatus.APPEALABLE);
        assertOver(early, Outcome.VOID, Reason.CLAIM_REJECTED);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.APPEALABLE, JobStatus.CLAIMED)
        );
        game.claimTimeout(early);
        game.releaseBond(early);
        vm.assertEq(credit(auditor), CHALLENGER_BOND, "at once");
        uphold(job);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + (TRAINER_BOND + ATTESTATION_BOND) / 2, "the half");
        vm.assertEq(credit(stranger), CHALLENGER_BOND, "the winner: its bond");
        assertConserved();
    }

    function test_aRejectedClaim_takesNoMoreAttestationsAndChallenges() public {
        (JobId job,) = provenWrong();
        bytes memory why =
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.APPEALABLE, JobStatus.CLAIMED);
        bytes32 hash = hashOf(job);
        refused(stranger, abi.encodeCall(game.attest, (job, hash, rootOf(_wrong), "l", "m", ANY_PLACE)), why);
        refused(stranger, abi.encodeCall(game.challenge, (job, hash, rootOf(_wrong), rootOf(_honest))), why);
        refused(stranger, abi.encodeCall(game.startGame, (job)), why);
    }

    // ----------------------------------------------------------------------------------------------------------------- who may appeal

    function test_anAppeal_isBonded_once_byAnAuditorThatHasAttested_inTime() public {
        (JobId job,) = lostOnPurpose();
        bytes32 hash = hashOf(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, CHALLENGER_BOND));
        vm.prank(auditor);
        game.appeal(job, hash);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongSpec.selector, bytes32(0), hash));
        vm.prank(auditor);
        game.appeal{value: CHALLENGER_BOND}(job, 0);
        address[3] memory others = [trainer, stranger, third];
        for (uint256 i = 0; i < 3; ++i) {
            vm.expectRevert(
                abi.encodeWithSelector(
                    IVerificationGame.WrongAuditStatus.selector, job, others[i], AuditStatus.NONE, AuditStatus.ATTESTED
                )
            );
            vm.prank(others[i]);
            game.appeal{value: CHALLENGER_BOND}(job, hash);
        }
        later(CHALLENGE_WINDOW);
        GameId id = appealBy(job, auditor);
        vm.assertEq(GameId.unwrap(audit(job, 0).appeal), GameId.unwrap(id), "shown");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyAppealed.selector, id));
        vm.prank(auditor);
        game.appeal{value: CHALLENGER_BOND}(job, hash);
        later(1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooLate.selector, time(), time() - 1));
        vm.prank(second);
        game.appeal{value: CHALLENGER_BOND}(job, hash);
    }

    function test_beforeAVerdict_thereIsNothingToAppealAgainst() public {
        JobId job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        bytes32 hash = hashOf(job);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.APPEALABLE)
        );
        vm.prank(auditor);
        game.appeal{value: CHALLENGER_BOND}(job, hash);
    }

    function test_anAppeal_isTheSameGameFromTheStart_withTheAppellantOnTheTrainersSide() public {
        (JobId job, GameId verdict) = lostOnPurpose();
        GameId id = appealBy(job, auditor);
        (GameView memory shown, GameView memory lost) = (game.getGame(id), game.getGame(verdict));
        vm.assertTrue(shown.isAppeal && !lost.isAppeal, "an appeal");
        vm.assertEq(shown.trainer, auditor, "the appellant");
        vm.assertEq(shown.challenger, stranger, "the winner");
        vm.assertEq(keccak256(abi.encode(shown.levels[0].roots)), keccak256(abi.encode(lost.levels[0].roots)), "the two roots");
        vm.assertEq(uint8(shown.phase), uint8(Phase.BISECTION), "from the start");
        vm.assertEq(keccak256(abi.encode(shown.clocks[0].remaining)), keccak256(abi.encode(uint256(ALLOWANCE))), "a whole clock");
        playToOpening(id, Level.CHECKPOINT, _honest, _wrong);
        // What is a party's own choice is the appellant's, and not the trainer's.
        GameView memory now_ = game.getGame(id);
        bytes memory call = abi.encodeCall(game.openLevel, (id, Side.TRAINER, leafOpening(now_, _honest), nextRoot(now_, _honest)));
        refused(trainer, call, abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, trainer, Side.TRAINER, auditor));
    }

    // -------------------------------------------------------------------------------------------------------------- an appeal is won

    function test_anHonestAuditor_keepsItsBond_whereTheTrainerLosesOnPurpose() public {
        vm.fee(10 gwei);
        vm.txGasPrice(GAS_PRICE);
        (JobId job,) = lostOnPurpose();
        GameId id = appealBy(job, auditor);
        playOut(id, _honest, _wrong);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        game.collect(job, auditor);
        game.collect(job, second);
        uint256 gas = game.getGame(id).spent[uint8(Side.TRAINER)];
        uint256 rest = CHALLENGER_BOND - gas;
        vm.assertGt(gas, 0, "metered");
        vm.assertEq(
            credit(auditor), ATTESTATION_BOND + FEE + CHALLENGER_BOND + gas + rest / 2, "both bonds, its share, and what it won"
        );
        vm.assertEq(credit(second), ATTESTATION_BOND, "who did not appeal is free as well");
        vm.assertEq(credit(stranger), 0, "the puppet has lost its bond");
        vm.assertEq(credit(trainer), 0, "and the trainer its own");
        vm.assertEq(credit(customer), uint256(REWARD) + TRAINER_BOND / 2 + rest / 4, "the customer");
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 + rest - rest / 2 - rest / 4, "burnt");
        assertConserved();
    }

    function test_aWinnerThatStopsPlaying_losesTheAppeal() public {
        (JobId job,) = lostOnPurpose();
        GameId id = appealBy(job, auditor);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), ATTESTATION_BOND + FEE + CHALLENGER_BOND + CHALLENGER_BOND / 2, "the appellant");
    }

    function test_oneAppealThatIsWon_freesAllOthers() public {
        (JobId job, GameId verdict) = lostOnPurpose();
        GameId[2] memory ids = [appealBy(job, auditor), appealBy(job, second)];
        playOut(ids[1], _honest, _wrong);
        assertJob(job, JobStatus.REJECTED);
        assertOver(ids[0], Outcome.VOID, Reason.CLAIM_REJECTED);
        game.releaseBond(ids[0]);
        vm.assertEq(credit(auditor), CHALLENGER_BOND, "the appeal's bond is the appellant's");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, ids[0]));
        game.releaseBond(ids[0]);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, verdict));
        game.releaseBond(verdict);
        game.collect(job, auditor);
        game.collect(job, second);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + ATTESTATION_BOND + FEE, "all of it");
        assertConserved();
    }

    function test_afterTheTrainerOpenedAFalseStep_theAppellantOpensTheRightOne() public {
        JobId job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        GameId verdict = challengeRun(job, stranger, _wrong);
        playToOpening(verdict, Level.STEP, _honest, _wrong);
        // The trainer says nothing to its puppet's opening.
        open(verdict, Side.CHALLENGER, _wrong);
        later(ALLOWANCE + 1);
        game.claimTimeout(verdict);
        assertJob(job, JobStatus.APPEALABLE);
        GameId id = appealBy(job, auditor);
        playOut(id, _honest, _wrong);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), ATTESTATION_BOND + FEE + CHALLENGER_BOND + CHALLENGER_BOND / 2, "the appellant");
        assertConserved();
    }

    // ------------------------------------------------------------------------------------------------------------- an appeal is lost

    function test_whoAppealsToDelay_paysTheWinner() public {
        (JobId job,) = provenWrong();
        later(CHALLENGE_WINDOW);
        GameId id = appealBy(job, second);
        later(1);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.LiveGames.selector, job, uint64(1)));
        game.finalize(job);
        play(id, _wrong, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(job, JobStatus.APPEALABLE);
        vm.assertEq(credit(auditor), CHALLENGER_BOND / 2, "half of the appeal's bond");
        vm.assertEq(credit(customer), CHALLENGER_BOND / 4, "a quarter");
        game.finalize(job);
        uint256 fine = TRAINER_BOND + 2 * ATTESTATION_BOND;
        vm.assertEq(credit(auditor), CHALLENGER_BOND / 2 + CHALLENGER_BOND + fine / 2, "and the verdict");
        assertConserved();
    }

    function test_appealsWaitForTheirTurn_andStartInOrder() public {
        Terms memory offered = marketTerms();
        offered.concurrentGames = 1;
        JobId job = postWith(_wrong, offered);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        GameId verdict = challengeRun(job, auditor, _honest);
        // A challenge that waits is void, and does not stand in the way of appeals.
        GameId waiting = challengeRun(job, stranger, _honest);
        play(verdict, _wrong, _honest);
        assertOver(waiting, Outcome.VOID, Reason.CLAIM_REJECTED);
        (GameId first, GameId next) = (appealBy(job, third), appealBy(job, second));
        assertPhase(first, Phase.BISECTION);
        assertPhase(next, Phase.QUEUED);
        vm.assertEq(game.getJob(job).queuedGames, 1, "one waits");
        play(first, _wrong, _honest);
        assertPhase(next, Phase.BISECTION);
        play(next, _wrong, _honest);
        game.releaseBond(waiting);
        uphold(job);
        assertConserved();
    }

    /// @dev An accomplice that appeals first and loses on purpose takes nothing from the others.
    function test_anAppealThatIsLostOnPurpose_leavesTheOthersTheirs() public {
        (JobId job,) = lostOnPurpose();
        GameId friends = appealBy(job, second);
        playToOpening(friends, Level.CHECKPOINT, _honest, _wrong);
        open(friends, Side.CHALLENGER, _wrong);
        later(ALLOWANCE);
        // One game ends by the appellant's silence, the other is played.
        GameId honest = appealBy(job, auditor);
        later(1);
        game.claimTimeout(friends);
        assertOver(friends, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
        assertJob(job, JobStatus.APPEALABLE);
        playOut(honest, _honest, _wrong);
        assertOver(honest, Outcome.TRAINER_WON, Reason.TIMEOUT);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), ATTESTATION_BOND + FEE + CHALLENGER_BOND + CHALLENGER_BOND / 2, "the honest one");
        game.collect(job, second);
        assertConserved();
    }

    // ---------------------------------------------------------------------------------------------------- nobody wins, or nobody knows

    function test_whereBothAreSilentInAnAppeal_bothLoseItsBonds_andTheOthersAreFree() public {
        (JobId job,) = lostOnPurpose();
        GameId id = appealBy(job, auditor);
        playToOpening(id, Level.CHECKPOINT, _honest, _wrong);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        assertJob(job, JobStatus.REJECTED);
        game.collect(job, second);
        game.collect(job, auditor);
        vm.assertEq(credit(second), ATTESTATION_BOND, "who had no part in it");
        vm.assertEq(credit(stranger), 0, "the winner of the first game");
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 + 2 * (CHALLENGER_BOND / 2), "burnt");
        assertConserved();
    }

    function test_aSilentReferee_freesTheAppellant_andLeavesTheVerdict() public {
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        GameId verdict = challengeRun(job, auditor, _honest);
        silence(verdict, _wrong, _honest);
        GameId id = appealBy(job, second);
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        ElementProof memory proof = elementProof(game.getGame(id), _honest, posted[id]);
        vm.prank(auditor);
        game.proveElement(id, proof);
        later(REFEREE_ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.UNDECIDED, Reason.TIMEOUT);
        assertJob(job, JobStatus.APPEALABLE);
        vm.assertEq(credit(second), CHALLENGER_BOND + ATTESTATION_BOND + FEE, "both of its bonds, and its share");
        uphold(job);
        uint256 fine = TRAINER_BOND + ATTESTATION_BOND;
        vm.assertEq(credit(auditor), CHALLENGER_BOND + fine / 2, "of the trainer and the other attestation");
        vm.assertEq(credit(customer), uint256(REWARD) + fine / 4, "the fee is paid already");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToCollect.selector, job, second));
        game.collect(job, second);
        assertConserved();
    }

    // --------------------------------------------------------------------------------------------------------------- blind audits

    function test_blindAttestations_canBeDefendedAsWell() public {
        blind = true;
        JobId job = postMarket(_honest);
        sealClaim(job, _honest);
        sealAudit(job, auditor, _honest);
        sealAudit(job, second, _wrong);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        openAudit(job, auditor, _honest);
        GameId verdict = openAudit(job, second, _wrong);
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        silence(verdict, _honest, _wrong);
        assertJob(job, JobStatus.APPEALABLE);
        GameId id = appealBy(job, auditor);
        playOut(id, _honest, _wrong);
        assertJob(job, JobStatus.REJECTED);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), 2 * CHALLENGER_BOND + FEE + CHALLENGER_BOND / 2, "its bonds, its share, and what it won");
        assertConserved();
    }
}
