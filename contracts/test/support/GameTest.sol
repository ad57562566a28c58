// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Adjudicator} from "../../src/adjudication/Adjudicator.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {IAdjudicator} from "../../src/adjudication/IAdjudicator.sol";
import {Reducer} from "../../src/adjudication/Reducer.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../../src/Types.sol";
import {Node} from "../../src/Merkle.sol";
import {NextRoot} from "../../src/game/Moves.sol";
import {Duration, Time, Timestamp} from "../../src/Time.sol";
import {TrainingSpec} from "../../src/TrainingSpec.sol";
import {VerificationGame} from "../../src/VerificationGame.sol";
import {GameView, JobView} from "../../src/Views.sol";
import {Lie, Run, Runs} from "./Runs.sol";
import {Test} from "./Test.sol";
import {Toy} from "./Toy.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Jobs, claims, challenges and what came of them.
abstract contract GameTest is Test {
    uint128 internal constant REWARD = 10 ether;
    uint128 internal constant TRAINER_BOND = 5 ether;
    uint128 internal constant CHALLENGER_BOND = 3 ether;
    uint64 internal constant COMMIT_WINDOW = 1 days;
    uint64 internal constant CHALLENGE_WINDOW = 2 days;
    uint64 internal constant ALLOWANCE = 6 hours;
    uint64 internal constant REFEREE_ALLOWANCE = 3 hours;
    uint32 internal constant CONCURRENT = 4;
    uint64 internal constant START = 1_900_000_000;
    /// Whatever place an audit gets.
    uint64 internal constant ANY_PLACE = type(uint64).max;

    VerificationGame internal game;
    /// The row of the root of a claim.
    mapping(JobId job => Node[]) internal claimedRow;
    IAdjudicator internal adjudicator;
    bytes32 internal programRoot;
    bytes32 internal initialState;
    address internal customer;
    address internal trainer;
    address internal auditor;
    address internal referee;
    address internal stranger;

    function setUp() public virtual {
        vm.warp(START);
        adjudicator = new Adjudicator(new Functions(), new Reducer());
        game = new VerificationGame(adjudicator);
        initialState = Trees.root(Toy.stateTree(Toy.initial()));
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
            programRoot: programRoot,
            operatorCount: Toy.OPERATORS,
            initialStateRoot: initialState,
            stateCount: Toy.SLOTS,
            dataRoot: keccak256("data"),
            dataRows: 1797,
            batchSize: 32,
            scheduleRoot: keccak256("schedule"),
            seed: 7,
            chunkSize: Toy.CHUNK_SIZE,
            roundingPolicy: 0,
            roundingBits: 32,
            logGuard: 4,
            logVersion: 1,
            referee: referee,
            adjudicator: adjudicator
        });
    }

    function terms() internal pure virtual returns (Terms memory) {
        return Terms({
            reward: REWARD,
            trainerBond: TRAINER_BOND,
            challengerBond: CHALLENGER_BOND,
            commitWindow: Duration.wrap(COMMIT_WINDOW),
            challengeWindow: Duration.wrap(CHALLENGE_WINDOW),
            clockAllowance: Duration.wrap(ALLOWANCE),
            refereeAllowance: Duration.wrap(REFEREE_ALLOWANCE),
            concurrentGames: CONCURRENT,
            trainer: address(0),
            attestationsNeeded: 0,
            auditWindow: Time.NO_TIME,
            openingWindow: Time.NO_TIME,
            auditFee: 0,
            attestationBond: 0
        });
    }

    function honestRun(uint256 steps, uint64 interval) internal pure returns (Run memory) {
        return Runs.honest(steps, interval);
    }

    /// @notice A run that adds wrongly in step `from`, in a way of its own.
    function wrongRun(uint256 steps, uint64 interval, uint256 from, string memory who) internal pure returns (Run memory) {
        return Runs.with(steps, interval, Lie(from, 2, 1 + uint256(keccak256(bytes(who))) % 1000, 0));
    }

    function post(uint64 steps, uint64 interval) internal returns (JobId) {
        TrainingSpec memory posted = spec(steps, interval);
        vm.prank(customer);
        Terms memory offered = terms();
        return game.postJob{value: uint256(offered.reward) + offered.auditFee}(posted, offered, "bafyjob");
    }

    function commitRun(JobId job, Run memory run) internal {
        commitTree(job, Runs.checkpointTree(run), run.states[run.states.length - 1]);
    }

    function commitTree(JobId job, Tree memory tree, bytes32 finalState) internal {
        bytes32 hash = hashOf(job);
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(job, hash, asNextRoot(tree), finalState, "bafylog", "bafymodel");
        claimedRow[job] = asNextRoot(tree).row;
    }

    /// @notice The root of a tree, tied to its last leaf.
    function asNextRoot(Tree memory tree) internal pure returns (NextRoot memory) {
        Node[] memory row = rowIn(tree, Trees.height(tree), 0);
        return NextRoot(Node.wrap(Trees.root(tree)), Trees.proof(tree, tree.count - 1), row);
    }

    function rowIn(Tree memory tree, uint256 height, uint256 index) internal pure returns (Node[] memory nodes) {
        bytes32[] memory row = Trees.rowOf(tree, height, index);
        nodes = new Node[](row.length);
        for (uint256 i = 0; i < row.length; ++i) {
            nodes[i] = Node.wrap(row[i]);
        }
    }

    function challengeRun(JobId job, address challenger, Run memory run) internal returns (GameId) {
        return challengeRoot(job, challenger, Trees.root(Runs.checkpointTree(run)));
    }

    function challengeRoot(JobId job, address challenger, bytes32 root) internal returns (GameId) {
        JobView memory shown = game.getJob(job);
        vm.prank(challenger);
        return game.challenge{value: CHALLENGER_BOND}(job, shown.specHash, shown.claim.checkpointRoot, Node.wrap(root));
    }

    function hashOf(JobId job) internal view returns (bytes32) {
        return game.getJob(job).specHash;
    }

    function claimedIn(JobId job) internal view returns (Node) {
        return game.getJob(job).claim.checkpointRoot;
    }

    /// @notice A claim by `claimed` and one challenge by `challenged`.
    function dispute(Run memory claimed, Run memory challenged) internal returns (JobId job, GameId id) {
        job = post(uint64(claimed.states.length), claimed.interval);
        commitRun(job, claimed);
        id = challengeRun(job, auditor, challenged);
    }

    function adjudicate(GameId id, uint64 bits) internal {
        vm.prank(referee);
        game.adjudicate(id, bits);
    }

    /// @notice Whoever has to move lets its time run out.
    function timeOut(GameId id) internal {
        later(2 * ALLOWANCE);
        game.claimTimeout(id);
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
