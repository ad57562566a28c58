// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {GameId, IVerificationGame, JobId, Terms} from "../src/IVerificationGame.sol";
import {Node} from "../src/Merkle.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {Players} from "./support/Players.sol";
import {Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice A receiver that calls back into `withdraw`, as a thief would.
contract Thief {
    IVerificationGame private _game;
    bool public calledBack;
    bool public refuses;

    constructor(IVerificationGame game, bool refuses_) {
        (_game, refuses) = (game, refuses_);
    }

    function post(TrainingSpec calldata spec, Terms calldata terms) external payable returns (JobId) {
        return _game.postJob{value: msg.value}(spec, terms, "bafyjob");
    }

    function take() external returns (uint256) {
        return _game.withdraw();
    }

    receive() external payable {
        require(!refuses, "no money, please");
        try _game.withdraw() {
            calledBack = true;
        } catch {}
    }
}

contract MoneyTest is Players {
    function test_everyPayment_hasToBeExact() public {
        vm.prank(customer);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, REWARD - 1, REWARD));
        game.postJob{value: REWARD - 1}(spec(60, 5), terms(), "cid");
        JobId job = post(60, 5);
        Run memory honest = honestRun(60, 5);
        Tree memory tree = Runs.checkpointTree(honest);
        vm.prank(trainer);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, TRAINER_BOND + 1, TRAINER_BOND));
        game.commit{value: TRAINER_BOND + 1}(job, Node.wrap(Trees.root(tree)), honest.states[59], Trees.proof(tree, 11), "l", "m");
        commitRun(job, honest);
        vm.prank(auditor);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, CHALLENGER_BOND));
        game.challenge(job, Node.wrap(bytes32(uint256(1))));
    }

    function test_challengingOneself_neverPays() public {
        // The trainer is right and plays against itself: it gets half of its own bond back.
        Run memory honest = honestRun(20, 5);
        JobId job = post(20, 5);
        commitRun(job, honest);
        vm.prank(trainer);
        game.challenge{value: CHALLENGER_BOND}(job, Node.wrap(keccak256("nonsense")));
        later(ALLOWANCE + 1);
        game.claimTimeout(GameId.wrap(1));
        assertCredits(CHALLENGER_BOND - CHALLENGER_BOND / 2, CHALLENGER_BOND / 2, 0);
        // The trainer is wrong and beats itself first: it loses half of the claim's bond.
        job = post(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        commitRun(job, wrong);
        GameId id = challengeRun(job, trainer, honest);
        play(id, wrong, honest);
        vm.assertEq(game.creditOf(trainer), CHALLENGER_BOND / 2 + CHALLENGER_BOND + TRAINER_BOND / 2, "less than it put in");
    }

    function testFuzz_bondsOfAnySize_areDividedWithoutLosingAWei(uint128 trainerBond, uint128 challengerBond, bool trainerWins)
        public
    {
        Terms memory t = terms();
        t.trainerBond = uint128(bound(trainerBond, 1, 1 ether));
        t.challengerBond = uint128(bound(challengerBond, 1, 1 ether));
        TrainingSpec memory s = spec(1, 1);
        vm.prank(customer);
        JobId job = game.postJob{value: REWARD}(s, t, "cid");
        Run memory claimed = trainerWins ? honestRun(1, 1) : wrongRun(1, 1, 0, "wrong");
        Run memory challenged = trainerWins ? wrongRun(1, 1, 0, "wrong") : honestRun(1, 1);
        Node[2] memory roots =
            [Node.wrap(Trees.root(Runs.checkpointTree(claimed))), Node.wrap(Trees.root(Runs.checkpointTree(challenged)))];
        vm.prank(trainer);
        game.commit{value: t.trainerBond}(job, roots[0], claimed.states[0], new bytes32[](0), "l", "m");
        vm.prank(auditor);
        GameId id = game.challenge{value: t.challengerBond}(job, roots[1]);
        playOut(id, claimed, challenged);
        if (trainerWins) {
            later(CHALLENGE_WINDOW + 1);
            game.finalize(job);
        }
        uint128 lost = trainerWins ? t.challengerBond : t.trainerBond;
        uint256 winners = game.creditOf(trainerWins ? trainer : auditor);
        vm.assertLe(winners - (trainerWins ? REWARD + t.trainerBond : t.challengerBond), lost / 2, "at most half to the winner");
        uint256 credits = game.creditOf(customer) + game.creditOf(trainer) + game.creditOf(auditor);
        vm.assertEq(credits, address(game).balance, "every wei is somebody's");
    }

    function test_withdrawingNothing_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToWithdraw.selector, stranger));
        vm.prank(stranger);
        game.withdraw();
    }

    function test_aReceiverThatCallsBack_getsItsMoneyOnce() public {
        post(60, 5); // another customer's money, to be safe from the thief
        Thief thief = new Thief(game, false);
        vm.prank(customer);
        JobId job = thief.post{value: REWARD}(spec(60, 5), terms());
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        vm.assertEq(thief.take(), REWARD, "its own");
        vm.assertTrue(!thief.calledBack(), "no second time");
        vm.assertEq(address(thief).balance, REWARD, "no more than its own");
        vm.assertEq(address(game).balance, REWARD, "the other customer's money is there");
    }

    function test_aReceiverThatRefuses_keepsItsCredit_andHoldsUpNobody() public {
        Thief thief = new Thief(game, true);
        vm.prank(customer);
        JobId job = thief.post{value: REWARD}(spec(60, 5), terms());
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WithdrawalFailed.selector, address(thief), REWARD));
        thief.take();
        vm.assertEq(game.creditOf(address(thief)), REWARD, "still there");
    }

    function test_moneySentWithoutACall_isRefused() public {
        vm.prank(stranger);
        (bool ok,) = address(game).call{value: 1}("");
        vm.assertTrue(!ok, "no receive function");
    }
}
