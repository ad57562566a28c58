// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisections, Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobStatus, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "../src/game/Moves.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Level OPERATOR: traces, their padding, stores, and the opening of an operator.
contract OperatorTest is Players {
    uint256 private constant STEP = 3;

    Run private _honest;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
    }

    /// @notice A game in which the trainer's operator `place` is wrong, at an opening or a proof of level OPERATOR.
    function toOperator(uint256 place, Phase phase) private returns (GameId id, Run memory wrong) {
        wrong = Runs.with(6, 3, Lie(STEP, place, 1, 0));
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.OPERATOR, phase, wrong, _honest);
    }

    function expect(bytes4 why, bytes memory data, address sender) private {
        vm.prank(sender);
        (bool ok, bytes memory answer) = address(game).call(data);
        vm.assertTrue(!ok, "it reverts");
        vm.assertEq(bytes32(bytes4(answer)), bytes32(why), "for this reason");
    }

    // ---------------------------------------------------------------------------------------------------------------- opening a trace

    function test_aTrace_isTheOperatorsHalfOfTheParty_andTheStateThatItHasClaimed() public {
        (GameId id,) = toOperator(2, Phase.OPENING);
        GameView memory shown = game.getGame(id);
        vm.assertEq(Node.unwrap(shown.levels[2].roots[1]), Trees.root(Runs.traceTree(_honest, STEP)), "leaf by leaf");
        vm.assertEq(shown.levels[2].leafCount, Toy.HALF + Toy.SLOTS, "with the gap");
    }

    function test_openingATrace_takesNoProof() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, 2, 1, 0));
        (, GameId id) = dispute(wrong, _honest);
        playToOpening(id, Level.STEP, wrong, _honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        next.lastLeafProof = new bytes32[](1);
        expect(Merkle.WrongProofLength.selector, abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, next)), trainer);
        next.lastLeafProof = new bytes32[](0);
        expect(IVerificationGame.NotTheParty.selector, abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, next)), stranger);
    }

    /// @notice Both sides go on with operators' halves of any leaves at all.
    function openTraces(Run memory wrong, bytes32[] memory trainers, bytes32[] memory challengers) private returns (GameId id) {
        (, id) = dispute(wrong, _honest);
        playToOpening(id, Level.STEP, wrong, _honest);
        Tree[2] memory trees = [traceOf(trainers, wrong), traceOf(challengers, _honest)];
        for (uint256 side = 0; side < 2; ++side) {
            LeafOpening memory leaf = leafOpening(game.getGame(id), side == 0 ? wrong : _honest);
            vm.prank(side == 0 ? trainer : auditor);
            game.openLevel(id, Side(side), leaf, traceRoot(trees[side]));
        }
        playTrees(id, trees[0], trees[1]);
    }

    function traceOf(bytes32[] memory operators, Run memory run) private pure returns (Tree memory) {
        bytes32[] memory leaves = Runs.traceTree(run, STEP).rows[0];
        for (uint256 i = 0; i < operators.length; ++i) {
            leaves[i] = operators[i];
        }
        return Trees.fromLeaves(leaves, Toy.HALF + Toy.SLOTS);
    }

    function honestLeaves() private view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](Toy.HALF);
        Tree memory trace = Runs.traceTree(_honest, STEP);
        for (uint256 i = 0; i < leaves.length; ++i) {
            leaves[i] = trace.rows[0][i];
        }
    }

    function test_aForgedLeafInTheGap_losesForWhoForgedIt() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, 6, 1, 0));
        for (uint256 gap = Toy.OPERATORS; gap < Toy.HALF; ++gap) {
            bytes32[] memory forged = honestLeaves();
            forged[gap] = keccak256("anything");
            bytes32[] memory other = honestLeaves();
            other[gap] = keccak256("something else");
            assertOver(openTraces(wrong, forged, honestLeaves()), Outcome.CHALLENGER_WON, Reason.PADDING);
            assertOver(openTraces(wrong, honestLeaves(), forged), Outcome.TRAINER_WON, Reason.PADDING);
            assertOver(openTraces(wrong, forged, other), Outcome.BOTH_LOST, Reason.PADDING);
        }
    }

    function test_aStateRootOfAnotherShape_losesForWhoClaimsIt() public {
        // The right slots, under a root one level too high, with something behind them.
        bytes32[] memory leaves = new bytes32[](4);
        Tree memory right = Toy.stateTree(_honest.numbers[STEP]);
        (leaves[0], leaves[1], leaves[2], leaves[3]) = (right.rows[0][0], right.rows[0][1], keccak256("more"), Trees.pad());
        Run memory wrong = honestRun(6, 3);
        wrong.states[STEP] = Trees.root(Trees.fromLeaves(leaves, 2));
        wrong.states[5] = wrong.states[STEP];
        (, GameId id) = dispute(wrong, _honest);
        playToOpening(id, Level.STEP, wrong, _honest);
        LeafOpening memory leaf = leafOpening(game.getGame(id), wrong);
        // In a trace the contract looks for slot 0 where this one has a node above two leaves.
        bytes32[] memory bent = Runs.traceTree(_honest, STEP).rows[0];
        (bent[8], bent[9]) = (Trees.hashPair(leaves[0], leaves[1]), Trees.hashPair(leaves[2], leaves[3]));
        Tree memory claimed = Trees.fromLeaves(bent, 10);
        NextRoot memory next = traceRoot(claimed);
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
        open(id, Side.CHALLENGER, _honest);
        playTrees(id, claimed, Runs.traceTree(_honest, STEP));
        vm.assertEq(game.getGame(id).search.index, Toy.HALF, "slot 0");
        assertPhase(id, Phase.PROVING);
        prove(id, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_traceWithoutAnyTree_canOnlyBeOpenedLast_andThenNotBeSearched_soItsOwnerRunsOutOfTime() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, 2, 1, 0));
        (, GameId id) = dispute(wrong, _honest);
        playToOpening(id, Level.STEP, wrong, _honest);
        LeafOpening memory leaf = leafOpening(game.getGame(id), wrong);
        NextRoot memory next = nextRoot(game.getGame(id), wrong);
        next.root = Node.wrap(keccak256("no tree"));
        expect(Bisections.NotTheRow.selector, abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, next)), trainer);
        open(id, Side.CHALLENGER, _honest);
        delete next.row;
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
        vm.assertTrue(game.getGame(id).search.turn == Side.TRAINER, "who opens last moves first");
        timeOut(id);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    // ------------------------------------------------------------------------------------------------------------------------- stores

    function test_aStateThatIsNotWhatTheOperatorsStore_losesForWhoClaimsIt() public {
        for (uint256 slot = 0; slot < Toy.SLOTS; ++slot) {
            Run memory wrong = Runs.with(6, 3, Lie(STEP, Toy.OPERATORS + slot, 1, 0));
            (, GameId id) = dispute(wrong, _honest);
            playTo(id, Level.OPERATOR, Phase.PROVING, wrong, _honest);
            vm.assertEq(game.getGame(id).search.index, Toy.HALF + slot, "the slot");
            prove(id, _honest);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);

            (, id) = dispute(_honest, wrong);
            playTo(id, Level.OPERATOR, Phase.PROVING, _honest, wrong);
            prove(id, wrong);
            assertOver(id, Outcome.TRAINER_WON, Reason.PROOF);
        }
    }

    function test_aStoresProof_isOfThatStoresOperator() public {
        (GameId id,) = toOperator(Toy.OPERATORS + 1, Phase.PROVING);
        (bytes32 payload, bytes32[] memory proof) = storeProof(game.getGame(id), _honest);
        expect(Merkle.WrongProof.selector, abi.encodeCall(game.proveStore, (id, keccak256("other"), proof)), auditor);
        // Slot 0's store instead.
        bytes32 other = Trees.root(Runs.outputTree(_honest, STEP, 4));
        bytes32[] memory otherProof = Trees.proof(Runs.traceTree(_honest, STEP), 4);
        expect(Merkle.WrongProof.selector, abi.encodeCall(game.proveStore, (id, other, otherProof)), auditor);
        expect(Merkle.WrongProofLength.selector, abi.encodeCall(game.proveStore, (id, payload, new bytes32[](3))), auditor);
        prove(id, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    // ---------------------------------------------------------------------------------------------------------- opening an operator

    function test_whoeverOpensFirst_bringsTheDescriptor_andTheSecondNeedNot() public {
        for (uint256 first = 0; first < 2; ++first) {
            (GameId id, Run memory wrong) = toOperator(2, Phase.OPENING);
            Run[2] memory runs = [wrong, _honest];
            GameView memory shown = game.getGame(id);
            vm.assertEq(shown.operator.descriptorHash, 0, "not known yet");
            OperatorOpening memory opening = operatorOpening(shown, runs[first]);
            game.openOperator(id, Side(first), opening);
            shown = game.getGame(id);
            vm.assertEq(shown.operator.descriptorHash, keccak256(Toy.descriptor(2)), "known");
            vm.assertEq(shown.operator.chunks, 3, "chunks");
            vm.assertEq(shown.operator.elements, 5, "elements");
            opening = operatorOpening(shown, runs[1 - first]);
            (opening.descriptor, opening.descriptorProof) = (new bytes(0), new bytes32[](0));
            game.openOperator(id, Side(1 - first), opening);
            shown = game.getGame(id);
            vm.assertEq(Node.unwrap(shown.levels[3].roots[0]), Trees.root(Runs.outputTree(wrong, STEP, 2)), "the trainer's");
            vm.assertEq(Node.unwrap(shown.levels[3].roots[1]), Trees.root(Runs.outputTree(_honest, STEP, 2)), "the challenger's");
            vm.assertEq(shown.levels[3].leafCount, 3, "chunks bind the tree");
            assertPhase(id, Phase.BISECTION);
        }
    }

    function test_anOutputOfOneChunk_isItsOwnLeaf() public {
        (GameId id, Run memory wrong) = toOperator(1, Phase.OPENING);
        open(id, Side.TRAINER, wrong);
        open(id, Side.CHALLENGER, _honest);
        assertPhase(id, Phase.POSTING);
        vm.assertEq(game.getGame(id).search.height, 0, "no search");
    }

    function test_anotherDescriptor_isRefused() public {
        (GameId id, Run memory wrong) = toOperator(2, Phase.OPENING);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), wrong);
        opening.descriptor = Toy.descriptor(4);
        refuse(id, opening, Merkle.WrongProof.selector);
        opening.descriptorProof = Trees.proof(Trees.buildBytes(program()), 4);
        refuse(id, opening, Merkle.WrongProof.selector);
        opening = operatorOpening(game.getGame(id), wrong);
        opening.descriptor = bytes.concat(opening.descriptor, hex"00");
        refuse(id, opening, Merkle.WrongProof.selector);
        opening = operatorOpening(game.getGame(id), wrong);
        opening.descriptorProof = new bytes32[](2);
        refuse(id, opening, Merkle.WrongProofLength.selector);
    }

    function refuse(GameId id, OperatorOpening memory opening, bytes4 why) private {
        expect(why, abi.encodeCall(game.openOperator, (id, Side.TRAINER, opening)), trainer);
        vm.assertEq(game.getGame(id).operator.descriptorHash, 0, "nothing is known");
    }

    function test_anotherOutputOrItsWrongRow_isRefused() public {
        (GameId id, Run memory wrong) = toOperator(2, Phase.OPENING);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), wrong);
        opening.tensorRoot = Trees.root(Runs.outputTree(_honest, STEP, 2));
        refuse(id, opening, IVerificationGame.WrongLeafPayload.selector);
        opening = operatorOpening(game.getGame(id), wrong);
        (opening.row[0], opening.row[1]) = (opening.row[1], opening.row[0]);
        refuse(id, opening, Bisections.NotTheRow.selector);
        delete opening.row;
        refuse(id, opening, Bisections.WrongRowLength.selector);

        (id, wrong) = toOperator(1, Phase.OPENING);
        opening = operatorOpening(game.getGame(id), wrong);
        opening.row = new Node[](1);
        refuse(id, opening, Bisections.WrongRowLength.selector);
    }

    function test_openingAnOperatorTwice_reverts() public {
        (GameId id, Run memory wrong) = toOperator(2, Phase.OPENING);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), wrong);
        game.openOperator(id, Side.TRAINER, opening);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyOpened.selector, id, Side.TRAINER));
        game.openOperator(id, Side.TRAINER, opening);
    }

    // ------------------------------------------------------------------------------------------------------- levels, phases, whole games

    function test_everyCall_belongsToItsPhaseAndLevel() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, Toy.SUM, 1, 1));
        (, GameId id) = dispute(wrong, _honest);
        uint256 stops = 0;
        while (game.getGame(id).phase != Phase.OVER) {
            refuseAllOthers(id);
            ++stops;
            step(id, wrong, _honest);
        }
        vm.assertEq(stops, 1 + 2 + 1 + 2 + 1 + 2 + 1 + 1 + 2 + 1 + 1, "every state of the game");
        refuseAllOthers(id);
    }

    /// @dev Calls of another phase, or of another level of the same phase, fail for that reason before anything else is looked at.
    function refuseAllOthers(GameId id) private {
        GameView memory shown = game.getGame(id);
        (Phase phase, Level level) = (shown.phase, levelOf(shown));
        (bytes[9] memory calls, Phase[9] memory phases) = emptyCalls(id);
        for (uint256 i = 0; i < calls.length; ++i) {
            if (phases[i] != phase) {
                expect(IVerificationGame.WrongPhase.selector, calls[i], referee);
            } else if (phase == Phase.OPENING || phase == Phase.PROVING) {
                bool right = i == 1
                    ? level <= Level.STEP
                    : i == 2 || i == 4 ? level == Level.OPERATOR : i == 3 || i == 8 ? level == Level.PARTIAL : level == Level.CHUNK;
                if (!right) expect(IVerificationGame.WrongLevel.selector, calls[i], referee);
            }
        }
    }

    function emptyCalls(GameId id) private view returns (bytes[9] memory calls, Phase[9] memory phases) {
        (PartialsOpening memory partials, ElementProof memory element, SegmentProof memory segment) = nothing();
        Descent memory move;
        calls[0] = abi.encodeCall(game.bisect, (id, move));
        LeafOpening memory leaf;
        NextRoot memory next;
        calls[1] = abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, next));
        OperatorOpening memory operator;
        calls[2] = abi.encodeCall(game.openOperator, (id, Side.TRAINER, operator));
        calls[3] = abi.encodeCall(game.openPartials, (id, Side.TRAINER, partials));
        calls[4] = abi.encodeCall(game.proveStore, (id, 0, new bytes32[](0)));
        calls[5] = abi.encodeCall(game.proveElement, (id, element));
        calls[6] = abi.encodeCall(game.disputeSum, (id, "", "", 0));
        calls[7] = abi.encodeCall(game.postChunk, (id, ""));
        calls[8] = abi.encodeCall(game.proveSegment, (id, segment));
        phases = [
            Phase.BISECTION,
            Phase.OPENING,
            Phase.OPENING,
            Phase.OPENING,
            Phase.PROVING,
            Phase.PROVING,
            Phase.PROVING,
            Phase.POSTING,
            Phase.PROVING
        ];
    }

    function nothing() private pure returns (PartialsOpening memory, ElementProof memory, SegmentProof memory) {}

    function test_aGameThatIsOver_orVoid_movesNoMore_atAnyLevel() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, 2, 1, 0));
        (, GameId first) = dispute(wrong, _honest);
        GameId second = challengeRun(game.getGame(first).job, stranger, _honest);
        playTo(second, Level.CHUNK, Phase.POSTING, wrong, _honest);
        bytes memory chunk = chunkOf(game.getGame(second), wrong);
        play(first, wrong, _honest);
        assertJob(game.getGame(first).job, JobStatus.REJECTED);
        expect(IVerificationGame.WrongJobStatus.selector, abi.encodeCall(game.postChunk, (second, chunk)), trainer);
        game.releaseBond(second);
        expect(IVerificationGame.WrongPhase.selector, abi.encodeCall(game.postChunk, (second, chunk)), trainer);
        vm.assertEq(game.creditOf(stranger), CHALLENGER_BOND, "its bond");
    }
}
