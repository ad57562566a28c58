// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Finding, Outline} from "../adjudication/IAdjudicator.sol";
import {Bisections, Descent, Search, Side} from "./Bisection.sol";
import {Transitions} from "./Transitions.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {GameId, Outcome} from "../Types.sol";
import {Level} from "./Level.sol";
import {Merkle, Node} from "../Merkle.sol";
import {LeafOpening, NextRoot, OperatorOpening, PartialsOpening} from "./Moves.sol";
import {Game, Job, Records} from "../Records.sol";
import {Trace} from "./Trace.sol";
import {TrainingSpec} from "../TrainingSpec.sol";
import {OperatorView} from "../Views.sol";

/// @title The search of a level, and the openings that lead from one level to the next
/// @notice In phase OPENING each side opens its tree below the leaf, and the second to do so starts the search there. A contract of its
///         own for the sake of the limit on code; it works on the storage of the game that calls it.
library LevelOpenings {
    using Bisections for Search;
    using Bisections for Side;
    using Transitions for Game;
    using Transitions for Job;
    using Records for Game;

    /// @notice `IVerificationGame.openLevel`, in phase OPENING.
    function openLevel(
        Job storage job,
        Game storage game,
        GameId gameId,
        Side side,
        LeafOpening calldata leaf,
        NextRoot calldata next
    ) external returns (Outcome) {
        Level level = game.level;
        if (level > Level.STEP) revert IVerificationGame.WrongLevel(gameId, level);
        // INVARIANT: only a new root is a party's own choice, so only the party may make it; all other moves are forced by hashes.
        job.requireParty(game, side);
        game.stopOpening(gameId, side);
        openLeaf(job, game, gameId, side, leaf);
        return level == Level.CHECKPOINT
            ? openSteps(job, game, gameId, side, leaf.payload, next)
            : openTrace(job, game, gameId, side, leaf.payload, next);
    }

    /// @notice `IVerificationGame.bisect`, in phase BISECTION, by the side whose turn it is.
    function bisect(Job storage job, Game storage game, GameId gameId, Side mover, Descent calldata move)
        external
        returns (Outcome)
    {
        game.stopClock(gameId, mover);
        (uint64 from, uint8 height) = (game.search.index, game.search.height);
        game.search.advance(move);
        Level level = game.level;
        emit IVerificationGame.Bisected(gameId, level, mover, from, height, game.search.index, move.next);
        if (game.search.height == 0) return job.leafFound(game, gameId, level);
        game.startClock(mover.other());
        return Outcome.NONE;
    }

    function openLeaf(Job storage job, Game storage game, GameId gameId, Side side, LeafOpening calldata leaf) private {
        Level level = game.level;
        requirePayload(game, side, leaf.payload);
        uint64 index = game.search.index;
        if (index == 0) {
            // INVARIANT: what stands before leaf 0 was agreed above, in the end in the spec; it is never in a party's hands.
            bytes32 agreed = game.agreed;
            if (leaf.agreed != agreed) revert IVerificationGame.WrongAgreedPayload(leaf.agreed, agreed);
            if (leaf.agreedProof.length != 0) revert Merkle.WrongProofLength(leaf.agreedProof.length, 0);
        } else {
            // Left of the leftmost difference both trees are equal, so a proof into either root speaks for both.
            Node root = game.roots[level][uint8(side)];
            Merkle.requireLeaf(root, leaf.agreed, index - 1, game.leafCount(job.spec, level), leaf.agreedProof);
            game.agreed = leaf.agreed;
        }
        emit IVerificationGame.LeafOpened(gameId, level, side, leaf.payload, leaf.agreed);
    }

    function openSteps(Job storage job, Game storage game, GameId gameId, Side side, bytes32 payload, NextRoot calldata next)
        private
        returns (Outcome)
    {
        // INVARIANT: the last leaf below is the leaf that this side has claimed above; as the claims differ, so do the trees below.
        Merkle.requireLast(next.root, Merkle.leaf(payload), job.spec.interval, next.lastLeafProof);
        return opened(job, game, gameId, side, next.root, next.row);
    }

    function openTrace(Job storage job, Game storage game, GameId gameId, Side side, bytes32 stateRoot, NextRoot calldata next)
        private
        returns (Outcome)
    {
        if (next.lastLeafProof.length != 0) revert Merkle.WrongProofLength(next.lastLeafProof.length, 0);
        // INVARIANT: the right half is what this side has claimed above; as the claims differ, so do the traces.
        Node root = Merkle.join(next.root, Trace.stateHalf(job.spec, Node.wrap(stateRoot)));
        return opened(job, game, gameId, side, root, next.row);
    }

    /// @notice `IVerificationGame.openOperator`, in phase OPENING.
    function openOperator(Job storage job, Game storage game, GameId gameId, Side side, OperatorOpening calldata opening)
        external
        returns (Outcome)
    {
        game.requireLevel(gameId, Level.OPERATOR);
        game.stopOpening(gameId, side);
        requirePayload(game, side, opening.tensorRoot);
        if (!game.hasOpened(side.other())) readDescriptor(job.spec, game, gameId, opening);
        return opened(job, game, gameId, side, Node.wrap(opening.tensorRoot), opening.row);
    }

    /// @dev The program root forces the descriptor, so anyone may bring it.
    function readDescriptor(TrainingSpec storage spec, Game storage game, GameId gameId, OperatorOpening calldata opening) private {
        uint64 index = game.search.index;
        Merkle.requireLeafOfBytes(
            Node.wrap(spec.programRoot), opening.descriptor, index, spec.operatorCount, opening.descriptorProof
        );
        Outline memory outline = spec.adjudicator.outline(opening.descriptor, spec.chunkSize);
        bytes32 hash = keccak256(opening.descriptor);
        game.operator = OperatorView(hash, outline.width, outline.elements, outline.chunks, outline.segments);
        emit IVerificationGame.OperatorKnown(gameId, index, hash, outline.width, outline.elements, outline.chunks, outline.segments);
    }

    /// @notice `IVerificationGame.openPartials`, in phase OPENING.
    function openPartials(Job storage job, Game storage game, GameId gameId, Side side, PartialsOpening calldata opening)
        external
        returns (Outcome)
    {
        game.requireLevel(gameId, Level.PARTIAL);
        job.requireParty(game, side);
        game.stopOpening(gameId, side);
        game.requireDescriptor(opening.descriptor);
        requireResult(job.spec, game, side, opening);
        Node last = Merkle.leafOfBytes(abi.encode(opening.last));
        Merkle.requireLast(opening.root, last, game.operator.segments, opening.lastLeafProof);
        return opened(job, game, gameId, side, opening.root, opening.row);
    }

    /// @dev INVARIANT: the trainer's last running result comes to its claim and the challenger's does not, so the two trees differ.
    function requireResult(TrainingSpec storage spec, Game storage game, Side side, PartialsOpening calldata opening) private view {
        uint64 claimed = game.disputed.claimed;
        (Finding finding, uint64 bits) = spec.adjudicator.finish(opening.descriptor, opening.last, spec.roundingBits);
        bool comesToTheClaim = finding == Finding.VALUE && bits == claimed;
        if (comesToTheClaim != (side == Side.TRAINER)) {
            revert IVerificationGame.WrongLastPartial(side, finding, bits, claimed);
        }
    }

    function requirePayload(Game storage game, Side side, bytes32 payload) private view {
        Node computed = Merkle.leaf(payload);
        Node expected = game.search.leafOf(side);
        if (computed != expected) revert IVerificationGame.WrongLeafPayload(computed, expected);
    }

    /// @dev Keeps a side's root, and what the first of the two shows of it; the second one begins the search.
    function opened(Job storage job, Game storage game, GameId gameId, Side side, Node root, Node[] calldata row)
        private
        returns (Outcome)
    {
        Level below = game.level == Level.PARTIAL ? Level.PARTIAL : Level(uint8(game.level) + 1);
        game.roots[below][uint8(side)] = root;
        if (game.hasOpened(side.other())) {
            emit IVerificationGame.RootOpened(gameId, below, side, root, new Node[](0));
            return job.begin(game, gameId, below, side);
        }
        emit IVerificationGame.RootOpened(gameId, below, side, root, row);
        uint8 height = Merkle.depth(game.leafCount(job.spec, below));
        game.search.replaceLeaf(side, Bisections.shownOf(root, height, row));
        game.search.shownIn = uint32(block.number);
        return Outcome.NONE;
    }
}
