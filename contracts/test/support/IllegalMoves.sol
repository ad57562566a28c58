// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descent, Side} from "../../src/game/Bisection.sol";
import {GameId, Phase} from "../../src/Types.sol";
import {Level} from "../../src/game/Level.sol";
import {Node} from "../../src/Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "../../src/game/Moves.sol";
import {GameView} from "../../src/Views.sol";
import {Players} from "./Players.sol";
import {Run, Runs} from "./Runs.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice Calls that no rule allows, whatever the state of the game: junk, proofs of other things, right moves by strangers.
abstract contract IllegalMoves is Players {
    uint256 public constant ILLEGAL_KINDS = 16;

    address public liar;
    address public cheat;

    /// @param runs the run of each side, by Side
    /// @param kind below `ILLEGAL_KINDS`
    /// @return the call, and its sender
    function illegalCall(GameId id, GameView memory shown, Run[2] memory runs, uint256 kind, bytes32 junk)
        internal
        view
        returns (bytes memory, address)
    {
        return kind < 9 ? illegalAbove(id, shown, runs, kind, junk) : illegalBelow(id, shown, runs, kind, junk);
    }

    function illegalAbove(GameId id, GameView memory shown, Run[2] memory runs, uint256 kind, bytes32 junk)
        private
        view
        returns (bytes memory, address)
    {
        if (kind < 3) {
            return (abi.encodeCall(game.bisect, (id, illegalDescent(id, shown, runs, kind, junk))), kind == 1 ? cheat : liar);
        }
        Run memory claimed = runs[uint8(Side.TRAINER)];
        LeafOpening memory leaf = LeafOpening(junk, initialState, new bytes32[](0));
        if (kind == 3) return (abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, nextRoot0(shown, claimed))), shown.trainer);
        if (kind == 4) return (abi.encodeCall(game.proveStore, (id, junk, leaf.agreedProof)), liar);
        if (kind == 5 && shown.phase == Phase.OPENING && levelOf(shown) < Level.OPERATOR) {
            // Everything right, but sent by a stranger.
            leaf = leafOpening(shown, claimed);
            return (abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, nextRoot(shown, claimed))), stranger);
        }
        if (kind == 6) return (abi.encodeCall(game.adjudicate, (id, uint64(uint256(junk)))), liar);
        // Without their bonds.
        bytes32 hash = hashOf(shown.job);
        if (kind == 7) return (abi.encodeCall(game.challenge, (shown.job, hash, claimedIn(shown.job), Node.wrap(junk))), stranger);
        return (abi.encodeCall(game.commit, (shown.job, hash, nextRoot0(shown, claimed), junk, "l", "m")), stranger);
    }

    /// @dev Junk; the right rows of the place with one node that is junk; and the right rows with junk below them.
    function illegalDescent(GameId id, GameView memory shown, Run[2] memory runs, uint256 kind, bytes32 junk)
        private
        view
        returns (Descent memory move)
    {
        if (kind == 0 || shown.phase != Phase.BISECTION) {
            (move.mine, move.theirs) = (new Node[](1 + uint256(junk) % 20), new Node[](1 + uint256(junk) % 16));
            move.mine[0] = Node.wrap(junk);
            return move;
        }
        move = nextBisection(id, runs[uint8(shown.search.turn)]);
        if (kind == 2) {
            move.next = new Node[](move.next.length > 0 ? move.next.length : 2);
            move.next[0] = Node.wrap(junk);
        } else if (uint256(junk) % 2 == 0) {
            move.mine[uint256(junk) % move.mine.length] = Node.wrap(junk);
        } else {
            move.theirs[uint256(junk) % move.theirs.length] = Node.wrap(junk);
        }
    }

    function nextRoot0(GameView memory shown, Run memory run) private pure returns (NextRoot memory next) {
        next.root = Node.wrap(run.states[0]);
        if (levelOf(shown) == Level.CHECKPOINT) next.lastLeafProof = Trees.proof(Runs.stepTree(run, 0), run.interval - 1);
    }

    function illegalBelow(GameId id, GameView memory shown, Run[2] memory runs, uint256 kind, bytes32 junk)
        private
        view
        returns (bytes memory, address)
    {
        Run memory wrong = runs[uint8(Side.CHALLENGER)];
        if (kind == 9 && shown.phase == Phase.OPENING && levelOf(shown) == Level.OPERATOR) {
            // Another output than the one below the leaf.
            OperatorOpening memory operator = operatorOpening(shown, wrong);
            operator.tensorRoot = junk;
            return (abi.encodeCall(game.openOperator, (id, Side.CHALLENGER, operator)), shown.challenger);
        }
        if (kind == 10) return (abi.encodeCall(game.postChunk, (id, abi.encode(junk))), shown.trainer);
        if (kind == 11 && shown.phase == Phase.PROVING && levelOf(shown) == Level.CHUNK) {
            // The trainer's chunk is what it has posted.
            ElementProof memory element = elementProof(shown, wrong, posted[id]);
            element.chunk = abi.encode(junk);
            return (abi.encodeCall(game.proveElement, (id, element)), shown.challenger);
        }
        if (kind == 12 && shown.operator.segments > 1 && shown.phase == Phase.PROVING && levelOf(shown) == Level.CHUNK) {
            // Everything right, but sent by a stranger.
            ElementProof memory named = elementProof(shown, wrong, posted[id]);
            return (abi.encodeCall(game.disputeSum, (id, named.descriptor, named.chunk, named.position)), stranger);
        }
        if (kind == 13 && shown.phase == Phase.OPENING && levelOf(shown) == Level.PARTIAL) {
            PartialsOpening memory opening = partialsOpening(shown, wrong);
            return (abi.encodeCall(game.openPartials, (id, Side.CHALLENGER, opening)), shown.trainer);
        }
        if (kind == 14 && shown.phase == Phase.PROVING && levelOf(shown) == Level.PARTIAL) {
            SegmentProof memory segment = segmentProof(shown, wrong);
            segment.before.words[2] = junk | bytes32(uint256(1));
            return (abi.encodeCall(game.proveSegment, (id, segment)), shown.challenger);
        }
        if (kind == 15 && shown.phase == Phase.PROVING && levelOf(shown) == Level.OPERATOR) {
            // What another operator has computed is not what the store keeps.
            Tree memory trace = Runs.traceTree(wrong, stepAt(shown, wrong));
            bytes32 other = Trees.root(Runs.outputTree(wrong, stepAt(shown, wrong), 0));
            return (abi.encodeCall(game.proveStore, (id, other, Trees.proof(trace, 0))), shown.challenger);
        }
        ElementProof memory nothing;
        return (abi.encodeCall(game.proveElement, (id, nothing)), liar);
    }
}
