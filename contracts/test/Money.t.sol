// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame} from "../src/IVerificationGame.sol";
import {JobId, Terms} from "../src/Types.sol";
import {Node} from "../src/Merkle.sol";
import {NextRoot} from "../src/game/Moves.sol";
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
        NextRoot memory root = asNextRoot(Runs.checkpointTree(honest));
        bytes32 hash = hashOf(job);
        vm.prank(trainer);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, TRAINER_BOND + 1, TRAINER_BOND));
        game.commit{value: TRAINER_BOND + 1}(job, hash, root, honest.states[59], "l", "m");
        commitRun(job, honest);
        Node claimed = claimedIn(job);
        vm.prank(auditor);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, CHALLENGER_BOND));
        game.challenge(job, hash, claimed, Node.wrap(bytes32(uint256(1))));
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
