// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding} from "../src/adjudication/IAdjudicator.sol";
import {Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {Answer} from "../src/Views.sol";
import {Level} from "../src/game/Level.sol";
import {Node} from "../src/Merkle.sol";
import {ElementProof} from "../src/game/Moves.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";
import {Players} from "./support/Players.sol";
import {Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice What each rule of `docs/economics.md` costs and pays: one test for each claim made there.
contract EconomicsTest is Players {
    uint256 private constant BASE_FEE = 10 gwei;
    uint256 private constant GAS_PRICE = 12 gwei;

    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
        vm.fee(BASE_FEE);
        vm.txGasPrice(GAS_PRICE);
    }

    function wrongClaim() private returns (JobId job) {
        job = post(6, 3);
        commitRun(job, _wrong);
    }

    function spent(GameId id, Side side) private view returns (uint256) {
        return game.getGame(id).spent[uint8(side)];
    }

    function credit(address who) private view returns (uint256) {
        return game.creditOf(who);
    }

    /// @dev What is credited and burnt is what was paid in.
    function assertConserved() private view {
        uint256 credits = credit(customer) + credit(trainer) + credit(auditor) + credit(stranger);
        vm.assertEq(credits + game.burnt(), address(game).balance, "every wei");
    }

    // -------------------------------------------------------------------------------------------------- who gets a trainer's bond

    function test_aLoneAuditor_getsItsGasAndHalfOfTheRest() public {
        (JobId job, GameId id) = dispute(_wrong, _honest);
        play(id, _wrong, _honest);
        assertJob(job, JobStatus.REJECTED);
        uint256 gas = spent(id, Side.CHALLENGER);
        vm.assertGt(gas, 300_000 * GAS_PRICE, "its moves were metered");
        uint256 rest = TRAINER_BOND - gas;
        vm.assertEq(credit(auditor), CHALLENGER_BOND + gas + rest / 2, "the auditor");
        vm.assertEq(credit(customer), REWARD + rest / 4, "the customer");
        vm.assertEq(game.burnt(), rest - rest / 2 - rest / 4, "burnt");
        vm.assertEq(credit(trainer), 0, "the trainer has lost all of its bond");
        assertConserved();
    }

    function test_aTrainerThatBeatsItselfThroughALatePuppet_losesThreeQuartersOfItsBondOrMore() public {
        JobId job = wrongClaim();
        GameId honest = challengeRun(job, auditor, _honest);
        // The trainer sees that it loses, takes the right root and wins against itself, before the auditor's game is over.
        GameId puppets = challengeRun(job, trainer, _honest);
        play(puppets, _wrong, _honest);
        assertOver(puppets, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertOver(honest, Outcome.VOID, Reason.CLAIM_REJECTED);
        game.releaseBond(honest);
        uint256 gas = spent(puppets, Side.CHALLENGER);
        uint256 rest = TRAINER_BOND - gas;
        vm.assertEq(credit(auditor), CHALLENGER_BOND + rest / 2, "who challenged first with this root gets the half");
        vm.assertEq(credit(trainer), CHALLENGER_BOND + gas, "the puppet: its bond, and the gas that it has paid");
        vm.assertGt(TRAINER_BOND + CHALLENGER_BOND - credit(trainer), TRAINER_BOND * 3 / 4 - 1, "lost");
        assertConserved();
    }

    function test_aPuppetThatWasFirstAndLost_isNotTheFirstAnyMore() public {
        JobId job = wrongClaim();
        GameId friends = challengeRun(job, stranger, _honest);
        later(ALLOWANCE);
        GameId auditors = challengeRun(job, auditor, _honest);
        GameId puppets = challengeRun(job, trainer, _honest);
        later(1);
        game.claimTimeout(friends);
        assertOver(friends, Outcome.TRAINER_WON, Reason.TIMEOUT);
        uint256 before = credit(trainer);
        play(puppets, _wrong, _honest);
        game.releaseBond(auditors);
        vm.assertEq(credit(stranger), 0, "the friend has lost its bond");
        uint256 gas = spent(puppets, Side.CHALLENGER);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + (TRAINER_BOND - gas) / 2, "the auditor gets the half");
        vm.assertEq(credit(trainer) - before, CHALLENGER_BOND + gas, "the puppet does not");
        assertConserved();
    }

    function test_ofManyWithTheSameRoot_theEarliestThatHasNotLost_getsTheHalf() public {
        // 24 checkpoints: a first move hands the clock to the trainer.
        (Run memory honest, Run memory wrong) = (honestRun(24, 1), wrongRun(24, 1, 4, "wrong"));
        for (uint256 loser = 0; loser < 3; ++loser) {
            JobId job = post(24, 1);
            commitRun(job, wrong);
            GameId[4] memory ids;
            address[4] memory who = [stranger, auditor, customer, trainer];
            for (uint256 i = 0; i < 4; ++i) {
                ids[i] = challengeRun(job, who[i], honest);
            }
            later(ALLOWANCE);
            for (uint256 i = loser; i < 4; ++i) {
                step(ids[i], wrong, honest);
            }
            later(1);
            // Out of the list from its middle, its head, and not at all.
            for (uint256 i = loser; i > 0; --i) {
                game.claimTimeout(ids[i - 1]);
            }
            uint256 before = credit(who[loser]);
            uint256 others = credit(who[3]);
            play(ids[3], wrong, honest);
            assertOver(ids[3], Outcome.CHALLENGER_WON, Reason.PROOF);
            uint256 gas = spent(ids[3], Side.CHALLENGER);
            uint256 half = (TRAINER_BOND - gas) / 2;
            if (who[loser] == customer) half += REWARD + (TRAINER_BOND - gas) / 4;
            vm.assertEq(credit(who[loser]) - before, half, "the earliest that is left");
            vm.assertEq(credit(who[3]) - others, CHALLENGER_BOND + gas, "the winner");
        }
    }

    /// @dev What remains possible: a root of its own that is right where the trainer is wrong, and wrong behind it.
    function test_aPuppetWithARootOfItsOwn_keepsTheHalf_andStillLosesHalfOfTheBond() public {
        JobId job = wrongClaim();
        GameId honest = challengeRun(job, auditor, _honest);
        Run memory own = wrongRun(6, 3, 5, "behind");
        GameId puppets = challengeRun(job, trainer, own);
        play(puppets, _wrong, own);
        assertOver(puppets, Outcome.CHALLENGER_WON, Reason.PROOF);
        game.releaseBond(honest);
        vm.assertEq(credit(auditor), CHALLENGER_BOND, "the auditor: its bond");
        uint256 lost = TRAINER_BOND + CHALLENGER_BOND - credit(trainer);
        uint256 gas = spent(puppets, Side.CHALLENGER);
        vm.assertEq(lost, (TRAINER_BOND - gas) - (TRAINER_BOND - gas) / 2, "half of what is left after gas that it has paid");
    }

    /// @dev What remains possible: who sees a challenge on its way may stand before it, with the same root.
    function test_aCopierThatStandsFirst_keepsTheHalf() public {
        JobId job = wrongClaim();
        GameId copiers = challengeRun(job, trainer, _honest);
        GameId honest = challengeRun(job, auditor, _honest);
        play(honest, _wrong, _honest);
        game.releaseBond(copiers);
        uint256 gas = spent(honest, Side.CHALLENGER);
        vm.assertEq(credit(auditor), CHALLENGER_BOND + gas, "the auditor: its bond, and its gas");
        vm.assertEq(credit(trainer), CHALLENGER_BOND + (TRAINER_BOND - gas) / 2, "the copier: the half");
        assertConserved();
    }

    function test_trainerPuppetAndCustomerInOne_stillLoseAQuarter() public {
        JobId job = wrongClaim();
        GameId id = challengeRun(job, trainer, _honest);
        play(id, _wrong, _honest);
        uint256 gas = spent(id, Side.CHALLENGER);
        uint256 paidIn = uint256(REWARD) + TRAINER_BOND + CHALLENGER_BOND;
        uint256 lost = paidIn - credit(trainer) - credit(customer);
        uint256 rest = TRAINER_BOND - gas;
        vm.assertEq(lost, rest - rest / 2 - rest / 4, "what is burnt");
        // What the meter gave back has been paid for gas, so the loss is a quarter of the bond less what gas is a quarter of.
        vm.assertGt(lost, TRAINER_BOND * 3 / 16 - 1, "never less than three sixteenths");
        assertConserved();
    }

    // ---------------------------------------------------------------------------------------------------- who gets a challenger's bond

    function test_aSilentPuppet_paysTheTrainerHalfOfItsBond_forOneCallOfGas() public {
        JobId job = post(6, 3);
        commitRun(job, _honest);
        GameId id = challengeRoot(job, stranger, keccak256("junk"));
        later(ALLOWANCE + 1);
        uint256 gas = gasleft();
        vm.prank(trainer);
        game.claimTimeout(id);
        gas -= gasleft();
        vm.assertEq(spent(id, Side.TRAINER), 0, "the trainer has not moved");
        vm.assertEq(credit(trainer), CHALLENGER_BOND / 2, "half");
        vm.assertEq(credit(customer), CHALLENGER_BOND / 4, "a quarter");
        vm.assertEq(game.burnt(), CHALLENGER_BOND / 4, "a quarter");
        vm.assertLe(gas + 21_000, 200_000, "what that costs the trainer");
        later(CHALLENGE_WINDOW);
        game.finalize(job);
        assertConserved();
    }

    function test_aChallengerThatPlaysToTheEnd_paysTheTrainersGasFirst() public {
        (JobId job, GameId id) = dispute(_honest, _wrong);
        playOut(id, _honest, _wrong);
        assertJob(job, JobStatus.CLAIMED);
        uint256 gas = spent(id, Side.TRAINER);
        vm.assertGt(gas, 200_000 * GAS_PRICE, "its moves were metered");
        vm.assertEq(credit(trainer), gas + (CHALLENGER_BOND - gas) / 2, "gas, and half of the rest");
        vm.assertEq(credit(auditor), 0, "the challenger has lost all of its bond");
    }

    function test_aTrainerThatPlaysItsOwnPuppets_losesHalfOfEachBond() public {
        JobId job = post(6, 3);
        commitRun(job, _honest);
        for (uint256 i = 0; i < 3; ++i) {
            challengeRoot(job, trainer, keccak256(abi.encode(i)));
        }
        later(ALLOWANCE + 1);
        for (uint64 i = 1; i <= 3; ++i) {
            game.claimTimeout(GameId.wrap(i));
        }
        vm.assertEq(credit(trainer), 3 * (CHALLENGER_BOND / 2), "a delay by k puppets costs k half bonds");
    }

    // ----------------------------------------------------------------------------------------------------- nobody wins, or nobody knows

    function test_whereBothLose_halfIsBurnt_andHalfIsTheCustomers() public {
        (, GameId id) = dispute(_wrong, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
        vm.assertEq(credit(customer), REWARD + (TRAINER_BOND + CHALLENGER_BOND) / 2, "the customer");
        vm.assertEq(game.burnt(), (TRAINER_BOND + CHALLENGER_BOND) / 2, "burnt");
        assertConserved();
    }

    function test_aSilentReferee_costsNobodyABond_andTheTrainerItsReward() public {
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        (, GameId id) = dispute(_honest, _wrong);
        playTo(id, Level.CHUNK, Phase.PROVING, _honest, _wrong);
        ElementProof memory proof = elementProof(game.getGame(id), _wrong, posted[id]);
        vm.prank(auditor);
        game.proveElement(id, proof);
        later(REFEREE_ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.UNDECIDED, Reason.TIMEOUT);
        assertCredits(REWARD, TRAINER_BOND, CHALLENGER_BOND);
        vm.assertEq(game.burnt(), 0, "nothing is burnt");
    }

    // ------------------------------------------------------------------------------------------------------------- the gas that is paid

    /// @dev A whole dispute at a gas price, with bonds of this size: what the winner's meter and its credit come to.
    function refund(uint128 bond, uint256 gasPrice) private returns (uint256 metered, uint256 paid) {
        vm.txGasPrice(gasPrice);
        Terms memory offered = terms();
        (offered.reward, offered.trainerBond, offered.challengerBond) = (bond, bond, bond);
        vm.prank(customer);
        JobId job = game.postJob{value: bond}(spec(6, 3), offered, "cid");
        (bytes32 hash, bytes32 root) = (hashOf(job), Trees.root(Runs.checkpointTree(_honest)));
        Tree memory tree = Runs.checkpointTree(_wrong);
        Node claimed = Node.wrap(Trees.root(tree));
        vm.prank(trainer);
        game.commit{value: bond}(job, hash, asNextRoot(tree), _wrong.states[5], "l", "m");
        claimedRow[job] = asNextRoot(tree).row;
        vm.prank(auditor);
        GameId id = game.challenge{value: bond}(job, hash, claimed, Node.wrap(root));
        uint256 before = credit(auditor);
        play(id, _wrong, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        metered = spent(id, Side.CHALLENGER);
        // credit = bond + paid + (bond - paid) / 2
        paid = 2 * (credit(auditor) - before - bond) - bond;
    }

    function test_theRefund_isWhatTheMeterShows_upToAQuarterOfTheBond() public {
        (uint256 metered, uint256 paid) = refund(1 ether, GAS_PRICE);
        vm.assertTrue(paid == metered || paid == metered + 1, "as metered, to the rounding of a half");
        (metered, paid) = refund(0.001 ether, GAS_PRICE);
        vm.assertGt(metered, 0.001 ether / 4, "more gas than the bond can pay");
        vm.assertEq(paid, 0.001 ether / 4, "a quarter of the bond");
    }

    function test_anInflatedGasPrice_isPaidUpToTwiceTheBaseFee() public {
        (uint256 honest,) = refund(1 ether, 2 * BASE_FEE);
        (uint256 inflated, uint256 paid) = refund(1 ether, 1000 * BASE_FEE);
        // Storage of the contract that is touched for the first time makes a few thousand gas of difference.
        vm.assertLe(inflated, honest + honest / 50, "no more than at twice the base fee");
        vm.assertLe(paid, inflated + 1, "nor paid");
        (uint256 low,) = refund(1 ether, BASE_FEE);
        vm.assertLe(low, honest / 2 + honest / 50, "and no more than was paid");
    }

    function test_junkBehindACall_isNotPaidFor() public {
        GameId[2] memory ids;
        for (uint256 i = 0; i < 2; ++i) {
            (, ids[i]) = dispute(_wrong, _honest);
            bytes memory call = abi.encodeCall(game.bisect, (ids[i], nextBisection(ids[i], _honest)));
            if (i == 1) call = bytes.concat(call, new bytes(100_000));
            (bool ok,) = address(game).call(call);
            vm.assertTrue(ok, "moves");
        }
        (uint256 plain, uint256 padded) = (spent(ids[0], Side.CHALLENGER), spent(ids[1], Side.CHALLENGER));
        vm.assertLe(padded, plain + plain / 20, "the same move, the same gas");
    }

    function test_movesInABatch_areMeteredAsTheyAreAlone_andNeverAboveTheGasOfTheTransaction() public {
        bytes[] memory calls = new bytes[](20);
        GameId[] memory ids = new GameId[](20);
        for (uint256 i = 0; i < 20; ++i) {
            (, ids[i]) = dispute(_wrong, _honest);
            calls[i] = abi.encodeCall(game.bisect, (ids[i], nextBisection(ids[i], _honest)));
        }
        uint256 gas = gasleft();
        game.batch(calls);
        gas -= gasleft();
        uint256 sum = 0;
        for (uint256 i = 0; i < 20; ++i) {
            sum += spent(ids[i], Side.CHALLENGER);
        }
        vm.assertLe(sum, gas * GAS_PRICE, "no more than the transaction cost");
        vm.assertGt(sum, gas * GAS_PRICE / 2, "most of it");
    }

    /// @dev A move that is refused is undone with its meter, however much gas it has burnt.
    function test_movesThatFail_areNotPaidFor() public {
        (, GameId id) = dispute(_wrong, _honest);
        Descent memory nothing;
        bytes[] memory calls = new bytes[](50);
        for (uint256 i = 0; i < 50; ++i) {
            calls[i] = abi.encodeCall(game.bisect, (id, nothing));
        }
        Answer[] memory answers = game.batch(calls);
        vm.assertTrue(!answers[0].success && !answers[49].success, "refused");
        vm.assertEq(spent(id, Side.CHALLENGER), 0, "not metered");
    }

    /// @dev Of every wei that the meter gives to a winner, half would have been the winner's anyway: burning gas never pays, and a
    ///      producer of blocks, whose own tips cost nothing, gains nothing by them.
    function testFuzz_burningGasInOnesOwnMoves_neverPays(uint128 bond, uint128 burntGas, uint8 tip) public pure {
        bond = uint128(bound(bond, 0.001 ether, 1e9 ether));
        uint256 baseFee = 10 gwei;
        uint256 gas = bound(burntGas, 0, 1e9);
        // A producer pays the base fee only; everybody else pays the tip, too.
        uint256 price = baseFee + baseFee * (uint256(tip) % 3) / 2;
        uint256 counted = price < 2 * baseFee ? price : 2 * baseFee;
        uint256 paidForGas = gas * baseFee;
        uint256 without = bond / 2;
        uint256 most = bond / 4;
        uint256 metered = gas * counted < most ? gas * counted : most;
        uint256 with = metered + (bond - metered) / 2;
        vm.assertLe(with, without + paidForGas + 1, "no gain");
    }
}
