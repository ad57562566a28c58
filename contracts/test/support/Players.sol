// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Partial} from "../../src/adjudication/IAdjudicator.sol";
import {Bisection, Descent, Side} from "../../src/game/Bisection.sol";
import {IVerificationGame} from "../../src/IVerificationGame.sol";
import {GameId, Phase} from "../../src/Types.sol";
import {Level} from "../../src/game/Level.sol";
import {Node} from "../../src/Merkle.sol";
import {
    ElementProof,
    LeafOpening,
    NextRoot,
    OperandRoot,
    OperatorOpening,
    PartialsOpening,
    SegmentProof
} from "../../src/game/Moves.sol";
import {GameView, LevelView} from "../../src/Views.sol";
import {GameTest} from "./GameTest.sol";
import {Run, Runs} from "./Runs.sol";
import {Toy} from "./Toy.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Parties with whole runs in memory that play whole games. Every move follows from the game's view, the party's run and, of the
///         trainer's, the chunk that it has posted.
abstract contract Players is GameTest {
    /// The chunk that the trainer has posted.
    mapping(GameId id => bytes) internal posted;
    /// The row that the next move needs, as the side that waits has shown it below the root of the claim.
    mapping(GameId id => Node[]) internal shownRow;

    // ------------------------------------------------------------------------------------------------------ where the game stands

    function current(GameView memory shown) internal pure returns (LevelView memory) {
        return shown.levels[shown.levels.length - 1];
    }

    function levelOf(GameView memory shown) internal pure returns (Level) {
        return current(shown).level;
    }

    /// @notice The disputed step, counted from 0, from level OPERATOR on.
    function stepAt(GameView memory shown, Run memory run) internal pure returns (uint256) {
        return shown.levels[0].index * run.interval + shown.levels[1].index;
    }

    /// @notice The disputed operator, from level CHUNK on, or when its leaf is found.
    function operatorAt(GameView memory shown) internal pure returns (uint256) {
        return shown.levels[2].index;
    }

    /// @notice The tree in which the game now searches, as the run has it.
    function treeOf(GameView memory shown, Run memory run) internal pure returns (Tree memory) {
        Level level = levelOf(shown);
        if (level == Level.CHECKPOINT) return Runs.checkpointTree(run);
        if (level == Level.STEP) return Runs.stepTree(run, shown.levels[0].index);
        uint256 s = stepAt(shown, run);
        if (level == Level.OPERATOR) return Runs.traceTree(run, s);
        return level == Level.CHUNK ? Runs.outputTree(run, s, operatorAt(shown)) : Runs.partialTree(run, s);
    }

    /// @notice The program of the job, for tests of another one.
    function descriptorOf(uint256 q) internal view virtual returns (bytes memory) {
        return Toy.descriptor(q);
    }

    function program() internal view returns (bytes[] memory descriptors) {
        descriptors = new bytes[](Toy.OPERATORS);
        for (uint256 q = 0; q < descriptors.length; ++q) {
            descriptors[q] = descriptorOf(q);
        }
    }

    function setUp() public virtual override {
        super.setUp();
        programRoot = Trees.root(Trees.buildBytes(program()));
    }

    // ------------------------------------------------------------------------------------------------------------------ the moves

    function nextBisection(GameId id, Run memory run) internal view returns (Descent memory) {
        GameView memory shown = game.getGame(id);
        bool atTheTop = levelOf(shown) == Level.CHECKPOINT && 1 << shown.search.height >= current(shown).leafCount;
        return nextBisectionIn(shown.search, treeOf(shown, run), atTheTop ? claimedRow[shown.job] : shownRow[id]);
    }

    /// @param theirs the row that the other side has shown
    function nextBisectionIn(Bisection memory search, Tree memory tree, Node[] memory theirs)
        internal
        pure
        returns (Descent memory move)
    {
        (move.mine, move.theirs) = (rowIn(tree, search.height, search.index), theirs);
        uint256 place = 0;
        while (move.mine[place] == theirs[place]) ++place;
        uint256 below = search.height - Trees.stride(search.height);
        move.next = rowIn(tree, below, search.index + (place << below));
    }

    function rootRow(Tree memory tree) internal pure returns (Node[] memory) {
        return rowIn(tree, Trees.height(tree), 0);
    }

    function leafOpening(GameView memory shown, Run memory run) internal pure returns (LeafOpening memory leaf) {
        uint64 index = shown.search.index;
        bytes32[] memory payloads = Runs.payloads(run, levelOf(shown) == Level.STEP, shown.levels[0].index);
        leaf.payload = payloads[index];
        leaf.agreed = index == 0 ? shown.agreed : payloads[index - 1];
        if (index > 0) leaf.agreedProof = Trees.proof(treeOf(shown, run), index - 1);
    }

    function nextRoot(GameView memory shown, Run memory run) internal pure returns (NextRoot memory) {
        if (levelOf(shown) == Level.CHECKPOINT) {
            Tree memory below = Runs.stepTree(run, shown.search.index);
            return asNextRoot(below);
        }
        Tree memory trace = Runs.traceTree(run, stepAt(shown, run));
        return traceRoot(trace);
    }

    /// @notice The operators' half of a trace, with the row of the whole.
    function traceRoot(Tree memory trace) internal pure returns (NextRoot memory next) {
        next.root = Node.wrap(trace.rows[trace.rows.length - 2][0]);
        next.row = rootRow(trace);
    }

    function operatorOpening(GameView memory shown, Run memory run) internal view returns (OperatorOpening memory opening) {
        uint256 q = operatorAt(shown);
        Tree memory output = Runs.outputTree(run, stepAt(shown, run), q);
        opening.descriptor = descriptorOf(q);
        opening.descriptorProof = Trees.proof(Trees.buildBytes(program()), q);
        opening.tensorRoot = Trees.root(output);
        opening.row = rootRow(output);
    }

    function chunkOf(GameView memory shown, Run memory run) internal pure returns (bytes memory) {
        return Toy.chunk(Runs.computed(run, stepAt(shown, run))[operatorAt(shown)], shown.levels[3].index);
    }

    /// @notice The tensor root that the disputed slot's store keeps, and its proof.
    function storeProof(GameView memory shown, Run memory run) internal pure returns (bytes32 payload, bytes32[] memory proof) {
        uint256 s = stepAt(shown, run);
        uint256 store = shown.search.index - Toy.HALF + Toy.OPERATORS - Toy.SLOTS;
        payload = Trees.root(Runs.outputTree(run, s, store));
        proof = Trees.proof(Runs.traceTree(run, s), store);
    }

    function operandRoots(GameView memory shown, Run memory run) internal pure returns (OperandRoot[] memory roots) {
        uint256 s = stepAt(shown, run);
        Tree memory trace = Runs.traceTree(run, s);
        uint64[] memory operands = Toy.operands(operatorAt(shown));
        roots = new OperandRoot[](operands.length);
        for (uint256 i = 0; i < roots.length; ++i) {
            roots[i] = OperandRoot(Trees.root(Runs.outputTree(run, s, operands[i])), Trees.proof(trace, operands[i]));
        }
    }

    /// @notice About the first element of the posted chunk that the run has otherwise.
    function elementProof(GameView memory shown, Run memory run, bytes memory chunk)
        internal
        view
        returns (ElementProof memory proof)
    {
        uint256 q = operatorAt(shown);
        proof.descriptor = descriptorOf(q);
        proof.chunk = chunk;
        bytes memory mine = chunkOf(shown, run);
        uint256 difference = 0;
        while (mine[difference] == chunk[difference]) ++difference;
        proof.position = uint32(difference / 4);
        proof.operands = operandRoots(shown, run);
        uint256 s = stepAt(shown, run);
        uint256 element = 2 * shown.levels[3].index + proof.position;
        proof.openings = Toy.openings(q, element, Runs.before(run, s), Runs.computed(run, s));
    }

    function partialsOpening(GameView memory shown, Run memory run) internal view returns (PartialsOpening memory opening) {
        bytes32[3][] memory results = Runs.partials(run, stepAt(shown, run));
        Tree memory tree = Toy.partialTree(results);
        opening.descriptor = descriptorOf(Toy.SUM);
        opening.root = Node.wrap(Trees.root(tree));
        opening.last = Partial(results[results.length - 1]);
        opening.lastLeafProof = Trees.proof(tree, results.length - 1);
        opening.row = rootRow(tree);
    }

    function segmentProof(GameView memory shown, Run memory run) internal view returns (SegmentProof memory proof) {
        uint256 s = stepAt(shown, run);
        uint256 segment = shown.search.index;
        proof.descriptor = descriptorOf(Toy.SUM);
        if (segment > 0) {
            proof.before = Partial(Runs.partials(run, s)[segment - 1]);
            proof.beforeProof = Trees.proof(Runs.partialTree(run, s), segment - 1);
        }
        proof.operands = operandRoots(shown, run);
        proof.openings = Toy.openings(Toy.SUM, segment, Runs.before(run, s), Runs.computed(run, s));
    }

    // --------------------------------------------------------------------------------------------------------------- sending them

    /// @dev Moves that hashes force are sent by a stranger.
    function bisect(GameId id, Run memory run) internal {
        Descent memory move = nextBisection(id, run);
        vm.prank(stranger);
        game.bisect(id, move);
        shownRow[id] = move.next;
    }

    function open(GameId id, Side side, Run memory run) internal {
        GameView memory shown = game.getGame(id);
        Level level = levelOf(shown);
        address party = side == Side.TRAINER ? shown.trainer : shown.challenger;
        if (level < Level.OPERATOR) {
            (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, run), nextRoot(shown, run));
            vm.prank(party);
            game.openLevel(id, side, leaf, next);
            keepRow(id, shown, side, next.row);
        } else if (level == Level.OPERATOR) {
            OperatorOpening memory opening = operatorOpening(shown, run);
            vm.prank(stranger);
            game.openOperator(id, side, opening);
            keepRow(id, shown, side, opening.row);
        } else {
            PartialsOpening memory opening = partialsOpening(shown, run);
            vm.prank(party);
            game.openPartials(id, side, opening);
            keepRow(id, shown, side, opening.row);
        }
    }

    /// @dev Only the side that opens first shows its row.
    function keepRow(GameId id, GameView memory before, Side side, Node[] memory row) internal {
        if (!before.deadlines[side == Side.TRAINER ? 1 : 0].isNever()) shownRow[id] = row;
    }

    function postChunk(GameId id, Run memory run) internal {
        bytes memory chunk = chunkOf(game.getGame(id), run);
        posted[id] = chunk;
        vm.prank(stranger);
        game.postChunk(id, chunk);
    }

    /// @return proven false if the run has nothing to prove, because the trainer's element is right; all else reverts
    function prove(GameId id, Run memory run) internal returns (bool proven) {
        GameView memory shown = game.getGame(id);
        Level level = levelOf(shown);
        if (level == Level.OPERATOR) {
            (bytes32 payload, bytes32[] memory proof) = storeProof(shown, run);
            vm.prank(stranger);
            game.proveStore(id, payload, proof);
        } else if (level == Level.PARTIAL) {
            SegmentProof memory proof = segmentProof(shown, run);
            vm.prank(stranger);
            game.proveSegment(id, proof);
        } else if (shown.operator.segments > 1) {
            ElementProof memory named = elementProof(shown, run, posted[id]);
            vm.prank(shown.challenger);
            game.disputeSum(id, named.descriptor, named.chunk, named.position);
        } else {
            return proveElement(id, elementProof(shown, run, posted[id]));
        }
        return true;
    }

    function proveElement(GameId id, ElementProof memory proof) private returns (bool) {
        vm.prank(stranger);
        try game.proveElement(id, proof) {
            return true;
        } catch (bytes memory why) {
            if (bytes4(why) == IVerificationGame.ElementIsRight.selector) return false;
            assembly ("memory-safe") {
                revert(add(why, 32), mload(why))
            }
        }
    }

    /// @notice The move that `side` owes, if it owes one and has one.
    function stepOf(GameId id, Side side, Run memory run) internal returns (bool moved) {
        GameView memory shown = game.getGame(id);
        if (shown.phase == Phase.OVER || shown.deadlines[uint8(side)].isNever()) return false;
        if (shown.phase == Phase.BISECTION) bisect(id, run);
        else if (shown.phase == Phase.OPENING) open(id, side, run);
        else if (shown.phase == Phase.POSTING) postChunk(id, run);
        else return prove(id, run);
        return true;
    }

    /// @notice The next move of whichever side owes one; the trainer's, if both do.
    function step(GameId id, Run memory claimed, Run memory challenged) internal returns (bool moved) {
        return stepOf(id, Side.TRAINER, claimed) || stepOf(id, Side.CHALLENGER, challenged);
    }

    /// @notice Both sides play as long as either has a move.
    function play(GameId id, Run memory claimed, Run memory challenged) internal returns (uint256 moves) {
        while (step(id, claimed, challenged)) ++moves;
    }

    /// @notice Both sides play to the end; who has no move left runs out of time.
    function playOut(GameId id, Run memory claimed, Run memory challenged) internal {
        play(id, claimed, challenged);
        if (game.getGame(id).phase != Phase.OVER) timeOut(id);
    }

    /// @notice Both sides play until a phase of a level.
    function playTo(GameId id, Level level, Phase phase, Run memory claimed, Run memory challenged) internal {
        while (true) {
            GameView memory shown = game.getGame(id);
            if (shown.phase == phase && levelOf(shown) == level) return;
            vm.assertTrue(step(id, claimed, challenged), "the game gets there");
        }
    }

    function playToOpening(GameId id, Level level, Run memory claimed, Run memory challenged) internal {
        playTo(id, level, Phase.OPENING, claimed, challenged);
    }

    /// @notice Both sides search in trees that need not be anybody's run.
    function playTrees(GameId id, Tree memory claimed, Tree memory challenged) internal {
        while (game.getGame(id).phase == Phase.BISECTION) {
            Bisection memory search = game.getGame(id).search;
            bool trainers = search.turn == Side.TRAINER;
            Node[] memory theirs = rowIn(trainers ? challenged : claimed, search.height, search.index);
            Descent memory move = nextBisectionIn(search, trainers ? claimed : challenged, theirs);
            game.bisect(id, move);
            shownRow[id] = move.next;
        }
    }
}
