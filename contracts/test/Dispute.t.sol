// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisections, Children, Side} from "../src/Bisection.sol";
import {
    GameId,
    GameView,
    IVerificationGame,
    JobId,
    JobStatus,
    LeafOpening,
    LevelView,
    NextRoot,
    Outcome,
    Phase,
    Reason
} from "../src/IVerificationGame.sol";
import {Level} from "../src/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {GameTest, Run} from "./support/GameTest.sol";
import {Tree, Trees} from "./support/Trees.sol";

contract DisputeTest is GameTest {
    // ------------------------------------------------------------------------------------------------------------ whole games

    function test_wrongClaim_isRejectedAtItsFirstWrongStep() public {
        Run memory honest = honestRun(60, 5);
        Run memory wrong = wrongRun(60, 5, 33, "poisoned");
        (JobId job, GameId id) = dispute(wrong, honest);
        uint256 moves = play(id, wrong, honest);
        vm.assertEq(moves, 4 + 2 + 3 + 2, "depth moves a level and two openings each");
        GameView memory shown = game.getGame(id);
        vm.assertEq(shown.levels[0].index, 6, "the checkpoint after steps 31 to 35");
        vm.assertEq(shown.levels[1].index, 3, "the fourth step in it");
        vm.assertEq(shown.agreed, honest.states[32], "the referee starts from the last agreed state");
        adjudicate(id, honest.states[33]);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.VERDICT);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD + TRAINER_BOND / 2, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
    }

    function test_wrongChallenge_losesHalfItsBondToTheTrainer_andTheClaimBecomesFinal() public {
        Run memory honest = honestRun(60, 5);
        Run memory wrong = wrongRun(60, 5, 12, "mistaken auditor");
        (JobId job, GameId id) = dispute(honest, wrong);
        play(id, honest, wrong);
        adjudicate(id, honest.states[12]);
        assertOver(id, Outcome.TRAINER_WON, Reason.VERDICT);
        assertJob(job, JobStatus.CLAIMED);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        assertCredits(CHALLENGER_BOND / 2, REWARD + TRAINER_BOND + CHALLENGER_BOND / 2, 0);
    }

    function test_verdictThatEqualsNeitherSide_rejectsTheClaim_andBothBondsGoToTheCustomer() public {
        Run memory wrong = wrongRun(16, 4, 5, "wrong trainer");
        Run memory alsoWrong = wrongRun(16, 4, 5, "wrong auditor");
        (JobId job, GameId id) = dispute(wrong, alsoWrong);
        play(id, wrong, alsoWrong);
        adjudicate(id, honestRun(16, 4).states[5]);
        assertOver(id, Outcome.BOTH_LOST, Reason.VERDICT);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD + TRAINER_BOND + CHALLENGER_BOND, 0, 0);
    }

    function testFuzz_everyGame_findsTheFirstStepOfTheFirstWrongCheckpoint_andTheHonestSideWins(
        uint256 checkpointCount,
        uint256 interval,
        uint256 differences,
        bool trainerIsHonest
    ) public {
        interval = bound(interval, 1, 9);
        uint256 steps = interval * bound(checkpointCount, 1, 12);
        Run memory honest = honestRun(steps, uint64(interval));
        Run memory wrong = honestRun(steps, uint64(interval));
        // Any set of steps differs, the last one included: a claim with the right final state needs no dispute about that state.
        differences |= 1 << (steps - 1);
        for (uint256 s = 0; s < steps; ++s) {
            if ((differences >> s) & 1 == 1) wrong.states[s] = keccak256(abi.encode("wrong", s));
        }
        (Run memory claimed, Run memory challenged) = trainerIsHonest ? (honest, wrong) : (wrong, honest);
        (JobId job, GameId id) = dispute(claimed, challenged);

        uint256 expected = firstDisputableStep(honest, wrong);
        uint256 moves = play(id, claimed, challenged);
        uint256 bisections = log2(Trees.width(steps / interval)) + log2(Trees.width(interval));
        vm.assertEq(moves, bisections + 4, "no move more than the depths and the openings");
        assertDisputed(id, expected, claimed, challenged);

        adjudicate(id, honest.states[expected]);
        assertOver(id, trainerIsHonest ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON, Reason.VERDICT);
        assertJob(job, trainerIsHonest ? JobStatus.CLAIMED : JobStatus.REJECTED);
    }

    function assertDisputed(GameId id, uint256 expected, Run memory claimed, Run memory challenged) private view {
        GameView memory shown = game.getGame(id);
        vm.assertEq(shown.levels[0].index * claimed.interval + shown.levels[1].index, expected, "the disputed step");
        vm.assertEq(shown.agreed, expected == 0 ? INITIAL_STATE : claimed.states[expected - 1], "the agreed state before it");
        vm.assertEq(shown.levels[1].payloads[0], claimed.states[expected], "the trainer's claim");
        vm.assertEq(shown.levels[1].payloads[1], challenged.states[expected], "the challenger's claim");
    }

    /// @dev The oracle: checkpoint after checkpoint, then step after step.
    function firstDisputableStep(Run memory a, Run memory b) private pure returns (uint256) {
        uint256 end = a.interval - 1;
        while (a.states[end] == b.states[end]) end += a.interval;
        uint256 s = end + 1 - a.interval;
        while (a.states[s] == b.states[s]) ++s;
        return s;
    }

    function log2(uint256 width) private pure returns (uint256 height) {
        while (width > 1) (width, height) = (width / 2, height + 1);
    }

    function test_jobOfOneStep_isDisputedWithoutAnyBisection() public {
        Run memory honest = honestRun(1, 1);
        Run memory wrong = wrongRun(1, 1, 0, "wrong");
        (, GameId id) = dispute(wrong, honest);
        assertPhase(id, Phase.OPENING);
        vm.assertEq(play(id, wrong, honest), 4, "two openings at each level");
        vm.assertEq(game.getGame(id).agreed, INITIAL_STATE, "the spec's initial state");
        adjudicate(id, honest.states[0]);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.VERDICT);
    }

    function test_openingsInEitherOrder_leadToTheSameGame() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        open(id, Side.CHALLENGER, honest);
        open(id, Side.TRAINER, wrong);
        playToOpening(id, Level.STEP, wrong, honest);
        open(id, Side.CHALLENGER, honest);
        open(id, Side.TRAINER, wrong);
        assertPhase(id, Phase.REFEREE);
        vm.assertEq(game.getGame(id).levels[1].index, 3, "step 8");
    }

    function test_theWholeDisputeCanBeReadFromOneView_afterItIsOver() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        play(id, wrong, honest);
        adjudicate(id, honest.states[8]);
        GameView memory shown = game.getGame(id);
        vm.assertEq(Node.unwrap(shown.levels[0].roots[0]), Trees.root(checkpointTree(wrong)), "the trainer's checkpoints");
        vm.assertEq(Node.unwrap(shown.levels[0].roots[1]), Trees.root(checkpointTree(honest)), "the challenger's checkpoints");
        vm.assertEq(Node.unwrap(shown.levels[1].roots[0]), Trees.root(stepTree(wrong, 1)), "the trainer's steps");
        vm.assertEq(Node.unwrap(shown.levels[1].roots[1]), Trees.root(stepTree(honest, 1)), "the challenger's steps");
        vm.assertEq(shown.levels[0].payloads[0], wrong.states[9], "the trainer's checkpoint");
        vm.assertEq(shown.levels[0].agreedBefore, INITIAL_STATE, "agreed before the first checkpoint");
        vm.assertEq(shown.levels[1].agreedBefore, honest.states[4], "agreed before the first step of the interval");
        vm.assertEq(shown.levels[0].leafCount, 4, "checkpoints");
        vm.assertEq(shown.levels[1].leafCount, 5, "steps in an interval");
    }

    // --------------------------------------------------------------------------------------------------------------- padding

    /// @dev The honest checkpoints, with something else than PAD behind the last of them.
    function paddedWith(Run memory run, uint256 position, bytes32 leaf) private pure returns (Tree memory) {
        bytes32[] memory leaves = checkpointTree(run).rows[0];
        leaves[position] = leaf;
        return Trees.fromLeaves(leaves, uint64(checkpoints(run).length));
    }

    function playTrees(GameId id, Tree memory claimed, Tree memory challenged) private {
        while (game.getGame(id).phase == Phase.BISECTION) {
            LevelView memory at_ = current(game.getGame(id));
            (Children memory opened, Children memory next) = nextBisectionIn(at_, at_.turn == Side.TRAINER ? claimed : challenged);
            game.bisect(id, opened, next);
        }
    }

    function test_trainerWhoHidesALeafInThePadding_loses() public {
        Run memory honest = honestRun(5, 1);
        Tree memory forged = paddedWith(honest, 6, Trees.hashLeaf(bytes.concat(honest.states[0])));
        JobId job = post(5, 1);
        commitTree(job, forged, honest.states[4]);
        GameId id = challengeRun(job, auditor, honest);
        playTrees(id, forged, checkpointTree(honest));
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PADDING);
        assertCredits(REWARD + TRAINER_BOND / 2, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
    }

    function test_challengerWhoForgesThePadding_loses_atEveryPositionOfIt() public {
        Run memory honest = honestRun(5, 1);
        for (uint256 position = 5; position < 8; ++position) {
            Tree memory forged = paddedWith(honest, position, keccak256("anything"));
            JobId job = post(5, 1);
            commitRun(job, honest);
            GameId id = challengeRoot(job, auditor, Trees.root(forged));
            playTrees(id, checkpointTree(honest), forged);
            assertOver(id, Outcome.TRAINER_WON, Reason.PADDING);
            assertJob(job, JobStatus.CLAIMED);
        }
    }

    function test_whenBothForgeThePadding_bothLose() public {
        Run memory honest = honestRun(5, 1);
        Tree memory forged = paddedWith(honest, 6, keccak256("the trainer's"));
        Tree memory other = paddedWith(honest, 6, keccak256("the challenger's"));
        JobId job = post(5, 1);
        commitTree(job, forged, honest.states[4]);
        GameId id = challengeRoot(job, auditor, Trees.root(other));
        playTrees(id, forged, other);
        assertOver(id, Outcome.BOTH_LOST, Reason.PADDING);
        assertJob(job, JobStatus.REJECTED);
    }

    function test_stepTreeWithForgedPadding_cannotHideTheDifferenceBeforeIt() public {
        // An honest interval, but the trainer's wrong checkpoint as its last leaf and junk in the padding behind.
        Run memory honest = honestRun(10, 5);
        Run memory wrong = honestRun(10, 5);
        wrong.states[4] = keccak256("wrong checkpoint");
        wrong.states[9] = keccak256("wrong checkpoint too");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        bytes32[] memory leaves = stepTree(wrong, 0).rows[0];
        leaves[7] = keccak256("junk");
        Tree memory forged = Trees.fromLeaves(leaves, 5);
        LeafOpening memory leaf = leafOpening(game.getGame(id), wrong);
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, NextRoot(Node.wrap(Trees.root(forged)), Trees.proof(forged, 4)));
        open(id, Side.CHALLENGER, honest);
        playTrees(id, forged, stepTree(honest, 0));
        vm.assertEq(game.getGame(id).levels[1].index, 4, "the last leaf, never the padding");
        assertPhase(id, Phase.OPENING);
    }

    // ---------------------------------------------------------------------------------------------------------- illegal moves

    function test_anyoneMayCrankABisection_butNobodyElseMayOpenALevel() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, stranger, Side.TRAINER, trainer));
        vm.prank(stranger);
        game.openLevel(id, Side.TRAINER, leaf, next);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, auditor, Side.TRAINER, trainer));
        vm.prank(auditor);
        game.openLevel(id, Side.TRAINER, leaf, next);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, trainer, Side.CHALLENGER, auditor));
        vm.prank(trainer);
        game.openLevel(id, Side.CHALLENGER, leaf, next);
    }

    function test_bisectWithTheOtherSidesTree_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        GameView memory shown = game.getGame(id);
        vm.assertEq(uint8(current(shown).turn), uint8(Side.CHALLENGER), "the challenger moves first");
        (Children memory opened, Children memory next) = nextBisection(shown, wrong);
        vm.expectRevert(
            abi.encodeWithSelector(
                Bisections.NotTheChildren.selector,
                Trees.root(checkpointTree(honest)),
                Node.unwrap(opened.left),
                Node.unwrap(opened.right)
            )
        );
        game.bisect(id, opened, next);
    }

    function test_theSameMoveTwice_reverts() public {
        Run memory honest = honestRun(40, 5);
        Run memory wrong = wrongRun(40, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        (Children memory opened, Children memory next) = nextBisection(game.getGame(id), honest);
        game.bisect(id, opened, next);
        vm.expectRevert();
        game.bisect(id, opened, next);
    }

    function test_openingALevelWhoseLastLeafIsAnotherState_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        // The trainer claims a wrong checkpoint but would like to go on with the honest steps.
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        NextRoot memory next = nextRoot(shown, honest);
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the claim above binds the tree below");
        // Nor does it help to take back the claim above.
        leaf = leafOpening(shown, honest);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == IVerificationGame.WrongLeafPayload.selector, "the leaf above is what it is");
    }

    function tryOpen(GameId id, Side side, LeafOpening memory leaf, NextRoot memory next) private returns (bool, bytes memory) {
        vm.prank(side == Side.TRAINER ? trainer : auditor);
        return address(game).call(abi.encodeCall(game.openLevel, (id, side, leaf, next)));
    }

    function test_proofsOfAnotherLength_areRefusedInEveryOpening() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        next.lastLeafProof = new bytes32[](4);
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "last leaf: too long");
        next.lastLeafProof = new bytes32[](0);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "last leaf: too short");
        next = nextRoot(shown, wrong);
        leaf.agreedProof = new bytes32[](1);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "agreed leaf: too short");
    }

    function test_agreedStateOfAPartysOwnMaking_isRefused() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        leaf.agreed = keccak256("a better start");
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the state before has to be in the tree");
    }

    function test_beforeLeafZeroStandsTheSpecsState_andNothingElse() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 0, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        leaf.agreed = keccak256("another initial state");
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == IVerificationGame.WrongAgreedPayload.selector, "initial state");
        leaf = leafOpening(shown, wrong);
        leaf.agreedProof = new bytes32[](1);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "no proof belongs there");
    }

    function test_openingTwice_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        open(id, Side.TRAINER, wrong);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyOpened.selector, id, Side.TRAINER));
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
    }

    function test_revealAboveTheLastLevel_andOpeningAtTheLast_revert() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        LeafOpening memory leaf = leafOpening(game.getGame(id), wrong);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongLevel.selector, id, Level.CHECKPOINT));
        game.revealLeaf(id, Side.TRAINER, leaf);
        NextRoot memory next = nextRoot(game.getGame(id), wrong);
        playToOpening(id, Level.STEP, wrong, honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongLevel.selector, id, Level.STEP));
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
    }

    function test_movesOfAnotherPhase_revert() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        LeafOpening memory leaf;
        expectWrongPhase(id, Phase.BISECTION, Phase.OPENING);
        game.revealLeaf(id, Side.TRAINER, leaf);
        expectWrongPhase(id, Phase.BISECTION, Phase.REFEREE);
        adjudicateAs(referee, id);
        playToOpening(id, Level.STEP, wrong, honest);
        Children memory none;
        expectWrongPhase(id, Phase.OPENING, Phase.BISECTION);
        game.bisect(id, none, none);
        play(id, wrong, honest);
        adjudicate(id, honest.states[8]);
        expectWrongPhase(id, Phase.OVER, Phase.REFEREE);
        adjudicateAs(referee, id);
        expectWrongPhase(id, Phase.OVER, Phase.OVER);
        game.claimTimeout(id);
        expectWrongPhase(GameId.wrap(99), Phase.NONE, Phase.NONE);
        game.claimTimeout(GameId.wrap(99));
    }

    function expectWrongPhase(GameId id, Phase actual, Phase expected) private {
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, actual, expected));
    }

    function adjudicateAs(address who, GameId id) private {
        vm.prank(who);
        game.adjudicate(id, bytes32(0));
    }

    function test_onlyTheRefereeOfTheSpecAdjudicates() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        play(id, wrong, honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheReferee.selector, trainer, referee));
        adjudicateAs(trainer, id);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheReferee.selector, customer, referee));
        adjudicateAs(customer, id);
    }

    function test_leafThatIsNoHashOfAPayload_cannotBeOpened_soItsOwnerRunsOutOfTime() public {
        Run memory honest = honestRun(4, 1);
        bytes32[] memory leaves = checkpointTree(honest).rows[0];
        leaves[1] = keccak256("no leaf hash at all");
        Tree memory forged = Trees.fromLeaves(leaves, 4);
        JobId job = post(4, 1);
        commitTree(job, forged, honest.states[3]);
        GameId id = challengeRun(job, auditor, honest);
        playTrees(id, forged, checkpointTree(honest));
        assertPhase(id, Phase.OPENING);
        open(id, Side.CHALLENGER, honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function test_innerNodeWithoutChildren_cannotBeOpened_soItsOwnerRunsOutOfTime() public {
        Run memory honest = honestRun(8, 1);
        JobId job = post(8, 1);
        commitRun(job, honest);
        GameId id = challengeRoot(job, auditor, keccak256("a root without a tree"));
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
    }
}
