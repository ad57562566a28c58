// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding, Partial} from "../src/adjudication/IAdjudicator.sol";
import {Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {ElementProof, OperandRoot, PartialsOpening, SegmentProof} from "../src/game/Moves.sol";
import {Timestamp} from "../src/Time.sol";
import {GameView} from "../src/Views.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Level PARTIAL: a sum of several segments, over its running results.
contract PartialTest is Players {
    uint256 private constant STEP = 3;

    Run private _honest;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
    }

    function wrongFrom(uint256 segment) private pure returns (Run memory) {
        return Runs.with(6, 3, Lie(STEP, Toy.SUM, 1, segment));
    }

    function toPartial(uint256 segment, Phase phase) private returns (GameId id, Run memory wrong) {
        wrong = wrongFrom(segment);
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.PARTIAL, phase, wrong, _honest);
    }

    function expect(bytes4 why, bytes memory data, address sender) private {
        vm.prank(sender);
        (bool ok, bytes memory answer) = address(game).call(data);
        vm.assertTrue(!ok, "it reverts");
        vm.assertEq(bytes32(bytes4(answer)), bytes32(why), "for this reason");
    }

    // -------------------------------------------------------------------------------------------------------------- naming the element

    function test_onlyTheChallenger_namesTheSum() public {
        Run memory wrong = wrongFrom(1);
        (, GameId id) = dispute(wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, wrong, _honest);
        bytes memory descriptor = Toy.descriptor(Toy.SUM);
        bytes memory call = abi.encodeCall(game.disputeSum, (id, descriptor, posted[id], 0));
        expect(IVerificationGame.NotTheParty.selector, call, stranger);
        expect(IVerificationGame.NotTheParty.selector, call, trainer);
        uint64 claimed = Toy.float(Runs.computed(wrong, STEP)[Toy.SUM][0]);
        vm.expectEmit(true, false, false, true, address(game));
        emit IVerificationGame.ElementDisputed(id, 0, claimed);
        vm.prank(auditor);
        game.disputeSum(id, descriptor, posted[id], 0);
        GameView memory shown = game.getGame(id);
        vm.assertEq(uint8(levelOf(shown)), uint8(Level.PARTIAL), "level");
        assertPhase(id, Phase.OPENING);
        vm.assertTrue(shown.disputed.known && shown.disputed.claimed == claimed, "the trainer's bits");
        vm.assertTrue(!shown.deadlines[0].isNever() && !shown.deadlines[1].isNever(), "both owe an opening");
        vm.assertEq(keccak256(abi.encode(shown.search)), keccak256(new bytes(7 * 32)), "no search yet");
        vm.assertEq(shown.levels[4].leafCount, Toy.SEGMENTS, "segments");
        vm.assertEq(Node.unwrap(shown.levels[4].roots[0]), 0, "no roots yet");
    }

    function test_aNamedElement_isOneOfTheTrainersChunk() public {
        Run memory wrong = wrongFrom(1);
        (, GameId id) = dispute(wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, wrong, _honest);
        (bytes memory descriptor, bytes memory chunk) = (Toy.descriptor(Toy.SUM), posted[id]);
        bytes memory other = chunkOf(game.getGame(id), _honest);
        expect(IVerificationGame.WrongDescriptor.selector, abi.encodeCall(game.disputeSum, (id, hex"00", chunk, 0)), auditor);
        expect(IVerificationGame.WrongLeafPayload.selector, abi.encodeCall(game.disputeSum, (id, descriptor, other, 0)), auditor);
        expect(
            IVerificationGame.WrongChunkLength.selector, abi.encodeCall(game.disputeSum, (id, descriptor, new bytes(8), 0)), auditor
        );
        expect(IVerificationGame.PositionOutOfRange.selector, abi.encodeCall(game.disputeSum, (id, descriptor, chunk, 1)), auditor);
    }

    function test_aSumOfSeveralSegments_isNotProvenAtOnce_andNothingElseIsNamed() public {
        Run memory wrong = wrongFrom(1);
        (, GameId id) = dispute(wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, wrong, _honest);
        ElementProof memory proof = elementProof(game.getGame(id), _honest, posted[id]);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongNumberOfSegments.selector, id, 3));
        vm.prank(auditor);
        game.proveElement(id, proof);

        wrong = Runs.with(6, 3, Lie(STEP, 2, 1, 0));
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, wrong, _honest);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongNumberOfSegments.selector, id, 0));
        vm.prank(auditor);
        game.disputeSum(id, "", "", 0);
    }

    // ------------------------------------------------------------------------------------------------------------- opening the results

    function test_onlyTheParty_opensItsRunningResults() public {
        (GameId id, Run memory wrong) = toPartial(1, Phase.OPENING);
        PartialsOpening memory opening = partialsOpening(game.getGame(id), wrong);
        bytes memory call = abi.encodeCall(game.openPartials, (id, Side.TRAINER, opening));
        expect(IVerificationGame.NotTheParty.selector, call, stranger);
        expect(IVerificationGame.NotTheParty.selector, call, auditor);
        opening = partialsOpening(game.getGame(id), _honest);
        call = abi.encodeCall(game.openPartials, (id, Side.CHALLENGER, opening));
        expect(IVerificationGame.NotTheParty.selector, call, trainer);
        open(id, Side.CHALLENGER, _honest);
        expect(IVerificationGame.AlreadyOpened.selector, call, auditor);
        vm.assertEq(Node.unwrap(game.getGame(id).levels[4].roots[1]), Node.unwrap(opening.root), "its root");
        vm.assertEq(Node.unwrap(game.getGame(id).levels[4].roots[0]), 0, "the trainer's is to come");
        assertPhase(id, Phase.OPENING);
    }

    function test_theLastResult_hasToComeToTheTrainersBits_andForTheChallengerNot() public {
        (GameId id, Run memory wrong) = toPartial(1, Phase.OPENING);
        uint64 claimed = Toy.float(Runs.computed(wrong, STEP)[Toy.SUM][0]);
        PartialsOpening memory honest = partialsOpening(game.getGame(id), _honest);
        vm.expectRevert(
            abi.encodeWithSelector(
                IVerificationGame.WrongLastPartial.selector,
                Side.TRAINER,
                Finding.VALUE,
                Toy.float(Runs.computed(_honest, STEP)[Toy.SUM][0]),
                claimed
            )
        );
        vm.prank(trainer);
        game.openPartials(id, Side.TRAINER, honest);
        PartialsOpening memory claimedOne = partialsOpening(game.getGame(id), wrong);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongLastPartial.selector, Side.CHALLENGER, Finding.VALUE, claimed, claimed)
        );
        vm.prank(auditor);
        game.openPartials(id, Side.CHALLENGER, claimedOne);
    }

    function test_aChallengersSumThatIsNotFinite_isAnotherOne() public {
        (GameId id, Run memory wrong) = toPartial(1, Phase.OPENING);
        // 2^214 is beyond FP32.
        bytes32[3][] memory results = Runs.partials(_honest, STEP);
        results[2][0] = bytes32(uint256(1));
        Tree memory tree = Toy.partialTree(results);
        PartialsOpening memory opening = PartialsOpening(
            Toy.descriptor(Toy.SUM), Node.wrap(Trees.root(tree)), Partial(results[2]), Trees.proof(tree, 2), rootRow(tree)
        );
        vm.prank(trainer);
        vm.expectRevert();
        game.openPartials(id, Side.TRAINER, opening);
        vm.prank(auditor);
        game.openPartials(id, Side.CHALLENGER, opening);
        open(id, Side.TRAINER, wrong);
        playTrees(id, Runs.partialTree(wrong, STEP), tree);
        vm.assertEq(game.getGame(id).search.index, 1, "they differ from the trainer's first wrong segment on");
    }

    function test_runningResultsThatAreNotTheLastLeaf_areRefused() public {
        (GameId id, Run memory wrong) = toPartial(1, Phase.OPENING);
        PartialsOpening memory opening = partialsOpening(game.getGame(id), wrong);
        opening.descriptor = Toy.descriptor(2);
        expect(IVerificationGame.WrongDescriptor.selector, abi.encodeCall(game.openPartials, (id, Side.TRAINER, opening)), trainer);
        opening = partialsOpening(game.getGame(id), wrong);
        opening.lastLeafProof = new bytes32[](1);
        expect(Merkle.WrongProofLength.selector, abi.encodeCall(game.openPartials, (id, Side.TRAINER, opening)), trainer);
        opening = partialsOpening(game.getGame(id), wrong);
        opening.root = Node.wrap(Trees.root(Runs.partialTree(_honest, STEP)));
        expect(Merkle.WrongProof.selector, abi.encodeCall(game.openPartials, (id, Side.TRAINER, opening)), trainer);
    }

    // --------------------------------------------------------------------------------------------------------------- proving a segment

    function testFuzz_theFirstWrongSegment_losesForWhoHasIt(uint256 trainers, uint256 challengers) public {
        // Segment 3: right. The challenger's own result is wrong as well, but not by as much.
        (trainers, challengers) = (bound(trainers, 0, 3), bound(challengers, 0, 3));
        if (trainers == 3 && challengers == 3) trainers = 0;
        Run memory claimed = trainers == 3 ? _honest : wrongFrom(trainers);
        Run memory challenged = challengers == 3 ? _honest : Runs.with(6, 3, Lie(STEP, Toy.SUM, 2, challengers));
        (, GameId id) = dispute(claimed, challenged);
        playTo(id, Level.PARTIAL, Phase.PROVING, claimed, challenged);
        vm.assertEq(game.getGame(id).search.index, trainers < challengers ? trainers : challengers, "the first difference");
        prove(id, challenged);
        assertOver(id, trainers <= challengers ? Outcome.CHALLENGER_WON : Outcome.TRAINER_WON, Reason.PROOF);
    }

    function test_whatStandsBeforeASegment_isTheAgreedResult_orNothing() public {
        (GameId id,) = toPartial(1, Phase.PROVING);
        SegmentProof memory proof = segmentProof(game.getGame(id), _honest);
        refuse(id, withBefore(proof, 0, proof.beforeProof), Merkle.WrongProof.selector);
        refuse(id, withBefore(proof, proof.before.words[1], new bytes32[](1)), Merkle.WrongProofLength.selector);
        // Into the trainer's tree, whose siblings are other ones.
        bytes32[] memory theirs = Trees.proof(Runs.partialTree(wrongFrom(1), STEP), 0);
        refuse(id, withBefore(proof, proof.before.words[1], theirs), Merkle.WrongProof.selector);

        (id,) = toPartial(0, Phase.PROVING);
        proof = segmentProof(game.getGame(id), _honest);
        for (uint256 word = 0; word < 3; ++word) {
            SegmentProof memory bent = withBefore(proof, 0, proof.beforeProof);
            bent.before.words[word] = bytes32(uint256(1) << 42);
            refuse(id, bent, IVerificationGame.WrongAgreedPayload.selector);
        }
        refuse(id, withBefore(proof, 0, new bytes32[](1)), Merkle.WrongProofLength.selector);
        prove(id, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function withBefore(SegmentProof memory proof, bytes32 word, bytes32[] memory path) private pure returns (SegmentProof memory) {
        Partial memory before = Partial([bytes32(0), word, bytes32(0)]);
        return SegmentProof(proof.descriptor, before, path, proof.operands, proof.openings);
    }

    function refuse(GameId id, SegmentProof memory proof, bytes4 why) private {
        bytes32 before = keccak256(abi.encode(game.getGame(id)));
        expect(why, abi.encodeCall(game.proveSegment, (id, proof)), auditor);
        vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "and nothing has happened");
    }

    function test_anotherDescriptorOperandOrOpening_isRefused() public {
        (GameId id,) = toPartial(1, Phase.PROVING);
        SegmentProof memory proof = segmentProof(game.getGame(id), _honest);
        proof.descriptor = Toy.descriptor(2);
        refuse(id, proof, IVerificationGame.WrongDescriptor.selector);
        proof = segmentProof(game.getGame(id), _honest);
        proof.operands[0].root = keccak256("other");
        refuse(id, proof, Merkle.WrongProof.selector);
        proof.operands[0] = OperandRoot(0, new bytes32[](0));
        refuse(id, proof, Merkle.WrongProof.selector);
        proof.operands = new OperandRoot[](0);
        refuse(id, proof, IVerificationGame.WrongNumberOfOperands.selector);
        proof = segmentProof(game.getGame(id), _honest);
        proof.openings[0].data = new bytes(8);
        refuse(id, proof, Merkle.WrongProof.selector);
    }

    function test_whereASegmentStops_theTrainerLoses_andWhatIsUndecidedDecidesNothing() public {
        BentAdjudicator stops = new BentAdjudicator(adjudicator, Finding.STOPS);
        BentAdjudicator undecided = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        // Even where the trainer's result is the one that was computed.
        Run memory wrong = wrongFrom(1);
        adjudicator = stops;
        (, GameId id) = dispute(_honest, wrong);
        playTo(id, Level.PARTIAL, Phase.PROVING, _honest, wrong);
        prove(id, wrong);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);

        adjudicator = undecided;
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.PARTIAL, Phase.PROVING, wrong, _honest);
        SegmentProof memory proof = segmentProof(game.getGame(id), _honest);
        refuse(id, proof, IVerificationGame.SegmentUndecided.selector);
    }

    function test_withTooLittleGas_aSegmentReverts_andNeverDecidesOtherwise() public {
        // The honest trainer would lose by a computation that fails.
        Run memory wrong = wrongFrom(1);
        (, GameId id) = dispute(_honest, wrong);
        playTo(id, Level.PARTIAL, Phase.PROVING, _honest, wrong);
        bytes memory data = abi.encodeCall(game.proveSegment, (id, segmentProof(game.getGame(id), wrong)));
        for (uint256 gas = 20_000; gas < 400_000; gas += 1_000) {
            (bool ok,) = address(game).call{gas: gas}(data);
            if (ok) break;
        }
        assertOver(id, Outcome.TRAINER_WON, Reason.PROOF);
    }

    function test_clocks_runForWhoeverOwesSomething() public {
        Run memory wrong = wrongFrom(1);
        (, GameId id) = dispute(wrong, _honest);
        while (game.getGame(id).phase != Phase.OVER) {
            GameView memory shown = game.getGame(id);
            bool both = shown.phase == Phase.OPENING;
            bool trainers = shown.phase == Phase.POSTING || (shown.phase == Phase.BISECTION && shown.search.turn == Side.TRAINER);
            assertRunning(shown.deadlines[0], both || trainers);
            assertRunning(shown.deadlines[1], both || !trainers);
            if (both) open(id, Side.TRAINER, wrong);
            if (both) assertRunning(game.getGame(id).deadlines[0], false);
            if (both) assertRunning(game.getGame(id).deadlines[1], true);
            step(id, wrong, _honest);
        }
    }

    function assertRunning(Timestamp deadline, bool expected) private pure {
        vm.assertTrue(deadline.isNever() == !expected, "whose clock runs");
    }
}
