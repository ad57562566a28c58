// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../src/game/Bisection.sol";
import {GameId, JobId, JobStatus, Outcome, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Timestamp} from "../src/Time.sol";
import {Market} from "./support/Market.sol";
import {Run} from "./support/Runs.sol";

/// @notice What two, three and four in league save where audits are paid, and what remains possible: `docs/economics.md`.
contract CollusionTest is Market {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    function uphold(JobId job) private {
        vm.warp(Timestamp.unwrap(game.getJob(job).audits.appealDeadline) + 1);
        game.finalize(job);
    }

    /// @dev Trainer, puppet winner and lazy attesters in one: the fine grows with every attestation.
    function test_aTrainerWithPuppetAttestations_losesTheirQuarterToo() public {
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        GameId id = challengeRun(job, stranger, wrongRun(6, 3, 5, "behind"));
        play(id, _wrong, wrongRun(6, 3, 5, "behind"));
        uphold(job);
        uint256 fine = TRAINER_BOND + 2 * ATTESTATION_BOND;
        uint256 paidIn = uint256(TRAINER_BOND) + 2 * ATTESTATION_BOND + CHALLENGER_BOND;
        vm.assertEq(paidIn - credit(stranger), fine / 2, "without the customer: half of all bonds");
        vm.assertEq(game.burnt(), fine / 4, "with it: a quarter");
        assertConserved();
    }

    /// @dev They may also end it by an appeal that the winner lets the puppet win. It costs more than to let the verdict stand.
    function test_overturningOnesOwnVerdict_costsMoreThanTheQuarter() public {
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        GameId verdict = challengeRun(job, stranger, _honest);
        play(verdict, _wrong, _honest);
        GameId id = appealBy(job, second);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        game.collect(job, second);
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 + CHALLENGER_BOND / 4, "burnt: half of the trainer's bond and more");
        vm.assertGt(game.burnt(), (TRAINER_BOND + ATTESTATION_BOND) / 4, "than what is burnt if it stands");
        assertConserved();
    }

    /// @dev What remains possible: with many attestations the appeal is the cheaper end, so the fine for all four has a bound.
    function test_withManyAttestations_theFineOfFourInLeague_isHalfOfTheTrainersBondAndAQuarterOfAPuppets() public {
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        address[6] memory friends = [auditor, second, third, referee, trainer, customer];
        for (uint256 i = 0; i < 6; ++i) {
            attestBy(job, friends[i]);
        }
        play(challengeRun(job, stranger, _honest), _wrong, _honest);
        GameId id = appealBy(job, second);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 + CHALLENGER_BOND / 4, "the bound");
        vm.assertGt((TRAINER_BOND + 6 * ATTESTATION_BOND) / 4 + 1, game.burnt(), "a quarter of all bonds would be no less");
    }

    /// @dev What remains possible: the contract knows accounts, and not who is behind them.
    function test_aTrainerThatSuppliesAllAttestations_isPaid_feeIncluded() public {
        needed = 2;
        JobId job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, trainer);
        attestBy(job, stranger);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        game.collect(job, trainer);
        vm.assertEq(credit(trainer), REWARD + TRAINER_BOND + ATTESTATION_BOND + FEE / 2, "as anybody");
    }

    /// @dev A customer seals audits that it never opens. Others still attest, so the claim does not lapse for them.
    function test_aCustomerThatSealsAndDoesNotOpen_losesTheBonds_andShutsNobodyOut() public {
        blind = true;
        JobId job = postMarket(_honest);
        sealClaim(job, _honest);
        address[3] memory friends = [customer, second, third];
        for (uint256 i = 0; i < 3; ++i) {
            sealAudit(job, friends[i], _honest);
        }
        sealAudit(job, auditor, _honest);
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
        openAudit(job, auditor, _honest);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        for (uint256 i = 0; i < 3; ++i) {
            game.collect(job, friends[i]);
        }
        game.collect(job, auditor);
        vm.assertEq(credit(trainer), REWARD + TRAINER_BOND, "the trainer is paid");
        vm.assertEq(credit(auditor), CHALLENGER_BOND + FEE, "the auditor has the whole fee");
        vm.assertEq(game.burnt(), 3 * (CHALLENGER_BOND / 2), "and the seals are lost");
    }

    // ------------------------------------------------------------------------------------------- an honest auditor's share of the fee

    uint256 private constant ENDS = 5;

    function wealth(address[] memory of_) private view returns (uint256 sum) {
        for (uint256 i = 0; i < of_.length; ++i) {
            sum += of_[i].balance + credit(of_[i]);
        }
    }

    /// @dev Plays a job in which `auditor` holds the first of three places, and everybody else is in league, to one of its ends.
    function playToAnEnd(uint256 end, address[] memory league) private returns (JobId job) {
        job = postMarket(_honest);
        sealClaim(job, _honest);
        sealAudit(job, auditor, _honest);
        if (end == 0) {
            for (uint256 i = 3; i < 15; ++i) {
                sealAudit(job, league[i], _honest);
            }
        } else if (end > 2) {
            sealAudit(job, stranger, _wrong);
        }
        later(AUDIT_WINDOW + 1);
        if (end == 2) {
            // The trainer never opens.
            later(OPENING_WINDOW + 1);
            game.reclaim(job);
            return job;
        }
        openClaim(job, _honest);
        openAudit(job, auditor, _honest);
        if (end < 2) {
            for (uint256 i = 3; end == 0 && i < 15; ++i) {
                openAudit(job, league[i], _honest);
            }
            // With nobody else it lapses.
            later(CHALLENGE_WINDOW + 1);
            game.finalize(job);
            return job;
        }
        GameId lie = openAudit(job, stranger, _wrong);
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        playToOpening(lie, Level.CHECKPOINT, _honest, _wrong);
        // Both are silent, or the trainer alone, so that the auditor has to appeal.
        if (end == 4) open(lie, Side.CHALLENGER, _wrong);
        later(ALLOWANCE + 1);
        game.claimTimeout(lie);
        if (end == 3) return job;
        GameId id = appealBy(job, auditor);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
    }

    /// @dev However those in league end the job: the auditor has its share, and they have paid it, or more.
    function test_noEndOfAJob_takesAShareBack() public {
        (blind, needed) = (true, 3);
        JobStatus[5] memory expected =
            [JobStatus.FINAL, JobStatus.LAPSED, JobStatus.EXPIRED, JobStatus.REJECTED, JobStatus.REJECTED];
        address[] memory league = new address[](15);
        (league[0], league[1], league[2], league[3], league[4]) = (customer, trainer, stranger, second, third);
        for (uint256 i = 5; i < 15; ++i) {
            league[i] = account(vm.toString(i));
        }
        for (uint256 end = 0; end < ENDS; ++end) {
            (uint256 had, uint256 mine) = (wealth(league), auditor.balance + credit(auditor));
            JobId job = playToAnEnd(end, league);
            assertJob(job, expected[end]);
            game.collect(job, auditor);
            vm.assertLe(mine + FEE / 3, auditor.balance + credit(auditor), "the auditor has its share");
            for (uint256 i = 0; i < league.length; ++i) {
                (bool ok,) = address(game).call(abi.encodeCall(game.collect, (job, league[i])));
                vm.assertTrue(ok == (end == 0 && i > 2), "collected");
            }
            vm.assertLe(wealth(league) + FEE / 3, had, "those in league have paid it");
        }
    }
}
