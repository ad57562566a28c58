// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Children, Side} from "../../src/Bisection.sol";
import {
    GameId,
    GameView,
    JobId,
    JobStatus,
    LeafOpening,
    LevelView,
    NextRoot,
    Outcome,
    Phase,
    Reason,
    Terms
} from "../../src/IVerificationGame.sol";
import {Level} from "../../src/Level.sol";
import {Node} from "../../src/Merkle.sol";
import {Duration, Timestamp} from "../../src/Time.sol";
import {TrainingSpec} from "../../src/TrainingSpec.sol";
import {VerificationGame} from "../../src/VerificationGame.sol";
import {Test} from "./Test.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice What a party believes: the state root after every step. Its checkpoints and its step trees follow from that.
struct Run {
    uint64 interval;
    bytes32[] states;
}

/// @notice Parties with whole runs in memory that play whole games.
abstract contract GameTest is Test {
    uint128 internal constant REWARD = 10 ether;
    uint128 internal constant TRAINER_BOND = 5 ether;
    uint128 internal constant CHALLENGER_BOND = 3 ether;
    uint64 internal constant COMMIT_WINDOW = 1 days;
    uint64 internal constant CHALLENGE_WINDOW = 2 days;
    uint64 internal constant ALLOWANCE = 6 hours;
    uint64 internal constant REFEREE_ALLOWANCE = 3 hours;
    uint64 internal constant START = 1_900_000_000;
    bytes32 internal constant INITIAL_STATE = keccak256("initial state");

    VerificationGame internal game;
    address internal customer;
    address internal trainer;
    address internal auditor;
    address internal referee;
    address internal stranger;

    function setUp() public virtual {
        vm.warp(START);
        game = new VerificationGame();
        customer = account("customer");
        trainer = account("trainer");
        auditor = account("auditor");
        referee = account("referee");
        stranger = account("stranger");
    }

    // ---------------------------------------------------------------------------------------------------------- jobs and runs

    function spec(uint64 steps, uint64 interval) internal view returns (TrainingSpec memory) {
        return TrainingSpec({
            steps: steps,
            interval: interval,
            programRoot: keccak256("program"),
            operatorCount: 100,
            initialStateRoot: INITIAL_STATE,
            stateCount: 12,
            dataRoot: keccak256("data"),
            dataRows: 1797,
            batchSize: 32,
            scheduleRoot: keccak256("schedule"),
            seed: 7,
            chunkSize: 1024,
            roundingPolicy: 0,
            roundingBits: 32,
            logGuard: 4,
            logVersion: 1,
            referee: referee
        });
    }

    function terms() internal pure returns (Terms memory) {
        return Terms({
            reward: REWARD,
            trainerBond: TRAINER_BOND,
            challengerBond: CHALLENGER_BOND,
            commitWindow: Duration.wrap(COMMIT_WINDOW),
            challengeWindow: Duration.wrap(CHALLENGE_WINDOW),
            clockAllowance: Duration.wrap(ALLOWANCE),
            refereeAllowance: Duration.wrap(REFEREE_ALLOWANCE),
            trainer: address(0)
        });
    }

    function honestRun(uint256 steps, uint64 interval) internal pure returns (Run memory run) {
        run.interval = interval;
        run.states = new bytes32[](steps);
        for (uint256 s = 0; s < steps; ++s) {
            run.states[s] = keccak256(abi.encode("state after step", s));
        }
    }

    /// @notice As honest up to step `from`, and different ever after.
    function wrongRun(uint256 steps, uint64 interval, uint256 from, string memory who) internal pure returns (Run memory run) {
        run = honestRun(steps, interval);
        for (uint256 s = from; s < steps; ++s) {
            run.states[s] = keccak256(abi.encode(who, s));
        }
    }

    function checkpoints(Run memory run) internal pure returns (bytes32[] memory states) {
        states = new bytes32[](run.states.length / run.interval);
        for (uint256 i = 0; i < states.length; ++i) {
            states[i] = run.states[(i + 1) * run.interval - 1];
        }
    }

    function checkpointTree(Run memory run) internal pure returns (Tree memory) {
        return Trees.build(checkpoints(run));
    }

    function stepTree(Run memory run, uint256 checkpoint) internal pure returns (Tree memory) {
        bytes32[] memory states = new bytes32[](run.interval);
        for (uint256 j = 0; j < states.length; ++j) {
            states[j] = run.states[checkpoint * run.interval + j];
        }
        return Trees.build(states);
    }

    function post(uint64 steps, uint64 interval) internal returns (JobId) {
        vm.prank(customer);
        return game.postJob{value: REWARD}(spec(steps, interval), terms(), "bafyjob");
    }

    function commitRun(JobId job, Run memory run) internal {
        commitTree(job, checkpointTree(run), run.states[run.states.length - 1]);
    }

    function commitTree(JobId job, Tree memory tree, bytes32 finalState) internal {
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(
            job, Node.wrap(Trees.root(tree)), finalState, Trees.proof(tree, tree.count - 1), "bafylog", "bafymodel"
        );
    }

    function challengeRun(JobId job, address challenger, Run memory run) internal returns (GameId) {
        return challengeRoot(job, challenger, Trees.root(checkpointTree(run)));
    }

    function challengeRoot(JobId job, address challenger, bytes32 root) internal returns (GameId) {
        vm.prank(challenger);
        return game.challenge{value: CHALLENGER_BOND}(job, Node.wrap(root));
    }

    /// @notice A claim by `claimed` and one challenge by `challenged`.
    function dispute(Run memory claimed, Run memory challenged) internal returns (JobId job, GameId id) {
        job = post(uint64(claimed.states.length), claimed.interval);
        commitRun(job, claimed);
        id = challengeRun(job, auditor, challenged);
    }

    // -------------------------------------------------------------------------------------------------------------- the moves

    function current(GameView memory shown) internal pure returns (LevelView memory) {
        return shown.levels[shown.levels.length - 1];
    }

    /// @notice The tree in which the game now searches, as the run has it.
    function treeOf(GameView memory shown, Run memory run) internal pure returns (Tree memory) {
        return shown.levels.length == 1 ? checkpointTree(run) : stepTree(run, shown.levels[0].index);
    }

    function nextBisection(GameView memory shown, Run memory run)
        internal
        pure
        returns (Children memory opened, Children memory next)
    {
        return nextBisectionIn(current(shown), treeOf(shown, run));
    }

    function nextBisectionIn(LevelView memory at_, Tree memory tree)
        internal
        pure
        returns (Children memory opened, Children memory next)
    {
        (bytes32 left, bytes32 right) = Trees.children(tree, at_.height, at_.index);
        opened = Children(Node.wrap(left), Node.wrap(right));
        uint256 below = left != Node.unwrap(at_.revealed.left) ? at_.index : at_.index + (1 << (at_.height - 1));
        (left, right) = Trees.children(tree, at_.height - 1, below);
        next = Children(Node.wrap(left), Node.wrap(right));
    }

    function leafOpening(GameView memory shown, Run memory run) internal pure returns (LeafOpening memory leaf) {
        LevelView memory at_ = current(shown);
        bytes32[] memory payloads = checkpoints(run);
        if (shown.levels.length == 2) {
            for (uint256 j = 0; j < run.interval; ++j) {
                if (j == 0) payloads = new bytes32[](run.interval);
                payloads[j] = run.states[shown.levels[0].index * run.interval + j];
            }
        }
        leaf.payload = payloads[at_.index];
        if (at_.index == 0) {
            leaf.agreed = at_.agreedBefore;
        } else {
            leaf.agreed = payloads[at_.index - 1];
            leaf.agreedProof = Trees.proof(treeOf(shown, run), at_.index - 1);
        }
    }

    function nextRoot(GameView memory shown, Run memory run) internal pure returns (NextRoot memory) {
        Tree memory below = stepTree(run, shown.levels[0].index);
        return NextRoot(Node.wrap(Trees.root(below)), Trees.proof(below, run.interval - 1));
    }

    function bisect(GameId id, Run memory run) internal {
        (Children memory opened, Children memory next) = nextBisection(game.getGame(id), run);
        vm.prank(stranger);
        game.bisect(id, opened, next);
    }

    function open(GameId id, Side side, Run memory run) internal {
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, run);
        if (shown.levels.length == 1) {
            NextRoot memory next = nextRoot(shown, run);
            vm.prank(side == Side.TRAINER ? shown.trainer : shown.challenger);
            game.openLevel(id, side, leaf, next);
        } else {
            vm.prank(stranger);
            game.revealLeaf(id, side, leaf);
        }
    }

    /// @notice The move that `side` owes, if it owes one.
    function stepOf(GameId id, Side side, Run memory run) internal returns (bool moved) {
        GameView memory shown = game.getGame(id);
        if (shown.phase == Phase.BISECTION && current(shown).turn == side) bisect(id, run);
        else if (shown.phase == Phase.OPENING && !current(shown).opened[uint8(side)]) open(id, side, run);
        else return false;
        return true;
    }

    /// @notice The next move of whichever side owes one. Nothing in phases REFEREE and OVER.
    function step(GameId id, Run memory claimed, Run memory challenged) internal returns (bool moved) {
        GameView memory shown = game.getGame(id);
        if (shown.phase == Phase.BISECTION) {
            bisect(id, current(shown).turn == Side.TRAINER ? claimed : challenged);
            return true;
        }
        if (shown.phase == Phase.OPENING) {
            Side side = current(shown).opened[0] ? Side.CHALLENGER : Side.TRAINER;
            open(id, side, side == Side.TRAINER ? claimed : challenged);
            return true;
        }
        return false;
    }

    /// @notice Both sides play to the referee or to the end.
    function play(GameId id, Run memory claimed, Run memory challenged) internal returns (uint256 moves) {
        while (step(id, claimed, challenged)) ++moves;
    }

    /// @notice Both sides play until the game asks for an opening at `level`.
    function playToOpening(GameId id, Level level, Run memory claimed, Run memory challenged) internal {
        while (true) {
            GameView memory shown = game.getGame(id);
            if (shown.phase == Phase.OPENING && current(shown).level == level) return;
            vm.assertTrue(step(id, claimed, challenged), "the game reaches the opening");
        }
    }

    function adjudicate(GameId id, bytes32 state) internal {
        vm.prank(referee);
        game.adjudicate(id, state);
    }

    // --------------------------------------------------------------------------------------------------------------- verdicts

    function assertOver(GameId id, Outcome outcome, Reason reason) internal view {
        GameView memory shown = game.getGame(id);
        vm.assertEq(uint8(shown.phase), uint8(Phase.OVER), "phase");
        vm.assertEq(uint8(shown.outcome), uint8(outcome), "outcome");
        vm.assertEq(uint8(shown.reason), uint8(reason), "reason");
    }

    function assertPhase(GameId id, Phase phase) internal view {
        vm.assertEq(uint8(game.getGame(id).phase), uint8(phase), "phase");
    }

    function assertJob(JobId job, JobStatus status) internal view {
        vm.assertEq(uint8(game.getJob(job).status), uint8(status), "job status");
    }

    function assertCredits(uint256 ofCustomer, uint256 ofTrainer, uint256 ofAuditor) internal view {
        vm.assertEq(game.creditOf(customer), ofCustomer, "the customer's credit");
        vm.assertEq(game.creditOf(trainer), ofTrainer, "the trainer's credit");
        vm.assertEq(game.creditOf(auditor), ofAuditor, "the auditor's credit");
    }

    function later(uint256 length) internal {
        vm.warp(time() + length);
    }

    /// @dev By cheatcode, because the optimizer takes `block.timestamp` for a constant of the transaction, which `warp` makes it not.
    function time() internal view returns (uint256) {
        return vm.getBlockTimestamp();
    }

    /// @dev A typed instant from a plain one.
    function instant(uint256 seconds_) internal pure returns (Timestamp) {
        return Timestamp.wrap(uint64(seconds_));
    }
}
