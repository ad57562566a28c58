// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Bisections, Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, Outcome, Phase, Reason} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {LeafOpening, NextRoot} from "../src/game/Moves.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice Levels CHECKPOINT and STEP in detail: what is refused there, and who cannot go on.
contract StepsTest is Players {
    function test_anyoneMayCrankABisection_butNobodyElseMayOpenALevel() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, stranger, Side.TRAINER, trainer));
        vm.prank(stranger);
        game.openLevel(id, Side.TRAINER, leaf, next);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, auditor, Side.TRAINER, trainer));
        vm.prank(auditor);
        game.openLevel(id, Side.TRAINER, leaf, next);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheParty.selector, trainer, Side.CHALLENGER, auditor));
        vm.prank(trainer);
        game.openLevel(id, Side.CHALLENGER, leaf, next);
    }

    function test_bisectWithTheOtherSidesTree_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        GameView memory shown = game.getGame(id);
        vm.assertEq(uint8(shown.search.turn), uint8(Side.CHALLENGER), "the challenger moves first");
        Descent memory move = nextBisection(id, honest);
        move.mine = rootRow(Runs.checkpointTree(wrong));
        vm.expectRevert(
            abi.encodeWithSelector(
                Bisections.NotWhatIsDue.selector,
                keccak256(abi.encode(Trees.root(Runs.checkpointTree(wrong)), keccak256(abi.encodePacked(move.theirs)))),
                shown.search.due
            )
        );
        game.bisect(id, move);
    }

    function test_theSameMoveTwice_reverts() public {
        Run memory honest = honestRun(40, 5);
        Run memory wrong = wrongRun(40, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        Descent memory move = nextBisection(id, honest);
        game.bisect(id, move);
        vm.expectRevert();
        game.bisect(id, move);
    }

    function test_openingALevelWhoseLastLeafIsAnotherState_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        // The trainer claims a wrong checkpoint but would like to go on with the honest steps.
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        NextRoot memory next = nextRoot(shown, honest);
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the claim above binds the tree below");
        // Nor does it help to take back the claim above.
        leaf = leafOpening(shown, honest);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == IVerificationGame.WrongLeafPayload.selector, "the leaf above is what it is");
    }

    function tryOpen(GameId id, Side side, LeafOpening memory leaf, NextRoot memory next) private returns (bool, bytes memory) {
        vm.prank(side == Side.TRAINER ? trainer : auditor);
        return address(game).call(abi.encodeCall(game.openLevel, (id, side, leaf, next)));
    }

    function test_proofsOfAnotherLength_areRefusedInEveryOpening() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        next.lastLeafProof = new bytes32[](4);
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "last leaf: too long");
        next.lastLeafProof = new bytes32[](0);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "last leaf: too short");
        next = nextRoot(shown, wrong);
        leaf.agreedProof = new bytes32[](1);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, next);
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "agreed leaf: too short");
    }

    function test_agreedStateOfAPartysOwnMaking_isRefused() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        leaf.agreed = keccak256("a better start");
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the state before has to be in the tree");
    }

    function test_beforeLeafZeroStandsTheSpecsState_andNothingElse() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 0, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        LeafOpening memory leaf = leafOpening(shown, wrong);
        leaf.agreed = keccak256("another initial state");
        (bool ok, bytes memory why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == IVerificationGame.WrongAgreedPayload.selector, "initial state");
        leaf = leafOpening(shown, wrong);
        leaf.agreedProof = new bytes32[](1);
        (ok, why) = tryOpen(id, Side.TRAINER, leaf, nextRoot(shown, wrong));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "no proof belongs there");
    }

    function test_openingTwice_reverts() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (, GameId id) = dispute(wrong, honest);
        playToOpening(id, Level.CHECKPOINT, wrong, honest);
        GameView memory shown = game.getGame(id);
        (LeafOpening memory leaf, NextRoot memory next) = (leafOpening(shown, wrong), nextRoot(shown, wrong));
        open(id, Side.TRAINER, wrong);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyOpened.selector, id, Side.TRAINER));
        vm.prank(trainer);
        game.openLevel(id, Side.TRAINER, leaf, next);
    }

    function test_leafThatIsNoHashOfAPayload_cannotBeOpened_soItsOwnerRunsOutOfTime() public {
        Run memory honest = honestRun(4, 1);
        bytes32[] memory leaves = Runs.checkpointTree(honest).rows[0];
        leaves[1] = keccak256("no leaf hash at all");
        Tree memory forged = Trees.fromLeaves(leaves, 4);
        JobId job = post(4, 1);
        commitTree(job, forged, honest.states[3]);
        GameId id = challengeRun(job, auditor, honest);
        playTrees(id, forged, Runs.checkpointTree(honest));
        assertPhase(id, Phase.OPENING);
        open(id, Side.CHALLENGER, honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.TIMEOUT);
    }

    function test_rootWithoutARow_cannotBeSearched_soItsOwnerRunsOutOfTime() public {
        Run memory honest = honestRun(8, 1);
        JobId job = post(8, 1);
        commitRun(job, honest);
        GameId id = challengeRoot(job, auditor, keccak256("a root without a tree"));
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        assertOver(id, Outcome.TRAINER_WON, Reason.TIMEOUT);
    }
}
