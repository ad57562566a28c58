// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, Family, Input} from "../src/adjudication/Descriptor.sol";
import {Finding, Partial} from "../src/adjudication/IAdjudicator.sol";
import {Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Node} from "../src/Merkle.sol";
import {ElementProof, OperandRoot, OperatorOpening, PartialsOpening, SegmentProof} from "../src/game/Moves.sol";
import {GameView} from "../src/Views.sol";
import {ChunkGame} from "./support/ChunkGame.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice The trainer's bytes of a chunk, and descriptors of all kinds.
contract ChunkTest is ChunkGame {
    // ---------------------------------------------------------------------------------------------------------------- posting a chunk

    function test_theTrainersChunk_isPostedByAnyone_andByNobodyElsesBytes() public {
        (GameId id, Run memory wrong) = toChunk(ADD, Phase.POSTING);
        bytes memory chunk = chunkOf(game.getGame(id), wrong);
        bytes memory other = chunkOf(game.getGame(id), honest);
        vm.expectRevert(
            abi.encodeWithSelector(
                IVerificationGame.WrongLeafPayload.selector, Trees.hashLeaf(other), game.getGame(id).search.nodes[0]
            )
        );
        game.postChunk(id, other);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongChunkLength.selector, 7, 8));
        game.postChunk(id, new bytes(7));
        vm.expectEmit(true, false, false, true, address(game));
        emit IVerificationGame.ChunkPosted(id, 0, chunk);
        vm.prank(stranger);
        game.postChunk(id, chunk);
        assertPhase(id, Phase.PROVING);
    }

    function test_aChunkOfAnotherLength_cannotBePosted_soItsOwnerRunsOutOfTime() public {
        for (uint256 i = 0; i < 3; ++i) {
            bytes[] memory chunks = honestChunks();
            chunks[i] = bytes.concat(chunks[i], hex"00");
            (GameId id,) = disputeOutput(chunks);
            vm.assertEq(game.getGame(id).search.index, i, "the chunk");
            vm.expectRevert(
                abi.encodeWithSelector(IVerificationGame.WrongChunkLength.selector, chunks[i].length, chunks[i].length - 1)
            );
            game.postChunk(id, chunks[i]);
            timeOut(id);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
        }
    }

    function test_aChunkBehindTheLast_losesForWhoHasIt() public {
        bytes[] memory chunks = new bytes[](4);
        for (uint256 i = 0; i < 3; ++i) {
            chunks[i] = honestChunks()[i];
        }
        chunks[3] = hex"00000000";
        (GameId id,) = disputeOutput(chunks);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PADDING);
    }

    function test_everyElementOfEveryChunk_isProvedWrong() public {
        for (uint256 element = 0; element < Toy.ELEMENTS; ++element) {
            uint256[] memory numbers = Runs.computed(honest, STEP)[ADD];
            numbers[element] += 3;
            bytes[] memory chunks = honestChunks();
            chunks[element / 2] = Toy.chunk(numbers, element / 2);
            (GameId id,) = disputeOutput(chunks);
            game.postChunk(id, chunks[element / 2]);
            ElementProof memory proof = elementProof(game.getGame(id), honest, chunks[element / 2]);
            vm.assertEq(proof.position, element % 2, "position");
            vm.expectEmit(true, false, false, true, address(game));
            emit IVerificationGame.ElementProven(
                id, uint64(element), Toy.float(numbers[element]), Finding.VALUE, Toy.float(numbers[element] - 3)
            );
            vm.prank(stranger);
            game.proveElement(id, proof);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        }
    }

    // ------------------------------------------------------------------------------------------------------- descriptors as they come

    /// @notice An operator that takes the first of two operands, which both are read validly.
    function firstOf(uint64 a, uint64 b) private pure returns (bytes memory) {
        Descriptor memory d = abi.decode(Toy.descriptor(4), (Descriptor));
        Input memory input = d.inputs[0];
        d.inputs = new Input[](2);
        d.inputs[0] = Input(a, input.dtype, input.shape, input.affine);
        d.inputs[1] = Input(b, input.dtype, input.shape, input.affine);
        return abi.encode(d);
    }

    /// @dev The trainer is right by the toy and wrong by this descriptor: its first number is the operand's and one.
    function toOtherProof() private returns (GameId id, ElementProof memory proof) {
        (id, proof) = toProof();
        proof.openings = Toy.openings(4, 0, Runs.before(honest, STEP), Runs.computed(honest, STEP));
        proof.openings[0].data = Toy.chunk(Runs.computed(honest, STEP)[0], 0);
        proof.openings[0].proof = Trees.proof(Runs.outputTree(honest, STEP, 0), 0);
    }

    /// @notice An operator of which every element is the sum of its operand's element three times: two segments, and three chunks of sums.
    function thrice() private pure returns (bytes memory) {
        Descriptor memory d = abi.decode(Toy.descriptor(4), (Descriptor));
        (d.family, d.segment, d.reduction) = (Family.SUM, 2, new uint64[](1));
        d.reduction[0] = 3;
        d.inputs[0].value = 0;
        d.inputs[0].affine = new int64[](4);
        (d.inputs[0].affine[1], d.inputs[0].affine[2]) = (1, 1);
        return abi.encode(d);
    }

    function test_aSumOfSeveral_isNamedByItsChunkAndPosition() public {
        useDescriptor(thrice());
        uint256[] memory numbers = Runs.computed(honest, STEP)[ADD];
        numbers[3] += 3;
        bytes[] memory chunks = honestChunks();
        chunks[1] = Toy.chunk(numbers, 1);
        (GameId id,) = disputeOutput(chunks);
        game.postChunk(id, chunks[1]);
        vm.prank(auditor);
        game.disputeSum(id, thrice(), chunks[1], 1);
        GameView memory shown = game.getGame(id);
        vm.assertEq(shown.levels[3].index, 1, "the chunk");
        vm.assertEq(shown.disputed.element, 3, "the element");
        vm.assertEq(shown.disputed.claimed, Toy.float(numbers[3]), "its bits");
        vm.assertEq(shown.levels[4].leafCount, 2, "segments");
        // The challenger is right about the first segment and the trainer knows it.
        uint256 term = Runs.computed(honest, STEP)[0][3];
        bytes32[3][] memory right = new bytes32[3][](2);
        (right[0][1], right[1][1]) = (bytes32(2 * term << 42), bytes32(3 * term << 42));
        bytes32[3][] memory wrong = new bytes32[3][](2);
        (wrong[0][1], wrong[1][1]) = (right[0][1], bytes32(numbers[3] << 42));
        openResults(id, Side.TRAINER, wrong);
        openResults(id, Side.CHALLENGER, right);
        playTrees(id, Toy.partialTree(wrong), Toy.partialTree(right));
        vm.assertEq(game.getGame(id).search.index, 1, "the second");
        vm.assertEq(game.getGame(id).levels[3].index, 1, "still of this chunk");
        SegmentProof memory proof;
        (proof.descriptor, proof.before) = (thrice(), Partial(right[0]));
        proof.beforeProof = Trees.proof(Toy.partialTree(right), 0);
        proof.operands = new OperandRoot[](1);
        proof.operands[0] = operandRoots(game.getGame(id), honest)[0];
        proof.openings = Toy.openings(4, 3, Runs.before(honest, STEP), Runs.computed(honest, STEP));
        proof.openings[0].data = Toy.chunk(Runs.computed(honest, STEP)[0], 1);
        proof.openings[0].proof = Trees.proof(Runs.outputTree(honest, STEP, 0), 1);
        game.proveSegment(id, proof);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_anInfinityThatIsClaimed_isAResult_ifTheTermsComeToIt() public {
        useDescriptor(thrice());
        bytes[] memory chunks = honestChunks();
        chunks[0] = hex"0000807f0000807f";
        (GameId id,) = disputeOutput(chunks);
        game.postChunk(id, chunks[0]);
        vm.prank(auditor);
        game.disputeSum(id, thrice(), chunks[0], 0);
        vm.assertEq(game.getGame(id).disputed.claimed, 0x7f800000, "an infinity");
        bytes32[3][] memory results = new bytes32[3][](2);
        results[1][0] = bytes32(uint256(1)); // 2^214, beyond FP32
        openResults(id, Side.TRAINER, results);
        // For the challenger that is the trainer's value, which it disputes.
        Tree memory tree = Toy.partialTree(results);
        PartialsOpening memory opening =
            PartialsOpening(thrice(), Node.wrap(Trees.root(tree)), Partial(results[1]), Trees.proof(tree, 1), rootRow(tree));
        vm.expectRevert(
            abi.encodeWithSelector(
                IVerificationGame.WrongLastPartial.selector, Side.CHALLENGER, Finding.VALUE, 0x7f800000, 0x7f800000
            )
        );
        vm.prank(auditor);
        game.openPartials(id, Side.CHALLENGER, opening);
        timeOut(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
    }

    function openResults(GameId id, Side side, bytes32[3][] memory results) private {
        Tree memory tree = Toy.partialTree(results);
        vm.prank(side == Side.TRAINER ? trainer : auditor);
        game.openPartials(
            id,
            side,
            PartialsOpening(thrice(), Node.wrap(Trees.root(tree)), Partial(results[1]), Trees.proof(tree, 1), rootRow(tree))
        );
    }

    function test_anOperandThatIsNotOpened_needsNoRoot() public {
        useDescriptor(firstOf(0, 1));
        (GameId id, ElementProof memory proof) = toOtherProof();
        proof.operands[1] = OperandRoot(0, new bytes32[](0));
        vm.prank(stranger);
        game.proveElement(id, proof);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_anOperandThatIsTheDisputedOperatorOrComesAfterIt_isRefused() public {
        uint64[3] memory later_ = [uint64(ADD), uint64(ADD + 1), type(uint64).max];
        for (uint256 i = 0; i < later_.length; ++i) {
            for (uint256 unread = 0; unread < 2; ++unread) {
                useDescriptor(unread == 0 ? firstOf(later_[i], 0) : firstOf(0, later_[i]));
                (GameId id, ElementProof memory proof) = toOtherProof();
                if (unread == 1) proof.operands[1] = OperandRoot(0, new bytes32[](0));
                refuse(id, proof, IVerificationGame.OperandNotBefore.selector);
                timeOut(id);
            }
        }
    }

    function test_aDescriptorThatNobodyCanRead_cannotBeOpened_soBothRunOutOfTime() public {
        useDescriptor(hex"1234");
        Run memory wrong = Runs.with(6, 3, Lie(STEP, ADD, 1, 0));
        (, GameId id) = dispute(wrong, honest);
        playTo(id, Level.OPERATOR, Phase.OPENING, wrong, honest);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), wrong);
        vm.expectRevert();
        game.openOperator(id, Side.TRAINER, opening);
        timeOut(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
    }
}
