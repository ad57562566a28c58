// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../src/game/Bisection.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Node} from "../src/Merkle.sol";
import {LeafOpening, NextRoot} from "../src/game/Moves.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Whole disputes, and trees that hide something behind their last leaf.
contract DisputeTest is Players {
    // ------------------------------------------------------------------------------------------------------------ whole games

    function test_wrongClaim_isRejectedAtItsFirstWrongNumber() public {
        Run memory honest = honestRun(60, 5);
        Run memory wrong = wrongRun(60, 5, 33, "poisoned");
        (JobId job, GameId id) = dispute(wrong, honest);
        uint256 moves = play(id, wrong, honest);
        vm.assertEq(moves, (1 + 2) + (1 + 2) + (1 + 2) + (1 + 1 + 1), "a move for four levels, two openings, a chunk, a proof");
        GameView memory shown = game.getGame(id);
        vm.assertEq(shown.levels[0].index, 6, "the checkpoint after steps 31 to 35");
        vm.assertEq(shown.levels[1].index, 3, "the fourth step in it");
        vm.assertEq(shown.levels[2].index, 2, "the operator that adds");
        vm.assertEq(shown.levels[3].index, 0, "its first chunk");
        vm.assertEq(shown.agreed, honest.states[32], "from the last agreed state");
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(job, JobStatus.REJECTED);
        assertCredits(REWARD + TRAINER_BOND / 4, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
    }

    function test_wrongChallenge_losesHalfItsBondToTheTrainer_andTheClaimBecomesFinal() public {
        Run memory honest = honestRun(60, 5);
        Run memory wrong = wrongRun(60, 5, 12, "mistaken auditor");
        (JobId job, GameId id) = dispute(honest, wrong);
        play(id, honest, wrong);
        assertPhase(id, Phase.PROVING);
        timeOut(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        assertJob(job, JobStatus.CLAIMED);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        assertCredits(CHALLENGER_BOND / 4, REWARD + TRAINER_BOND + CHALLENGER_BOND / 2, 0);
    }

    function test_wherePlayersAreBothWrong_theTrainerLoses() public {
        Run memory wrong = wrongRun(16, 4, 5, "wrong trainer");
        Run memory alsoWrong = wrongRun(16, 4, 5, "wrong auditor");
        (JobId job, GameId id) = dispute(wrong, alsoWrong);
        play(id, wrong, alsoWrong);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(job, JobStatus.REJECTED);
    }

    function testFuzz_everyGame_findsTheFirstWrongNumber_andTheHonestSideWins(
        uint256 checkpointCount,
        uint256 interval,
        Lie memory lie,
        bool trainerIsHonest
    ) public {
        interval = bound(interval, 1, 9);
        uint256 steps = interval * bound(checkpointCount, 1, 12);
        lie = Lie(bound(lie.step, 0, steps - 1), bound(lie.place, 0, 7), bound(lie.delta, 1, 1000), bound(lie.segment, 0, 2));
        Run memory honest = honestRun(steps, uint64(interval));
        Run memory wrong = Runs.with(steps, uint64(interval), lie);
        (, GameId id) = trainerIsHonest ? dispute(honest, wrong) : dispute(wrong, honest);
        uint256 moves = trainerIsHonest ? play(id, honest, wrong) : play(id, wrong, honest);
        assertFound(game.getGame(id), lie, honest);
        vm.assertLe(moves, movesOf(steps, interval, lie.place), "no more moves than the depths and the openings");
        if (trainerIsHonest && game.getGame(id).phase != Phase.OVER) timeOut(id);
        GameView memory shown = game.getGame(id);
        vm.assertTrue(shown.outcome == (trainerIsHonest ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON), "the honest side wins");
        assertJob(shown.job, trainerIsHonest ? JobStatus.CLAIMED : JobStatus.REJECTED);
    }

    function assertFound(GameView memory shown, Lie memory lie, Run memory honest) private view {
        vm.assertEq(stepAt(shown, honest), lie.step, "the first wrong step");
        vm.assertEq(shown.agreed, lie.step == 0 ? initialState : honest.states[lie.step - 1], "the agreed state before it");
        vm.assertEq(
            operatorAt(shown), lie.place < 6 ? lie.place : lie.place + 2, "the first wrong operator, or the store of the slot"
        );
        if (lie.place == Toy.SUM) vm.assertEq(shown.levels[4].index, lie.segment, "the first wrong segment");
    }

    /// @dev Searches and openings down to the operator; then the chunk, or nothing for a store; then the segment of a sum; then a proof.
    function movesOf(uint256 steps, uint256 interval, uint256 place) private pure returns (uint256 moves) {
        moves = log2(Trees.width(steps / interval)) + 2 + log2(Trees.width(interval)) + 2 + 4;
        if (place < 6) moves += 2 + (place % 2 == 0 ? 2 : 0) + 1;
        if (place == Toy.SUM) moves += 1 + 2 + 2;
        ++moves;
    }

    function testFuzz_ofAnySetOfWrongSteps_theFirstOfTheFirstWrongCheckpointIsFound(
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
            if ((differences >> s) & 1 == 0) continue;
            wrong.numbers[s][0] += 1000;
            Runs.seal(wrong, s);
        }
        (Run memory claimed, Run memory challenged) = trainerIsHonest ? (honest, wrong) : (wrong, honest);
        (JobId job, GameId id) = dispute(claimed, challenged);
        uint256 expected = firstDisputableStep(honest, wrong);
        playTo(id, Level.OPERATOR, Phase.BISECTION, claimed, challenged);
        vm.assertEq(stepAt(game.getGame(id), honest), expected, "the disputed step");
        vm.assertEq(
            game.getGame(id).agreed, expected == 0 ? initialState : honest.states[expected - 1], "the agreed state before it"
        );
        play(id, claimed, challenged);
        // Its operators are right from where it stands, so that it cannot have stored what it claims.
        assertOver(id, trainerIsHonest ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(job, trainerIsHonest ? JobStatus.CLAIMED : JobStatus.REJECTED);
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

    function test_jobOfOneStep_isDisputedFromItsOpeningOn() public {
        Run memory honest = honestRun(1, 1);
        Run memory wrong = wrongRun(1, 1, 0, "wrong");
        (, GameId id) = dispute(wrong, honest);
        assertPhase(id, Phase.OPENING);
        playTo(id, Level.OPERATOR, Phase.BISECTION, wrong, honest);
        vm.assertEq(game.getGame(id).agreed, initialState, "the spec's initial state");
        play(id, wrong, honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_openingsInEitherOrder_leadToTheSameGame() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = Runs.with(20, 5, Lie(8, Toy.SUM, 1, 1));
        GameView[2] memory ends;
        for (uint256 i = 0; i < 2; ++i) {
            (, GameId id) = dispute(wrong, honest);
            while (game.getGame(id).phase != Phase.OVER) {
                if (i == 1 && game.getGame(id).phase == Phase.OPENING) stepOf(id, Side.CHALLENGER, honest);
                step(id, wrong, honest);
            }
            ends[i] = game.getGame(id);
        }
        vm.assertEq(
            keccak256(abi.encode(ends[0].levels, ends[0].operator, ends[0].disputed, ends[0].outcome)),
            keccak256(abi.encode(ends[1].levels, ends[1].operator, ends[1].disputed, ends[1].outcome)),
            "the same game"
        );
    }

    function test_theWholeDisputeCanBeReadFromOneView_afterItIsOver() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = Runs.with(20, 5, Lie(8, Toy.SUM, 1, 1));
        (, GameId id) = dispute(wrong, honest);
        play(id, wrong, honest);
        GameView memory shown = game.getGame(id);
        vm.assertEq(shown.levels.length, 5, "down to the running results");
        for (uint256 side = 0; side < 2; ++side) {
            Run memory run = side == 0 ? wrong : honest;
            vm.assertEq(Node.unwrap(shown.levels[0].roots[side]), Trees.root(Runs.checkpointTree(run)), "checkpoints");
            vm.assertEq(Node.unwrap(shown.levels[1].roots[side]), Trees.root(Runs.stepTree(run, 1)), "steps");
            vm.assertEq(Node.unwrap(shown.levels[2].roots[side]), Trees.root(Runs.traceTree(run, 8)), "trace");
            vm.assertEq(Node.unwrap(shown.levels[3].roots[side]), Trees.root(Runs.outputTree(run, 8, Toy.SUM)), "output");
            vm.assertEq(Node.unwrap(shown.levels[4].roots[side]), Trees.root(Runs.partialTree(run, 8)), "running results");
            vm.assertEq(Node.unwrap(shown.search.nodes[side]), Runs.partialTree(run, 8).rows[0][1], "the disputed segment");
        }
        uint64[5] memory counts = [uint64(4), 5, 10, 1, 3];
        uint64[5] memory indices = [uint64(1), 3, 3, 0, 1];
        for (uint256 i = 0; i < 5; ++i) {
            vm.assertEq(uint8(shown.levels[i].level), i, "level");
            vm.assertEq(shown.levels[i].leafCount, counts[i], "leaves");
            vm.assertEq(shown.levels[i].index, indices[i], "index");
        }
        vm.assertEq(shown.agreed, honest.states[7], "the state before the step");
        vm.assertEq(shown.operator.descriptorHash, keccak256(Toy.descriptor(Toy.SUM)), "descriptor");
        vm.assertEq(shown.operator.width, 4, "bytes of an element");
        vm.assertEq(shown.operator.elements, 1, "elements");
        vm.assertEq(shown.operator.chunks, 1, "chunks");
        vm.assertEq(shown.operator.segments, 3, "segments");
        vm.assertTrue(shown.disputed.known && shown.disputed.element == 0, "the element");
        vm.assertEq(shown.disputed.claimed, Toy.float(Runs.computed(wrong, 8)[Toy.SUM][0]), "the trainer's bits");
        vm.assertEq(shown.search.height, 0, "at a leaf");
        vm.assertEq(shown.search.due, 0, "no row is due");
    }

    // --------------------------------------------------------------------------------------------------------------- padding

    /// @dev The honest checkpoints, with something else than PAD behind the last of them.
    function paddedWith(Run memory run, uint256 position, bytes32 leaf) private pure returns (Tree memory) {
        bytes32[] memory leaves = Runs.checkpointTree(run).rows[0];
        leaves[position] = leaf;
        return Trees.fromLeaves(leaves, Runs.checkpointTree(run).count);
    }

    function test_trainerWhoHidesALeafInThePadding_loses() public {
        Run memory honest = honestRun(5, 1);
        Tree memory forged = paddedWith(honest, 6, Trees.hashLeaf(bytes.concat(honest.states[0])));
        JobId job = post(5, 1);
        commitTree(job, forged, honest.states[4]);
        GameId id = challengeRun(job, auditor, honest);
        playTrees(id, forged, Runs.checkpointTree(honest));
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PADDING);
        assertCredits(REWARD + TRAINER_BOND / 4, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
    }

    function test_challengerWhoForgesThePadding_loses_atEveryPositionOfIt() public {
        Run memory honest = honestRun(5, 1);
        for (uint256 position = 5; position < 8; ++position) {
            Tree memory forged = paddedWith(honest, position, keccak256("anything"));
            JobId job = post(5, 1);
            commitRun(job, honest);
            GameId id = challengeRoot(job, auditor, Trees.root(forged));
            playTrees(id, Runs.checkpointTree(honest), forged);
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
        (wrong.states[4], wrong.states[9]) = (keccak256("wrong checkpoint"), keccak256("wrong checkpoint too"));
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        bytes32[] memory leaves = Runs.stepTree(wrong, 0).rows[0];
        leaves[7] = keccak256("junk");
        Tree memory forged = Trees.fromLeaves(leaves, 5);
        LeafOpening memory leaf = leafOpening(game.getGame(id), wrong);
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, asNextRoot(forged));
        open(id, Side.CHALLENGER, honest);
        playTrees(id, forged, Runs.stepTree(honest, 0));
        vm.assertEq(game.getGame(id).levels[1].index, 4, "the last leaf, never the padding");
        assertPhase(id, Phase.OPENING);
    }
}
