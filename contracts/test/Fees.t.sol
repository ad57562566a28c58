// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame} from "../src/IVerificationGame.sol";
import {AuditStatus, GameId, JobId, JobStatus, Outcome, Phase, Reason} from "../src/Types.sol";
import {Finding} from "../src/adjudication/IAdjudicator.sol";
import {Level} from "../src/game/Level.sol";
import {Node} from "../src/Merkle.sol";
import {ElementProof} from "../src/game/Moves.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";
import {Market} from "./support/Market.sol";
import {Run} from "./support/Runs.sol";

/// @notice Places of audits, and who has a share of the fee.
contract FeesTest is Market {
    bytes32 private constant JUNK = keccak256("a seal of nothing");

    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
        needed = 3;
    }

    function sealedJob() private returns (JobId job) {
        blind = true;
        job = postMarket(_honest);
        sealClaim(job, _honest);
    }

    function openTheClaim(JobId job) private {
        later(AUDIT_WINDOW + 1);
        openClaim(job, _honest);
    }

    function end(JobId job) private {
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
    }

    function puppet(uint256 i) private returns (address) {
        return account(vm.toString(i));
    }

    function seal(JobId job, address who, bytes32 sealed_, uint64 lastPlace) private {
        bytes32 hash = hashOf(job);
        vm.prank(who);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, sealed_, lastPlace);
    }

    function feeOf(JobId job, address who) private returns (uint256 fee) {
        fee = credit(who);
        game.collect(job, who);
        fee = credit(who) - fee - bondOf(job);
    }

    // ------------------------------------------------------------------------------------------------------------ who is first

    function test_ninetySevenAuditsAtTheLastSecond_takeNothingFromThreeThatCameFirst() public {
        JobId job = sealedJob();
        address[3] memory honest = [auditor, second, third];
        for (uint256 i = 0; i < 3; ++i) {
            sealAudit(job, honest[i], _honest);
        }
        later(AUDIT_WINDOW);
        for (uint256 i = 0; i < 97; ++i) {
            sealAudit(job, puppet(i), _honest);
        }
        later(1);
        openClaim(job, _honest);
        for (uint256 i = 97; i > 0; --i) {
            openAudit(job, puppet(i - 1), _honest);
        }
        for (uint256 i = 3; i > 0; --i) {
            openAudit(job, honest[i - 1], _honest);
        }
        end(job);
        vm.assertEq(credit(customer), FEE - 3 * (FEE / 3), "the dust");
        for (uint256 i = 0; i < 97; ++i) {
            vm.assertEq(feeOf(job, puppet(i)), 0, "who comes later has its bond, and no share");
        }
        for (uint256 i = 0; i < 3; ++i) {
            vm.assertEq(feeOf(job, honest[i]), FEE / 3, "a whole share");
        }
    }

    function test_lateAttestations_takeNothingFromThoseThatCameFirst() public {
        JobId job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        for (uint256 i = 0; i < 97; ++i) {
            attestBy(job, puppet(i));
        }
        end(job);
        vm.assertEq(feeOf(job, auditor), FEE / 3, "the first");
        vm.assertEq(feeOf(job, puppet(1)), FEE / 3, "the third");
        vm.assertEq(feeOf(job, puppet(2)), 0, "the fourth");
    }

    /// @dev A customer takes the first places with junk, to frighten auditors away: whoever audits all the same is paid.
    function test_placesThatAreNotOpened_moveThoseBehindThemUp() public {
        JobId job = sealedJob();
        for (uint256 i = 0; i < 3; ++i) {
            seal(job, puppet(i), JUNK, ANY_PLACE);
        }
        sealAudit(job, auditor, _honest);
        sealAudit(job, second, _wrong);
        sealAudit(job, third, _honest);
        sealAudit(job, trainer, _honest);
        sealAudit(job, stranger, _honest);
        openTheClaim(job);
        openAudit(job, stranger, _honest);
        openAudit(job, trainer, _honest);
        GameId lie = openAudit(job, second, _wrong);
        openAudit(job, third, _honest);
        openAudit(job, auditor, _honest);
        later(OPENING_WINDOW + 1);
        game.startGame(job);
        timeOut(lie);
        end(job);
        uint256 burnt = game.burnt();
        for (uint256 i = 0; i < 3; ++i) {
            game.collect(job, puppet(i));
        }
        vm.assertEq(game.burnt() - burnt, 3 * (CHALLENGER_BOND / 2), "the junk has lost its bonds");
        vm.assertEq(feeOf(job, auditor), FEE / 3, "the first that attests");
        vm.assertEq(feeOf(job, third), FEE / 3, "the second: what challenges has no share");
        vm.assertEq(feeOf(job, trainer), FEE / 3, "the third");
        vm.assertEq(feeOf(job, stranger), 0, "the fourth");
        assertConserved();
    }

    // --------------------------------------------------------------------------------------------------- a place before the work

    function test_aPlaceIsKept_whenTheSealIsReplaced() public {
        JobId job = sealedJob();
        seal(job, auditor, JUNK, 0);
        for (uint256 i = 0; i < 5; ++i) {
            sealAudit(job, puppet(i), _honest);
        }
        later(AUDIT_WINDOW);
        bytes32 real = auditSeal(job, auditor, rootOf(_honest));
        uint256 held = address(game).balance;
        for (uint256 i = 0; i < 2; ++i) {
            vm.expectEmit(true, true, true, true, address(game));
            emit IVerificationGame.AuditSealed(job, auditor, real);
            vm.prank(auditor);
            game.replaceSeal(job, real);
        }
        vm.assertEq(audit(job, 0).seal, real, "shown");
        vm.assertEq(game.getJob(job).audits.count, 6, "no new place");
        vm.assertEq(address(game).balance, held, "no second bond");
        later(1);
        refused(auditor, abi.encodeCall(game.replaceSeal, (job, JUNK)), tooLate(time(), time() - 1));
        openClaim(job, _honest);
        bytes memory why =
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.SEALED);
        refused(auditor, abi.encodeCall(game.replaceSeal, (job, JUNK)), why);
        for (uint256 i = 0; i < 5; ++i) {
            openAudit(job, puppet(i), _honest);
        }
        openAudit(job, auditor, _honest);
        end(job);
        vm.assertEq(feeOf(job, auditor), FEE / 3, "the first place, though it was filled last");
    }

    function test_onlyItsOwnSeal_isReplaced() public {
        JobId job = sealedJob();
        sealAudit(job, auditor, _honest);
        bytes memory why =
            abi.encodeWithSelector(IVerificationGame.WrongAuditStatus.selector, job, second, AuditStatus.NONE, AuditStatus.SEALED);
        refused(second, abi.encodeCall(game.replaceSeal, (job, JUNK)), why);
        vm.deal(auditor, 1);
        vm.prank(auditor);
        (bool ok,) = address(game).call{value: 1}(abi.encodeCall(game.replaceSeal, (job, JUNK)));
        vm.assertTrue(!ok, "it takes no money");
        vm.assertEq(audit(job, 0).seal, auditSeal(job, auditor, rootOf(_honest)), "as it was");
    }

    function test_aPlaceThatIsNeverFilled_losesItsBond() public {
        needed = 1;
        JobId job = sealedJob();
        seal(job, auditor, JUNK, 0);
        sealAudit(job, second, _honest);
        openTheClaim(job);
        openAudit(job, second, _honest);
        refused(
            auditor,
            openingOfAudit(job, _honest, salt(auditor)),
            abi.encodeWithSelector(IVerificationGame.WrongSeal.selector, auditSeal(job, auditor, rootOf(_honest)), JUNK)
        );
        end(job);
        game.collect(job, auditor);
        vm.assertEq(credit(auditor), 0, "lost");
        vm.assertEq(feeOf(job, second), FEE, "who worked behind it is paid");
        assertConserved();
    }

    /// @dev Whoever sees an audit before a block has it could get in front of it.
    function test_anAuditThatWouldComeTooLate_paysNoBond() public {
        JobId job = sealedJob();
        seal(job, auditor, JUNK, 0);
        bytes32 hash = hashOf(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.PlaceTaken.selector, job, 1, 0));
        vm.prank(second);
        game.sealAudit{value: CHALLENGER_BOND}(job, hash, JUNK, 0);
        seal(job, second, JUNK, 1);
        blind = false;
        job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        (bytes32 its, uint128 bond, Node root) = (hashOf(job), bondOf(job), claimedIn(job));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.PlaceTaken.selector, job, 1, 0));
        vm.prank(second);
        game.attest{value: bond}(job, its, root, "l", "m", 0);
    }

    // ------------------------------------------------------------------------------------------------------------ every end pays

    function test_aClaimThatLapses_paysThoseThatAttested() public {
        JobId job = postMarket(_honest);
        commitRun(job, _honest);
        attestBy(job, auditor);
        attestBy(job, second);
        end(job);
        assertJob(job, JobStatus.LAPSED);
        vm.assertEq(feeOf(job, auditor) + feeOf(job, second), 2 * (FEE / 3), "two shares");
        vm.assertEq(credit(customer), uint256(REWARD) + FEE - 2 * (FEE / 3), "the rest is the customer's");
        assertConserved();
    }

    function test_aClaimThatIsNeverOpened_paysTheFirstPlaces_outOfItsTrainersBond() public {
        JobId job = sealedJob();
        sealAudit(job, auditor, _honest);
        seal(job, second, JUNK, ANY_PLACE);
        sealAudit(job, third, _honest);
        sealAudit(job, stranger, _honest);
        later(AUDIT_WINDOW + OPENING_WINDOW + 1);
        game.reclaim(job);
        vm.assertEq(credit(customer), uint256(REWARD) + FEE + TRAINER_BOND / 2, "as if nobody had sealed");
        vm.assertEq(game.burnt(), TRAINER_BOND / 2 - 3 * (FEE / 3), "three shares less");
        vm.assertEq(feeOf(job, auditor) + feeOf(job, second) + feeOf(job, third), 3 * (FEE / 3), "one each");
        vm.assertEq(feeOf(job, stranger), 0, "the fourth");
        assertConserved();
    }

    function test_ofAVerdictThatBothSidesLost_theAttestationsArePaid() public {
        needed = 2;
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        attestBy(job, stranger);
        GameId id = challengeRun(job, auditor, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        vm.assertEq(feeOf(job, second) + feeOf(job, third), 2 * (FEE / 2), "both");
        vm.assertEq(feeOf(job, stranger), 0, "the third");
        uint256 bonds = (TRAINER_BOND + CHALLENGER_BOND) / 2;
        vm.assertEq(credit(customer), uint256(REWARD) + FEE - 2 * (FEE / 2) + bonds, "the customer has more than the fee");
        vm.assertGt(bonds, FEE, "in bonds");
        assertConserved();
    }

    /// @dev A silent referee frees one appellant, with its share; another wins its appeal; a third attestation has none.
    function test_whoASilentRefereeHasFreed_isPaidAtOnce_andOnce() public {
        needed = 2;
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        JobId job = postMarket(_wrong);
        commitRun(job, _wrong);
        attestBy(job, second);
        attestBy(job, third);
        attestBy(job, stranger);
        GameId verdict = challengeRun(job, auditor, _honest);
        silence(verdict, _wrong, _honest);
        GameId id = appealBy(job, second);
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        ElementProof memory proof = elementProof(game.getGame(id), _honest, posted[id]);
        vm.prank(auditor);
        game.proveElement(id, proof);
        later(REFEREE_ALLOWANCE + 1);
        game.claimTimeout(id);
        vm.assertEq(credit(second), CHALLENGER_BOND + ATTESTATION_BOND + FEE / 2, "its bonds and its share");
        GameId won = appealBy(job, third);
        later(ALLOWANCE + 1);
        game.claimTimeout(won);
        assertOver(won, Outcome.TRAINER_WON, Reason.TIMEOUT);
        vm.assertEq(feeOf(job, third), FEE / 2, "the second");
        vm.assertEq(feeOf(job, stranger), 0, "nobody moves up");
        assertConserved();
    }

    // --------------------------------------------------------------------------------------------------------------- any order

    /// @dev Whatever was opened, in whatever order: the first that attest have a share each, and no wei is lost.
    function testFuzz_sharesGoToTheFirstThatAttest(uint256 pattern, uint8 need, bool backwards) public {
        needed = uint32(1 + need % 5);
        JobId job = sealedJob();
        for (uint256 i = 0; i < 12; ++i) {
            sealAudit(job, puppet(i), _honest);
        }
        openTheClaim(job);
        for (uint256 i = 12; i > 0; --i) {
            if ((pattern >> (i - 1)) & 1 == 1) openAudit(job, puppet(i - 1), _honest);
        }
        end(job);
        assertJob(job, game.getJob(job).attestations >= needed ? JobStatus.FINAL : JobStatus.LAPSED);
        uint256 paid = 0;
        for (uint256 i = 0; i < 12; ++i) {
            game.collect(job, puppet(backwards ? 11 - i : i));
        }
        uint256 rank = 0;
        for (uint256 i = 0; i < 12; ++i) {
            bool opened = (pattern >> i) & 1 == 1;
            uint256 share = opened && rank < needed ? FEE / needed : 0;
            if (opened) ++rank;
            vm.assertEq(credit(puppet(i)), opened ? CHALLENGER_BOND + share : 0, "bond and share");
            paid += credit(puppet(i));
        }
        vm.assertEq(credit(customer) + credit(trainer) + game.burnt() + paid, address(game).balance, "every wei");
        vm.assertEq(game.burnt(), (12 - rank) * (CHALLENGER_BOND / 2), "half of what was not opened");
    }

    /// @dev More than one word of places: the gas of whoever is sure of a share is the same, and the order is kept across words.
    function test_whatComesBehind_makesNoEarlyPlaceDearer() public {
        uint256[2] memory gas;
        uint256[2] memory count = [uint256(3), 300];
        for (uint256 k = 0; k < 2; ++k) {
            JobId job = sealedJob();
            for (uint256 i = 0; i < count[k]; ++i) {
                sealAudit(job, puppet(i), _honest);
            }
            openTheClaim(job);
            for (uint256 i = count[k] - 1; i > 0; --i) {
                // Of the many the first two and the last two are opened, and that between them is junk.
                if (i < 2 || i > count[k] - 3) openAudit(job, puppet(i), _honest);
            }
            openAudit(job, puppet(0), _honest);
            end(job);
            uint256 before = gasleft();
            game.collect(job, puppet(1));
            gas[k] = before - gasleft();
            vm.assertGt(credit(puppet(1)), (k + 1) * CHALLENGER_BOND, "the second has a share");
            uint256 third_ = k == 0 ? 2 : 298;
            vm.assertEq(feeOf(job, puppet(third_)), FEE / 3, "the third that attests");
            if (k == 1) vm.assertEq(feeOf(job, puppet(299)), 0, "the fourth");
        }
        vm.assertLe(gas[1], gas[0] + 100, "the same gas");
    }
}
