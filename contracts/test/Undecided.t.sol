// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Finding, IAdjudicator} from "../src/adjudication/IAdjudicator.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobStatus, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {ElementProof} from "../src/game/Moves.sol";
import {GameView} from "../src/Views.sol";
import {BentAdjudicator, HostileAdjudicator} from "./support/Adjudicators.sol";
import {ChunkGame} from "./support/ChunkGame.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";

/// @notice What the contract cannot decide, and adjudicators or gas that fail it.
contract UndecidedTest is ChunkGame {
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
        uint64 claimed = Toy.float(Runs.computed(honest, STEP)[ADD][0] + 1);
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
            Run memory claimed = i == 0 ? wrong : honest;
            Run memory challenged = i == 0 ? honest : wrong;
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
        for (uint256 gas = 20_000; gas < 400_000; gas += 1_000) {
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
        (, GameId id) = dispute(honest, wrong);
        playTo(id, Level.CHUNK, Phase.PROVING, honest, wrong);
        bytes memory data = abi.encodeCall(game.proveElement, (id, elementProof(game.getGame(id), wrong, posted[id])));
        for (uint256 gas = 20_000; gas < 400_000; gas += 1_000) {
            (bool ok,) = address(game).call{gas: gas}(data);
            vm.assertTrue(!ok, "no way to win with a right element");
        }
        assertPhase(id, Phase.PROVING);
    }
}
