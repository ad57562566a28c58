// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding, Question, Setting} from "../src/adjudication/IAdjudicator.sol";
import {Openings} from "../src/adjudication/Openings.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Merkle} from "../src/Merkle.sol";
import {ElementProof, OperandRoot} from "../src/game/Moves.sol";
import {EchoAdjudicator} from "./support/Adjudicators.sol";
import {ChunkGame} from "./support/ChunkGame.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Trees} from "./support/Trees.sol";

/// @notice One element of the trainer's chunk, computed.
contract ElementTest is ChunkGame {
    function test_everyOperatorsElement_isComputed_andARightOneDecidesNothing() public {
        for (uint256 place = 0; place < Toy.OPERATORS; ++place) {
            if (place == Toy.SUM) continue;
            (GameId id, Run memory wrong) = toChunk(place, Phase.PROVING);
            prove(id, honest);
            assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);

            (, id) = dispute(honest, wrong);
            playTo(id, Level.CHUNK, Phase.PROVING, honest, wrong);
            ElementProof memory proof = elementProof(game.getGame(id), wrong, posted[id]);
            uint64 right = Toy.float(Runs.computed(honest, STEP)[place][0]);
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
        proof.openings = Toy.openings(ADD, 1, Runs.before(honest, STEP), Runs.computed(honest, STEP));
        refuse(id, proof, IVerificationGame.ElementIsRight.selector);
        prove(id, honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_anotherDescriptorOrChunk_isRefused() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.descriptor = Toy.descriptor(4);
        refuse(id, proof, IVerificationGame.WrongDescriptor.selector);
        proof.descriptor = bytes.concat(Toy.descriptor(ADD), hex"00");
        refuse(id, proof, IVerificationGame.WrongDescriptor.selector);
        (, proof) = (id, elementProof(game.getGame(id), honest, posted[id]));
        proof.chunk = chunkOf(game.getGame(id), honest);
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
        (, proof) = (id, elementProof(game.getGame(id), honest, posted[id]));
        proof.operands[0].root = keccak256("other");
        refuse(id, proof, Merkle.WrongProof.selector);
        proof.operands[0] = proof.operands[1]; // the other operand's
        refuse(id, proof, Merkle.WrongProof.selector);
        (, proof) = (id, elementProof(game.getGame(id), honest, posted[id]));
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
        proof.openings = Toy.openings(5, 0, Runs.before(honest, STEP), Runs.computed(honest, STEP));
        proof.openings[0].input = 1;
        proof.openings[0].data = Toy.chunk(Runs.computed(honest, STEP)[1], 0);
        refuse(id, proof, Openings.ChunkNotOpened.selector);
        // A zero with a proof is a root like any other, and nothing but a zero needs none.
        (, proof) = (id, elementProof(game.getGame(id), honest, posted[id]));
        proof.operands[0] = OperandRoot(0, new bytes32[](1));
        refuse(id, proof, Merkle.WrongProofLength.selector);
        // Another tensor, with openings that fit it.
        uint256[] memory other = Runs.computed(honest, STEP)[4];
        proof.operands[0] = OperandRoot(Trees.root(Toy.tensorTree(other)), new bytes32[](0));
        proof.openings[0].data = Toy.chunk(other, 0);
        proof.openings[0].proof = Trees.proof(Toy.tensorTree(other), 0);
        refuse(id, proof, Merkle.WrongProofLength.selector);
    }

    function test_openingsOfOtherData_areRefused() public {
        (GameId id, ElementProof memory proof) = toProof();
        proof.openings[0].data = Toy.chunk(Runs.computed(honest, STEP)[ADD], 0);
        refuse(id, proof, Merkle.WrongProof.selector);
        (, proof) = (id, elementProof(game.getGame(id), honest, posted[id]));
        proof.openings[0].chunk = 1;
        refuse(id, proof, Merkle.WrongProof.selector);
    }

    function test_whatTheAdjudicatorIsAsked_isWhatTheGameIsAbout() public {
        EchoAdjudicator echo = new EchoAdjudicator(adjudicator);
        adjudicator = echo;
        (GameId id, ElementProof memory proof) = toProof();
        bytes32[] memory roots = new bytes32[](2);
        (roots[0], roots[1]) = (proof.operands[0].root, proof.operands[1].root);
        Setting memory setting = Setting(spec(6, 3), uint64(STEP), honest.states[STEP - 1]);
        uint64 expected = echo.digest(abi.encode(setting, Question(proof.descriptor, roots, 0), proof.openings));
        uint64 claimed = Toy.float(Runs.computed(honest, STEP)[ADD][0] + 1);
        vm.expectEmit(true, false, false, true, address(game));
        emit IVerificationGame.ElementProven(id, 0, claimed, Finding.VALUE, expected);
        game.proveElement(id, proof);
    }
}
