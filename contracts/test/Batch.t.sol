// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisection, Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, Phase, Terms} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {LeafOpening, NextRoot} from "../src/game/Moves.sol";
import {Duration} from "../src/Time.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {Answer, GameView, JobView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Takes its credit in a batch, and tries to take it again from inside.
contract Greedy {
    IVerificationGame private _game;
    uint256 public paidInside;

    constructor(IVerificationGame game) {
        _game = game;
    }

    function post(TrainingSpec calldata spec, Terms calldata terms) external payable returns (JobId) {
        return _game.postJob{value: msg.value}(spec, terms, "bafyjob");
    }

    function take(uint256 times) public returns (Answer[] memory) {
        bytes[] memory calls = new bytes[](times);
        for (uint256 i = 0; i < times; ++i) {
            calls[i] = abi.encodeCall(_game.withdraw, ());
        }
        return _game.batch(calls);
    }

    receive() external payable {
        if (take(1)[0].success) ++paidInside;
    }
}

/// @notice Several calls in one transaction.
contract BatchTest is Players {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    function bisection(GameId id, Run memory run) private view returns (bytes memory) {
        return abi.encodeCall(game.bisect, (id, nextBisection(id, run)));
    }

    function test_aFailingCall_undoesOnlyItself() public {
        (, GameId first) = dispute(_wrong, _honest);
        (JobId job, GameId second) = dispute(_wrong, _honest);
        Descent memory nothing;
        bytes[] memory calls = new bytes[](5);
        calls[0] = bisection(first, _honest);
        calls[1] = abi.encodeCall(game.bisect, (second, nothing));
        calls[2] = bisection(second, _honest);
        calls[3] = abi.encodeCall(game.claimTimeout, (first));
        calls[4] = hex"01020304";
        vm.prank(stranger);
        Answer[] memory answers = game.batch(calls);
        bool[5] memory expected = [true, false, true, false, false];
        for (uint256 i = 0; i < 5; ++i) {
            vm.assertTrue(answers[i].success == expected[i], "each for itself");
        }
        vm.assertEq(bytes32(bytes4(answers[3].data)), bytes32(IVerificationGame.TooEarly.selector), "with the error of the call");
        assertPhase(first, Phase.OPENING);
        assertPhase(second, Phase.OPENING);
        vm.assertEq(game.getJob(job).liveGames, 1, "nothing else");
    }

    function test_aBatchTakesNoMoney_andWhatNeedsMoneyFails() public {
        JobId job = post(6, 3);
        bytes[] memory calls = new bytes[](3);
        bytes32 hash = hashOf(job);
        calls[0] = abi.encodeCall(game.postJob, (spec(6, 3), terms(), "cid"));
        calls[1] = abi.encodeCall(game.commit, (job, hash, asNextRoot(Runs.checkpointTree(_honest)), 0, "l", "m"));
        vm.prank(trainer);
        (bool ok,) = address(game).call{value: 1}(abi.encodeCall(game.batch, (calls)));
        vm.assertTrue(!ok, "not payable");
        vm.prank(trainer);
        Answer[] memory answers = game.batch(calls);
        failed(answers[0], abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, REWARD));
        failed(answers[1], abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, TRAINER_BOND));
        commitRun(job, _honest);
        calls[0] = abi.encodeCall(game.challenge, (job, hash, claimedIn(job), claimedIn(job)));
        vm.prank(auditor);
        answers = game.batch(calls);
        failed(answers[0], abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, CHALLENGER_BOND));
    }

    function failed(Answer memory answer, bytes memory why) private pure {
        vm.assertTrue(!answer.success, "fails");
        vm.assertEq(keccak256(answer.data), keccak256(why), "for this reason");
    }

    function test_aBatchHoldsNoBatch() public {
        JobId job = post(6, 3);
        commitRun(job, _honest);
        bytes[] memory inner = new bytes[](1);
        inner[0] = abi.encodeCall(game.attest, (job, hashOf(job), claimedIn(job), "", "", ANY_PLACE));
        bytes[] memory calls = new bytes[](2);
        calls[0] = abi.encodeCall(game.batch, (inner));
        calls[1] = abi.encodeWithSelector(game.batch.selector);
        vm.prank(auditor);
        Answer[] memory answers = game.batch(calls);
        failed(answers[0], abi.encodeWithSelector(IVerificationGame.NestedBatch.selector));
        failed(answers[1], abi.encodeWithSelector(IVerificationGame.NestedBatch.selector));
        vm.assertTrue(!game.hasAttested(job, auditor), "nothing of it happened");
    }

    /// @dev At the opening of a level by the second side, which moves first in the search below.
    function toSecondOpening() private returns (GameId id, bytes[] memory calls) {
        (, id) = dispute(_wrong, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        open(id, Side.TRAINER, _wrong);
        GameView memory shown = game.getGame(id);
        calls = new bytes[](2);
        calls[0] = abi.encodeCall(game.openLevel, (id, Side.CHALLENGER, leafOpening(shown, _honest), nextRoot(shown, _honest)));
        Tree memory steps = Runs.stepTree(_honest, shown.search.index);
        Bisection memory search;
        search.height = uint8(Trees.height(steps));
        calls[1] = abi.encodeCall(game.bisect, (id, nextBisectionIn(search, steps, shownRow[id])));
    }

    function test_theSideThatOpensLast_movesFirst_inTheSameTransaction() public {
        (GameId id, bytes[] memory calls) = toSecondOpening();
        uint256 before = Duration.unwrap(game.getGame(id).clocks[1].remaining);
        vm.prank(auditor);
        game.inTurn(calls);
        GameView memory shown = game.getGame(id);
        vm.assertTrue(levelOf(shown) == Level.STEP && shown.phase == Phase.OPENING, "a leaf is found already");
        vm.assertEq(shown.search.index, 1, "the fifth step");
        vm.assertEq(Duration.unwrap(shown.clocks[1].remaining), before, "no time has passed between");
        play(id, _wrong, _honest);
        assertPhase(id, Phase.OVER);
    }

    function test_callsInTurn_areAllMadeOrNone_withTheErrorOfTheOneThatFails() public {
        (GameId id, bytes[] memory calls) = toSecondOpening();
        bytes32 before = keccak256(abi.encode(game.getGame(id)));
        // A stranger may move for the challenger, but not open for it; and a second call that fails undoes the first.
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, stranger, Side.CHALLENGER, auditor));
        vm.prank(stranger);
        game.inTurn(calls);
        bytes memory move = calls[1];
        calls[1] = abi.encodeCall(game.claimTimeout, (id));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, time(), START + ALLOWANCE));
        vm.prank(auditor);
        game.inTurn(calls);
        calls[1] = abi.encodeCall(game.batch, (calls));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NestedBatch.selector));
        vm.prank(auditor);
        game.inTurn(calls);
        vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "nothing has happened");
        calls[1] = move;
        vm.prank(auditor);
        (bool ok,) = address(game).call{value: 1}(abi.encodeCall(game.inTurn, (calls)));
        vm.assertTrue(!ok, "not payable");
        // As one call of a batch.
        bytes[] memory all = new bytes[](1);
        all[0] = abi.encodeCall(game.inTurn, (calls));
        vm.prank(auditor);
        vm.assertTrue(game.batch(all)[0].success, "both");
        assertPhase(id, Phase.OPENING);
    }

    function test_theSenderIsKept() public {
        JobId job = post(6, 3);
        commitRun(job, _wrong);
        GameId id = challengeRun(job, auditor, _honest);
        playToOpening(id, Level.CHECKPOINT, _wrong, _honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, _wrong), nextRoot(shown, _wrong));
        bytes[] memory calls = new bytes[](2);
        calls[0] = abi.encodeCall(game.attest, (job, hashOf(job), claimedIn(job), "", "", ANY_PLACE));
        calls[1] = abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, next));
        vm.prank(stranger);
        Answer[] memory answers = game.batch(calls);
        vm.assertTrue(game.hasAttested(job, stranger), "attested by the sender of the batch");
        failed(answers[1], abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, stranger, Side.TRAINER, trainer));
        vm.prank(trainer);
        vm.assertTrue(game.batch(calls)[1].success, "the party itself may open");
    }

    function test_manyViewsInOneRequest_areWhatEachWouldSay() public {
        (JobId job, GameId id) = dispute(_wrong, _honest);
        bytes[] memory calls = new bytes[](4);
        calls[0] = abi.encodeCall(game.getJob, (job));
        calls[1] = abi.encodeCall(game.getGame, (id));
        calls[2] = abi.encodeCall(game.creditOf, (trainer));
        calls[3] = abi.encodeCall(game.getJob, (JobId.wrap(77)));
        Answer[] memory answers = game.batch(calls);
        JobView memory shownJob = abi.decode(answers[0].data, (JobView));
        GameView memory shown = abi.decode(answers[1].data, (GameView));
        vm.assertEq(keccak256(abi.encode(shownJob)), keccak256(abi.encode(game.getJob(job))), "job");
        vm.assertEq(keccak256(abi.encode(shown)), keccak256(abi.encode(game.getGame(id))), "game");
        vm.assertEq(abi.decode(answers[2].data, (uint256)), 0, "credit");
        vm.assertTrue(!answers[3].success, "no such job");
    }

    function test_aWithdrawalInABatch_paysOnce_howeverOftenItIsAskedFor() public {
        post(6, 3); // another customer's money, to be safe
        Greedy greedy = new Greedy(game);
        vm.prank(customer);
        JobId job = greedy.post{value: REWARD}(spec(6, 3), terms());
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        Answer[] memory answers = greedy.take(3);
        vm.assertTrue(answers[0].success && !answers[1].success && !answers[2].success, "once");
        vm.assertEq(greedy.paidInside(), 0, "nor from inside");
        vm.assertEq(address(greedy).balance, REWARD, "its own");
        vm.assertEq(address(game).balance, REWARD, "the other's is there");
    }

    /// @dev EIP-7825 allows a transaction 16,777,216 gas; clients fill 12,000,000.
    function test_ofTheForcedMovesOf100Games_fitOneTransaction() public {
        bytes[] memory calls = new bytes[](100);
        for (uint256 i = 0; i < 100; ++i) {
            (, GameId id) = dispute(_wrong, _honest);
            calls[i] = bisection(id, _honest);
        }
        uint256 gas = gasleft();
        Answer[] memory answers = game.batch(calls);
        vm.assertLe(gas - gasleft(), 12_000_000, "gas");
        for (uint256 i = 0; i < 100; ++i) {
            vm.assertTrue(answers[i].success, "a move of its own game");
        }
    }
}
