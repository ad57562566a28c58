// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../../src/game/Bisection.sol";
import {GameId, Phase} from "../../src/Types.sol";
import {Level} from "../../src/game/Level.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening} from "../../src/game/Moves.sol";
import {Players} from "./Players.sol";
import {Lie, Run, Runs} from "./Runs.sol";
import {Toy} from "./Toy.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Games at level CHUNK, about a step of the toy or of another program.
abstract contract ChunkGame is Players {
    uint256 internal constant STEP = 3;
    /// The operator that adds.
    uint256 internal constant ADD = 2;

    Run internal honest;
    bytes private _descriptor;

    function setUp() public virtual override {
        super.setUp();
        honest = honestRun(6, 3);
    }

    /// @dev The program has another operator ADD if a test says so.
    function descriptorOf(uint256 q) internal view override returns (bytes memory) {
        return q == ADD && _descriptor.length > 0 ? _descriptor : super.descriptorOf(q);
    }

    function toChunk(uint256 place, Phase phase) internal returns (GameId id, Run memory wrong) {
        wrong = Runs.with(6, 3, Lie(STEP, place, 1, 0));
        (, id) = dispute(wrong, honest);
        playTo(id, Level.CHUNK, phase, wrong, honest);
    }

    /// @notice A game in which the challenger has to prove that the trainer adds wrongly.
    function toProof() internal returns (GameId id, ElementProof memory proof) {
        (id,) = toChunk(ADD, Phase.PROVING);
        proof = elementProof(game.getGame(id), honest, posted[id]);
    }

    function refuse(GameId id, ElementProof memory proof, bytes4 why) internal {
        refuseFrom(auditor, id, proof, why);
    }

    function refuseFrom(address sender, GameId id, ElementProof memory proof, bytes4 why) internal {
        bytes32 before = keccak256(abi.encode(game.getGame(id)));
        vm.prank(sender);
        (bool ok, bytes memory answer) = address(game).call(abi.encodeCall(game.proveElement, (id, proof)));
        vm.assertTrue(!ok, "it reverts");
        vm.assertEq(bytes32(bytes4(answer)), bytes32(why), "for this reason");
        vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "and nothing has happened");
    }

    /// @notice A trainer whose output is any tree of chunks at all; the search goes to its first difference.
    function disputeOutput(bytes[] memory chunks) internal returns (GameId id, Tree memory output) {
        output = Trees.buildBytes(chunks);
        Run memory wrong = honestRun(6, 3);
        // Other states after the step: what they hold is not what they are disputed about.
        for (uint256 s = STEP; s < 6; ++s) {
            ++wrong.numbers[s][0];
            Runs.seal(wrong, s);
        }
        (, id) = dispute(wrong, honest);
        playTo(id, Level.STEP, Phase.OPENING, wrong, honest);
        Tree memory trace = Toy.traceTree(Runs.computed(honest, STEP), wrong.numbers[STEP]);
        trace.rows[0][ADD] = Trees.hashLeaf(bytes.concat(Trees.root(output)));
        trace = Trees.fromLeaves(trace.rows[0], trace.count);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(game.getGame(id), wrong), traceRoot(trace));
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
        open(id, Side.CHALLENGER, honest);
        playTrees(id, trace, Runs.traceTree(honest, STEP));
        open(id, Side.CHALLENGER, honest);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), honest);
        (opening.tensorRoot, opening.row) = (Trees.root(output), rootRow(output));
        game.openOperator(id, Side.TRAINER, opening);
        playTrees(id, output, Runs.outputTree(honest, STEP, ADD));
    }

    function honestChunks() internal view returns (bytes[] memory chunks) {
        chunks = new bytes[](3);
        for (uint256 i = 0; i < 3; ++i) {
            chunks[i] = Toy.chunk(Runs.computed(honest, STEP)[ADD], i);
        }
    }

    function useDescriptor(bytes memory descriptor) internal {
        _descriptor = descriptor;
        programRoot = Trees.root(Trees.buildBytes(program()));
    }
}
