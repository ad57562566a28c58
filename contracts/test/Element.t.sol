// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, Input} from "../src/adjudication/Descriptor.sol";
import {Finding, IAdjudicator} from "../src/adjudication/IAdjudicator.sol";
import {Openings} from "../src/adjudication/Openings.sol";
import {Side} from "../src/Bisection.sol";
import {GameId, IVerificationGame, JobStatus, Outcome, Phase, Reason} from "../src/IVerificationGame.sol";
import {Level} from "../src/Level.sol";
import {Merkle} from "../src/Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperandRoot, OperatorOpening} from "../src/Moves.sol";
import {GameView} from "../src/Views.sol";
import {BentAdjudicator, HostileAdjudicator} from "./support/Adjudicators.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Level CHUNK: the trainer's bytes, and one element of them.
contract ElementTest is Players {
    uint256 private constant STEP = 3;
    /// The operator that adds.
    uint256 private constant ADD = 2;

    Run private _honest;
    bytes private _descriptor;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
    }

    /// @dev The program has another operator ADD if a test says so.
    function descriptorOf(uint256 q) internal view override returns (bytes memory) {
        return q == ADD && _descriptor.length > 0 ? _descriptor : super.descriptorOf(q);
    }

    function toChunk(uint256 place, Phase phase) private returns (GameId id, Run memory wrong) {
        wrong = Runs.with(6, 3, Lie(STEP, place, 1, 0));
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.CHUNK, phase, wrong, _honest);
    }

    /// @notice A game in which the challenger has to prove that the trainer adds wrongly.
    function toProof() private returns (GameId id, ElementProof memory proof) {
        (id,) = toChunk(ADD, Phase.PROVING);
        proof = elementProof(game.getGame(id), _honest, posted[id]);
    }

    function refuse(GameId id, ElementProof memory proof, bytes4 why) private {
        refuseFrom(auditor, id, proof, why);
    }

    function refuseFrom(address sender, GameId id, ElementProof memory proof, bytes4 why) private {
        bytes32 before = keccak256(abi.encode(game.getGame(id)));
        vm.prank(sender);
        (bool ok, bytes memory answer) = address(game).call(abi.encodeCall(game.proveElement, (id, proof)));
        vm.assertTrue(!ok, "it reverts");
        vm.assertEq(bytes32(bytes4(answer)), bytes32(why), "for this reason");
        vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "and nothing has happened");
    }

    // ---------------------------------------------------------------------------------------------------------------- posting a chunk

    function test_theTrainersChunk_isPostedByAnyone_andByNobodyElsesBytes() public {
        (GameId id, Run memory wrong) = toChunk(ADD, Phase.POSTING);
        bytes memory chunk = chunkOf(game.getGame(id), wrong);
        bytes memory other = chunkOf(game.getGame(id), _honest);
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

    /// @notice A trainer whose output is any tree of chunks at all; the search goes to its first difference.
    function disputeOutput(bytes[] memory chunks) private returns (GameId id, Tree memory output) {
        output = Trees.buildBytes(chunks);
        Run memory wrong = honestRun(6, 3);
        (wrong.states[STEP], wrong.states[5]) = (keccak256("other"), keccak256("another"));
        (, id) = dispute(wrong, _honest);
        playTo(id, Level.STEP, Phase.OPENING, wrong, _honest);
        GameView memory shown = game.getGame(id);
        Tree memory trace = Runs.traceTree(_honest, STEP);
        bytes32[] memory leaves = trace.rows[0];
        leaves[ADD] = Trees.hashLeaf(bytes.concat(Trees.root(output)));
        trace = Trees.fromLeaves(leaves, trace.count);
        (LeafOpening memory leaf, NextRoot memory next) =
            (leafOpening(shown, wrong), NextRoot(childrenIn(trace, 4, 0).left, new bytes32[](0)));
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
        open(id, Side.CHALLENGER, _honest);
        playTrees(id, trace, Runs.traceTree(_honest, STEP));
        open(id, Side.CHALLENGER, _honest);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), _honest);
        (opening.tensorRoot, opening.children) = (Trees.root(output), childrenIn(output, Trees.height(output), 0));
        game.openOperator(id, Side.TRAINER, opening);
        playTrees(id, output, Runs.outputTree(_honest, STEP, ADD));
    }

    function honestChunks() private view returns (bytes[] memory chunks) {
        chunks = new bytes[](3);
        for (uint256 i = 0; i < 3; ++i) {
            chunks[i] = Toy.chunk(Runs.computed(_honest, STEP)[ADD], i);
        }
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
            uint256[] memory numbers = Runs.computed(_honest, STEP)[ADD];
            numbers[element] += 3;
            bytes[] memory chunks = honestChunks();
            chunks[element / 2] = Toy.chunk(numbers, element / 2);
            (GameId id,) = disputeOutput(chunks);
            game.postChunk(id, chunks[element / 2]);
            ElementProof memory proof = elementProof(game.getGame(id), _honest, chunks[element / 2]);
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

    // -------------------------------------------------------------------------------------------------------------- proving an element

    function test_everyOperatorsElement_isComputed_andARightOneDecidesNothing() public {
        for (uint256 place = 0; place < Toy.OPERATORS; ++place) {
            if (place == Toy.SUM) continue;
            (GameId id, Run memory wrong) = toChunk(place, Phase.PROVING);
            prove(id, _honest);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);

            (, id) = dispute(_honest, wrong);
            playTo(id, Level.CHUNK, Phase.PROVING, _honest, wrong);
            ElementProof memory proof = elementProof(game.getGame(id), wrong, posted[id]);
            uint64 right = Toy.float(Runs.computed(_honest, STEP)[place][0]);
            vm.expectRevert(abi.encodeWithSelector(IVerificationGame.ElementIsRight.selector, 0, right));
            vm.prank(auditor);
            game.proveElement(id, proof);
            timeOut(id);
            assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        }
    }

    function test_aRightElement_mayBeFollowedByAWrongOne() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.position = 1;
        proof.openings = Toy.openings(ADD, 1, Runs.before(_honest, STEP), Runs.computed(_honest, STEP));
        refuse(id, proof, IVerificationGame.ElementIsRight.selector);
        prove(id, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_anotherDescriptorOrChunk_isRefused() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.descriptor = Toy.descriptor(4);
        refuse(id, proof, IVerificationGame.WrongDescriptor.selector);
        proof.descriptor = bytes.concat(Toy.descriptor(ADD), hex"00");
        refuse(id, proof, IVerificationGame.WrongDescriptor.selector);
        (, proof) = (id, elementProof(game.getGame(id), _honest, posted[id]));
        proof.chunk = chunkOf(game.getGame(id), _honest);
        refuse(id, proof, IVerificationGame.WrongLeafPayload.selector);
        proof.chunk = bytes.concat(posted[id], hex"00");
        refuse(id, proof, IVerificationGame.WrongChunkLength.selector);
        proof.chunk = posted[id];
        proof.position = 2;
        refuse(id, proof, IVerificationGame.PositionOutOfRange.selector);
        proof.position = type(uint32).max;
        refuse(id, proof, IVerificationGame.PositionOutOfRange.selector);
    }

    function test_operandsThatAreNotProvenToBeAgreed_areRefused() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.operands = new OperandRoot[](1);
        refuse(id, proof, IVerificationGame.WrongNumberOfOperands.selector);
        proof.operands = new OperandRoot[](3);
        refuse(id, proof, IVerificationGame.WrongNumberOfOperands.selector);
        (, proof) = (id, elementProof(game.getGame(id), _honest, posted[id]));
        proof.operands[0].root = keccak256("other");
        refuse(id, proof, Merkle.WrongProof.selector);
        proof.operands[0] = proof.operands[1]; // the other operand's
        refuse(id, proof, Merkle.WrongProof.selector);
        (, proof) = (id, elementProof(game.getGame(id), _honest, posted[id]));
        proof.operands[1].proof = new bytes32[](3);
        refuse(id, proof, Merkle.WrongProofLength.selector);
        // Into the trainer's trace, whose siblings are other ones.
        Run memory wrong = Runs.with(6, 3, Lie(STEP, ADD, 1, 0));
        proof.operands = operandRoots(game.getGame(id), wrong);
        refuse(id, proof, Merkle.WrongProof.selector);
    }

    function test_anOperandWithoutARoot_cannotBeRead() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.operands[0] = OperandRoot(0, new bytes32[](0));
        refuse(id, proof, Merkle.WrongProof.selector);
        // Without its opening either, it is missed.
        proof.openings = Toy.openings(5, 0, Runs.before(_honest, STEP), Runs.computed(_honest, STEP));
        proof.openings[0].input = 1;
        proof.openings[0].data = Toy.chunk(Runs.computed(_honest, STEP)[1], 0);
        refuse(id, proof, Openings.ChunkNotOpened.selector);
        // A zero with a proof is a root like any other, and nothing but a zero needs none.
        (, proof) = (id, elementProof(game.getGame(id), _honest, posted[id]));
        proof.operands[0] = OperandRoot(0, new bytes32[](1));
        refuse(id, proof, Merkle.WrongProofLength.selector);
        // Another tensor, with openings that fit it.
        uint256[] memory other = Runs.computed(_honest, STEP)[4];
        proof.operands[0] = OperandRoot(Trees.root(Toy.tensorTree(other)), new bytes32[](0));
        proof.openings[0].data = Toy.chunk(other, 0);
        proof.openings[0].proof = Trees.proof(Toy.tensorTree(other), 0);
        refuse(id, proof, Merkle.WrongProofLength.selector);
    }

    function test_openingsOfOtherData_areRefused() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.openings[0].data = Toy.chunk(Runs.computed(_honest, STEP)[ADD], 0);
        refuse(id, proof, Merkle.WrongProof.selector);
        (, proof) = (id, elementProof(game.getGame(id), _honest, posted[id]));
        proof.openings[0].chunk = 1;
        refuse(id, proof, Merkle.WrongProof.selector);
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

    function useDescriptor(bytes memory descriptor) private {
        _descriptor = descriptor;
        programRoot = Trees.root(Trees.buildBytes(program()));
    }

    /// @dev The trainer is right by the toy and wrong by this descriptor: its first number is the operand's and one.
    function toOtherProof() private returns (GameId id, ElementProof memory proof) {
        (id, proof) = toProof();
        proof.openings = Toy.openings(4, 0, Runs.before(_honest, STEP), Runs.computed(_honest, STEP));
        proof.openings[0].data = Toy.chunk(Runs.computed(_honest, STEP)[0], 0);
        proof.openings[0].proof = Trees.proof(Runs.outputTree(_honest, STEP, 0), 0);
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
        (, GameId id) = dispute(wrong, _honest);
        playTo(id, Level.OPERATOR, Phase.OPENING, wrong, _honest);
        OperatorOpening memory opening = operatorOpening(game.getGame(id), wrong);
        vm.expectRevert();
        game.openOperator(id, Side.TRAINER, opening);
        timeOut(id);
        assertOver(id, Outcome.BOTH_LOST, Reason.TIMEOUT);
    }

    // ------------------------------------------------------------------------------------------------- what the contract cannot decide

    function undecided() private returns (GameId id, ElementProof memory proof) {
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        (id, proof) = toProof();
    }

    function test_onlyTheChallenger_sendsAnElementToTheReferee() public {
        (GameId id, ElementProof memory proof) = undecided();
        // A friend of the trainer would name a right one.
        refuseFrom(stranger, id, proof, IVerificationGame.NotTheParty.selector);
        refuseFrom(trainer, id, proof, IVerificationGame.NotTheParty.selector);
        refuseFrom(referee, id, proof, IVerificationGame.NotTheParty.selector);
        uint64 claimed = Toy.float(Runs.computed(_honest, STEP)[ADD][0] + 1);
        vm.expectEmit(true, true, false, true, address(game));
        emit IVerificationGame.RefereeCalled(id, referee, 0, claimed, instant(time() + REFEREE_ALLOWANCE));
        vm.prank(auditor);
        game.proveElement(id, proof);
        GameView memory shown = game.getGame(id);
        vm.assertTrue(shown.disputed.known, "known");
        vm.assertEq(shown.disputed.element, 0, "the element");
        vm.assertEq(shown.disputed.claimed, claimed, "the trainer's bits");
        assertPhase(id, Phase.REFEREE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, Phase.REFEREE, Phase.PROVING));
        vm.prank(auditor);
        game.proveElement(id, proof);
    }

    function testFuzz_theVerdict_goesByTheTrainersBits(uint64 bits, bool same) public {
        (GameId id, ElementProof memory proof) = undecided();
        vm.prank(auditor);
        game.proveElement(id, proof);
        uint64 claimed = game.getGame(id).disputed.claimed;
        if (same) bits = claimed;
        adjudicate(id, bits);
        assertOver(id, bits == claimed ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON, Reason.VERDICT);
        assertJob(game.getGame(id).job, bits == claimed ? JobStatus.CLAIMED : JobStatus.REJECTED);
    }

    function test_onlyTheRefereeOfTheSpecAdjudicates() public {
        (GameId id, ElementProof memory proof) = undecided();
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, Phase.PROVING, Phase.REFEREE));
        adjudicate(id, 0);
        vm.prank(auditor);
        game.proveElement(id, proof);
        address[3] memory others = [trainer, auditor, customer];
        for (uint256 i = 0; i < others.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheReferee.selector, others[i], referee));
            vm.prank(others[i]);
            game.adjudicate(id, 0);
        }
    }

    function test_whereAnHonestRunStops_whoeverClaimsAValueLoses_whateverItsBits() public {
        adjudicator = new BentAdjudicator(adjudicator, Finding.STOPS);
        Run memory wrong = Runs.with(6, 3, Lie(STEP, ADD, 1, 0));
        for (uint256 i = 0; i < 2; ++i) {
            // The bits beside STOPS are the honest ones: not the trainer's, then the trainer's.
            Run memory claimed = i == 0 ? wrong : _honest;
            Run memory challenged = i == 0 ? _honest : wrong;
            (, GameId id) = dispute(claimed, challenged);
            playTo(id, Level.CHUNK, Phase.PROVING, claimed, challenged);
            ElementProof memory proof = elementProof(game.getGame(id), challenged, posted[id]);
            vm.prank(stranger);
            game.proveElement(id, proof);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        }
    }

    // -------------------------------------------------------------------------------------------------------- hostile adjudicators, gas

    function test_anAdjudicatorThatFails_decidesNothing_andChangesNothing() public {
        bytes4[6] memory reasons =
            [HostileAdjudicator.Refused.selector, bytes4(0), bytes4(0), bytes4(0), bytes4(0), HostileAdjudicator.Changed.selector];
        IAdjudicator real = adjudicator;
        for (uint256 trick = 0; trick < 6; ++trick) {
            HostileAdjudicator hostile = new HostileAdjudicator(real, HostileAdjudicator.Trick(trick));
            adjudicator = IAdjudicator(address(hostile));
            (GameId id, ElementProof memory proof) = toProof();
            bytes32 before = keccak256(abi.encode(game.getGame(id)));
            vm.prank(auditor);
            (bool ok, bytes memory why) = address(game).call{gas: 30_000_000}(abi.encodeCall(game.proveElement, (id, proof)));
            vm.assertTrue(!ok, "the move fails");
            vm.assertEq(bytes32(bytes4(why)), bytes32(reasons[trick]), "for the adjudicator's reason");
            if (trick == 5) vm.assertEq(keccak256(why), keccak256(abi.encodeWithSelector(reasons[trick], false)), "in a view");
            vm.assertEq(hostile.witness().changes(), 0, "nothing has changed");
            hostile.witness().change(); // outside of a view it does
            vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "nor in the game");
            // The clocks go on, so that the game ends all the same.
            timeOut(id);
            assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
        }
    }

    function test_withTooLittleGas_aProofReverts_andNeverDecidesOtherwise() public {
        (GameId id, ElementProof memory proof) = toProof();
        bytes memory data = abi.encodeCall(game.proveElement, (id, proof));
        bytes32 before = keccak256(abi.encode(game.getGame(id)));
        uint256 failures = 0;
        for (uint256 gas = 20_000;; gas += 1_000) {
            (bool ok,) = address(game).call{gas: gas}(data);
            if (ok) break;
            ++failures;
            vm.assertEq(keccak256(abi.encode(game.getGame(id))), before, "nothing has happened");
        }
        vm.assertGt(failures, 50, "the limit cuts it off everywhere");
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_withTooLittleGas_aRightElement_isNeverTakenForAWrongOne() public {
        Run memory wrong = Runs.with(6, 3, Lie(STEP, ADD, 1, 0));
        (, GameId id) = dispute(_honest, wrong);
        playTo(id, Level.CHUNK, Phase.PROVING, _honest, wrong);
        bytes memory data = abi.encodeCall(game.proveElement, (id, elementProof(game.getGame(id), wrong, posted[id])));
        for (uint256 gas = 20_000; gas < 400_000; gas += 1_000) {
            (bool ok,) = address(game).call{gas: gas}(data);
            vm.assertTrue(!ok, "no way to win with a right element");
        }
        assertPhase(id, Phase.PROVING);
    }
}
