// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Finding, Outline, Partial, Question, Setting} from "../adjudication/IAdjudicator.sol";
import {Openings} from "../adjudication/Openings.sol";
import {Bisections, Search, Side} from "./Bisection.sol";
import {Transitions} from "./Transitions.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {GameId, Outcome, Phase} from "../Types.sol";
import {Level} from "./Level.sol";
import {Merkle, Node} from "../Merkle.sol";
import {ElementProof, OperandRoot, SegmentProof} from "./Moves.sol";
import {Game, Job, Records} from "../Records.sol";
import {Time, Timestamp} from "../Time.sol";
import {Trace} from "./Trace.sol";
import {TrainingSpec} from "../TrainingSpec.sol";
import {ElementView, OperatorView} from "../Views.sol";

/// @title Proofs of the challenger, and the trainer's chunk for them
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
/// @dev A call of the adjudicator that fails decides nothing: it reverts the move. The adjudicator is called as a view, so it changes
///      nothing, and calls back into nothing that moves.
library Proofs {
    using Bisections for Search;
    using Transitions for Game;
    using Transitions for Job;
    using Records for Game;

    /// @notice `IVerificationGame.proveStore`, in phase PROVING.
    function proveStore(Job storage job, Game storage game, GameId gameId, bytes32 payload, bytes32[] calldata proof)
        external
        returns (Outcome)
    {
        game.requireLevel(gameId, Level.OPERATOR);
        game.stopClock(gameId, Side.CHALLENGER);
        TrainingSpec storage spec = job.spec;
        uint64 index = game.search.index;
        // All operators agree, so a proof into either trace speaks for both; the challenger's, because the challenger has it.
        Merkle.requireLeaf(
            game.roots[Level.OPERATOR][uint8(Side.CHALLENGER)], payload, Trace.storeOf(spec, index), Trace.leafCount(spec), proof
        );
        emit IVerificationGame.StoreProven(gameId, index - Trace.half(spec), payload);
        return verdict(Merkle.leaf(payload) == game.search.leafOf(Side.TRAINER));
    }

    /// @notice `IVerificationGame.postChunk`, in phase POSTING.
    function postChunk(Job storage job, Game storage game, GameId gameId, bytes calldata chunk) external {
        game.stopClock(gameId, Side.TRAINER);
        requireChunk(job.spec, game, chunk);
        emit IVerificationGame.ChunkPosted(gameId, game.search.index, chunk);
        game.startProving();
    }

    /// @notice `IVerificationGame.proveElement`, in phase PROVING.
    function proveElement(Job storage job, Game storage game, GameId gameId, ElementProof calldata proof)
        external
        returns (Outcome)
    {
        game.requireLevel(gameId, Level.CHUNK);
        uint64 segments = game.operator.segments;
        if (segments > 1) revert IVerificationGame.WrongNumberOfSegments(gameId, segments);
        game.stopClock(gameId, Side.CHALLENGER);
        game.requireDescriptor(proof.descriptor);
        (uint64 element, uint64 claimed) = elementIn(job.spec, game, proof.chunk, proof.position);
        (Finding finding, uint64 bits) = compute(job, game, proof, element);
        emit IVerificationGame.ElementProven(gameId, element, claimed, finding, bits);
        if (finding == Finding.UNDECIDED) {
            // INVARIANT: which element goes to the referee is a free choice, and so the challenger's own: a friend of the trainer would
            // choose a right one.
            job.requireParty(game, Side.CHALLENGER);
            game.disputed = ElementView(true, element, claimed);
            callReferee(job, game, gameId);
            return Outcome.NONE;
        }
        // A right element decides nothing: the challenger may still prove another one wrong.
        if (finding == Finding.VALUE && bits == claimed) revert IVerificationGame.ElementIsRight(element, bits);
        return Outcome.CHALLENGER_WON;
    }

    function compute(Job storage job, Game storage game, ElementProof calldata proof, uint64 element)
        private
        view
        returns (Finding, uint64)
    {
        Question memory asked = question(job, game, proof.descriptor, proof.operands, element);
        return job.spec.adjudicator.compute(settingOf(job, game), asked, proof.openings);
    }

    /// @notice `IVerificationGame.disputeSum`, in phase PROVING.
    function disputeSum(
        Job storage job,
        Game storage game,
        GameId gameId,
        bytes calldata descriptor,
        bytes calldata chunk,
        uint32 position
    ) external {
        game.requireLevel(gameId, Level.CHUNK);
        // INVARIANT: the element is a free choice, and so the challenger's own.
        job.requireParty(game, Side.CHALLENGER);
        uint64 segments = game.operator.segments;
        if (segments < 2) revert IVerificationGame.WrongNumberOfSegments(gameId, segments);
        game.stopClock(gameId, Side.CHALLENGER);
        game.requireDescriptor(descriptor);
        (uint64 element, uint64 claimed) = elementIn(job.spec, game, chunk, position);
        game.disputed = ElementView(true, element, claimed);
        emit IVerificationGame.ElementDisputed(gameId, element, claimed);
        game.path[uint8(Level.CHUNK)] = game.search.index;
        game.level = Level.PARTIAL;
        game.startOpening();
    }

    /// @notice `IVerificationGame.proveSegment`, in phase PROVING.
    function proveSegment(Job storage job, Game storage game, GameId gameId, SegmentProof calldata proof)
        external
        returns (Outcome)
    {
        game.requireLevel(gameId, Level.PARTIAL);
        game.stopClock(gameId, Side.CHALLENGER);
        game.requireDescriptor(proof.descriptor);
        requireBefore(game, proof.before, proof.beforeProof);
        (Finding finding, Partial memory afterwards) = reduce(job, game, proof);
        uint64 segment = game.search.index;
        emit IVerificationGame.SegmentProven(gameId, segment, finding, afterwards);
        if (finding == Finding.UNDECIDED) revert IVerificationGame.SegmentUndecided(gameId, segment);
        Node leaf = Merkle.leafOfBytes(abi.encode(afterwards));
        return verdict(finding == Finding.VALUE && leaf == game.search.leafOf(Side.TRAINER));
    }

    function reduce(Job storage job, Game storage game, SegmentProof calldata proof)
        private
        view
        returns (Finding, Partial memory)
    {
        Question memory asked = question(job, game, proof.descriptor, proof.operands, game.disputed.element);
        return job.spec.adjudicator.reduceSegment(settingOf(job, game), asked, game.search.index, proof.before, proof.openings);
    }

    /// @dev Before segment 0 nothing has been added up. Before any other stands the leaf before, on which both trees agree.
    function requireBefore(Game storage game, Partial calldata before, bytes32[] calldata proof) private view {
        uint64 segment = game.search.index;
        if (segment > 0) {
            Node root = game.roots[Level.PARTIAL][uint8(Side.CHALLENGER)];
            Merkle.requireLeafOfBytes(root, abi.encode(before), segment - 1, game.operator.segments, proof);
            return;
        }
        if (proof.length != 0) revert Merkle.WrongProofLength(proof.length, 0);
        for (uint256 i = 0; i < before.words.length; ++i) {
            if (before.words[i] != 0) revert IVerificationGame.WrongAgreedPayload(before.words[i], 0);
        }
    }

    /// @dev The number in the whole output, and the bits, of element `position` of the trainer's chunk. The chunk is given again.
    function elementIn(TrainingSpec storage spec, Game storage game, bytes calldata chunk, uint32 position)
        private
        view
        returns (uint64 element, uint64 bits)
    {
        requireChunk(spec, game, chunk);
        uint256 width = game.operator.width;
        uint256 count = chunk.length / width;
        if (position >= count) revert IVerificationGame.PositionOutOfRange(position, count);
        bits = Openings.decode(chunk, position * width, width);
        // INVARIANT: the chunk ends inside of the output, and so does the element.
        element = uint64(uint256(game.search.index) * spec.chunkSize / width + position);
    }

    /// @dev INVARIANT: the exact length, because leaves are payloads of any length.
    function requireChunk(TrainingSpec storage spec, Game storage game, bytes calldata chunk) private view {
        uint256 size = spec.chunkSize;
        uint256 left = uint256(game.operator.elements) * game.operator.width - game.search.index * size;
        uint256 expected = left < size ? left : size;
        if (chunk.length != expected) revert IVerificationGame.WrongChunkLength(chunk.length, expected);
        Node computed = Merkle.leafOfBytes(chunk);
        Node claimed = game.search.leafOf(Side.TRAINER);
        if (computed != claimed) revert IVerificationGame.WrongLeafPayload(computed, claimed);
    }

    function settingOf(Job storage job, Game storage game) private view returns (Setting memory) {
        uint64 step = game.path[uint8(Level.CHECKPOINT)] * job.spec.interval + game.path[uint8(Level.STEP)];
        return Setting(job.spec, step, game.agreed);
    }

    /// @dev Each operand's root is proven to be the output of an operator before the disputed one. Both sides agree on those, so a proof
    ///      into either trace holds for both. It goes into the challenger's trace, because the challenger has the siblings.
    function question(Job storage job, Game storage game, bytes calldata descriptor, OperandRoot[] calldata given, uint64 element)
        private
        view
        returns (Question memory)
    {
        TrainingSpec storage spec = job.spec;
        uint64[] memory operands = spec.adjudicator.outline(descriptor, spec.chunkSize).operands;
        if (given.length != operands.length) revert IVerificationGame.WrongNumberOfOperands(given.length, operands.length);
        bytes32[] memory roots = new bytes32[](given.length);
        uint64 operator = game.path[uint8(Level.OPERATOR)];
        Node trace = game.roots[Level.OPERATOR][uint8(Side.CHALLENGER)];
        uint64 count = Trace.leafCount(spec);
        for (uint256 i = 0; i < given.length; ++i) {
            // INVARIANT: leaves from the disputed one on are not agreed; the trainer could have written there what it likes.
            if (operands[i] >= operator) revert IVerificationGame.OperandNotBefore(operands[i], operator);
            roots[i] = given[i].root;
            // No chunk opens into a root of zero, so such an operand is not read, and need not be proven.
            if (roots[i] == 0 && given[i].proof.length == 0) continue;
            Merkle.requireLeaf(trace, roots[i], operands[i], count, given[i].proof);
        }
        return Question(descriptor, roots, element);
    }

    function callReferee(Job storage job, Game storage game, GameId gameId) private {
        game.phase = Phase.REFEREE;
        Timestamp deadline = Time.now_().add(job.terms.refereeAllowance);
        game.refereeDeadline = deadline;
        emit IVerificationGame.RefereeCalled(gameId, job.spec.referee, game.disputed.element, game.disputed.claimed, deadline);
    }

    function verdict(bool trainerIsRight) private pure returns (Outcome) {
        return trainerIsRight ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON;
    }
}
