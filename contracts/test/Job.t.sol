// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {NextRoot} from "../src/game/Moves.sol";
import {JobView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

contract JobTest is Players {
    // ------------------------------------------------------------------------------------------------------------- life of a job

    function test_undisputedClaim_paysTheTrainerRewardAndBond_afterTheWindow() public {
        Run memory honest = honestRun(60, 5);
        JobId job = post(60, 5);
        commitRun(job, honest);
        later(CHALLENGE_WINDOW + 1);
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        uint256 before = trainer.balance;
        vm.prank(trainer);
        vm.assertEq(game.withdraw(), REWARD + TRAINER_BOND, "paid");
        vm.assertEq(trainer.balance - before, REWARD + TRAINER_BOND, "received");
        vm.assertEq(address(game).balance, 0, "nothing is left");
    }

    function test_theViewOfAJob_isWhatWasPosted() public {
        Run memory honest = honestRun(60, 5);
        JobId job = post(60, 5);
        JobView memory shown = game.getJob(job);
        vm.assertEq(keccak256(abi.encode(shown.spec)), keccak256(abi.encode(spec(60, 5))), "spec");
        vm.assertEq(shown.specHash, keccak256(abi.encode(spec(60, 5))), "spec hash");
        vm.assertEq(keccak256(abi.encode(shown.terms)), keccak256(abi.encode(terms())), "terms");
        vm.assertEq(shown.jobCid, "bafyjob", "job CID");
        vm.assertEq(shown.customer, customer, "customer");
        vm.assertTrue(shown.commitDeadline > instant(START + COMMIT_WINDOW - 1), "commit deadline");
        vm.assertEq(shown.claim.trainer, address(0), "no claim yet");
        commitRun(job, honest);
        shown = game.getJob(job);
        vm.assertEq(shown.claim.trainer, trainer, "trainer");
        vm.assertEq(Node.unwrap(shown.claim.checkpointRoot), Trees.root(Runs.checkpointTree(honest)), "root");
        vm.assertEq(shown.claim.finalStateRoot, honest.states[59], "final state");
        vm.assertEq(shown.claim.logCid, "bafylog", "log CID");
        vm.assertEq(shown.claim.modelCid, "bafymodel", "model CID");
        vm.assertEq(
            keccak256(abi.encode(shown.claim.challengeDeadline)),
            bytes32(keccak256(abi.encode(START + CHALLENGE_WINDOW))),
            "deadline"
        );
    }

    function test_jobsAndGamesThatDoNotExist_areRefused() public {
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, JobId.wrap(5), JobStatus.NONE, JobStatus.OPEN)
        );
        game.getJob(JobId.wrap(5));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, GameId.wrap(5), Phase.NONE, Phase.BISECTION));
        game.getGame(GameId.wrap(5));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, GameId.wrap(5)));
        game.releaseBond(GameId.wrap(5));
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, JobId.wrap(5), JobStatus.NONE, JobStatus.CLAIMED)
        );
        game.finalize(JobId.wrap(5));
    }

    // ------------------------------------------------------------------------------------------------ what a reorganisation can change

    /// @dev Another job got the number that the caller believes to be its own.
    function test_whoBonds_namesTheSpec_andAnotherJobIsRefused() public {
        JobId job = post(60, 5);
        (bytes32 mine, bytes32 other) = (keccak256(abi.encode(spec(20, 5))), hashOf(job));
        Tree memory tree = Runs.checkpointTree(honestRun(60, 5));
        (NextRoot memory claimed, Node root) = (asNextRoot(tree), Node.wrap(Trees.root(tree)));
        bytes32 state = honestRun(60, 5).states[59];
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongSpec.selector, mine, other);
        vm.expectRevert(why);
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(job, mine, claimed, state, "l", "m");
        commitRun(job, honestRun(60, 5));
        vm.expectRevert(why);
        vm.prank(auditor);
        game.attest(job, mine, root, "", "", ANY_PLACE);
        vm.expectRevert(why);
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, mine, root, Node.wrap(keccak256("another")));
        vm.assertEq(game.getJob(job).specHash, other, "as the view shows it");
    }

    /// @dev Another trainer's claim stands where the challenger saw a wrong one.
    function test_whoChallenges_namesTheClaim_andAnotherOneIsRefused() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        bytes32 hash = hashOf(job);
        Node wrong = Node.wrap(Trees.root(Runs.checkpointTree(wrongRun(60, 5, 3, "wrong"))));
        Node right = claimedIn(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AnotherRootWasCommitted.selector, wrong, right));
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, hash, wrong, right);
    }

    // ---------------------------------------------------------------------------------------------------------------- committing

    function test_commitOfAStateThatIsNotTheLastLeaf_reverts() public {
        Run memory honest = honestRun(60, 5);
        JobId job = post(60, 5);
        Tree memory tree = Runs.checkpointTree(honest);
        NextRoot memory claimed = asNextRoot(tree);
        claimed.lastLeafProof = Trees.proof(tree, 10);
        bytes32 hash = hashOf(job);
        vm.prank(trainer);
        (bool ok, bytes memory why) =
            address(game).call{value: TRAINER_BOND}(abi.encodeCall(game.commit, (job, hash, claimed, honest.states[54], "l", "m")));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the proof is checked at the last index");
        claimed.lastLeafProof = new bytes32[](3);
        vm.prank(trainer);
        (ok, why) =
            address(game).call{value: TRAINER_BOND}(abi.encodeCall(game.commit, (job, hash, claimed, honest.states[59], "l", "m")));
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "exact depth");
    }

    function test_aJobTakesOneClaim() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        NextRoot memory claimed = asNextRoot(Runs.checkpointTree(honestRun(60, 5)));
        bytes32 hash = hashOf(job);
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.OPEN));
        vm.prank(stranger);
        game.commit{value: TRAINER_BOND}(job, hash, claimed, state, "l", "m");
    }

    function test_whereTheTermsNameATrainer_nobodyElseCommits() public {
        Terms memory t = terms();
        t.trainer = trainer;
        vm.prank(customer);
        JobId job = game.postJob{value: REWARD}(spec(60, 5), t, "cid");
        bytes32 hash = hashOf(job);
        NextRoot memory claimed = asNextRoot(Runs.checkpointTree(honestRun(60, 5)));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheTrainer.selector, stranger, trainer));
        vm.prank(stranger);
        game.commit{value: TRAINER_BOND}(job, hash, claimed, state, "l", "m");
        commitRun(job, honestRun(60, 5));
    }

    function test_theInstantOfTheCommitDeadline_belongsToTheTrainer() public {
        JobId job = post(60, 5);
        later(COMMIT_WINDOW);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.TooEarly.selector, START + COMMIT_WINDOW, START + COMMIT_WINDOW));
        game.reclaim(job);
        commitRun(job, honestRun(60, 5));
    }

    function test_afterTheCommitDeadline_theRewardReturns_once() public {
        JobId job = post(60, 5);
        bytes32 hash = hashOf(job);
        later(COMMIT_WINDOW + 1);
        NextRoot memory claimed = asNextRoot(Runs.checkpointTree(honestRun(60, 5)));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + COMMIT_WINDOW + 1, START + COMMIT_WINDOW)
        );
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(job, hash, claimed, state, "l", "m");
        vm.prank(stranger);
        game.reclaim(job);
        assertCredits(REWARD, 0, 0);
        assertJob(job, JobStatus.EXPIRED);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.EXPIRED, JobStatus.OPEN));
        game.reclaim(job);
    }

    // -------------------------------------------------------------------------------------------------------------- attestations

    function test_attestations_areCountedOncePerAccount_andOnlyForTheCommittedRoot() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        Node root = Node.wrap(Trees.root(Runs.checkpointTree(honestRun(60, 5))));
        bytes32 hash = hashOf(job);
        vm.prank(auditor);
        game.attest(job, hash, root, "", "", ANY_PLACE);
        vm.assertTrue(game.hasAttested(job, auditor), "attested");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyAttested.selector, job, auditor));
        vm.prank(auditor);
        game.attest(job, hash, root, "", "", ANY_PLACE);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AnotherRootWasCommitted.selector, bytes32(uint256(1)), root));
        vm.prank(stranger);
        game.attest(job, hash, Node.wrap(bytes32(uint256(1))), "", "", ANY_PLACE);
        vm.assertEq(game.getJob(job).attestations, 1, "one attestation");
        later(CHALLENGE_WINDOW + 1);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + CHALLENGE_WINDOW + 1, START + CHALLENGE_WINDOW)
        );
        vm.prank(stranger);
        game.attest(job, hash, root, "", "", ANY_PLACE);
    }

    // --------------------------------------------------------------------------------------------------------------- challenging

    function test_theInstantOfTheChallengeDeadline_belongsToTheChallenger() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        later(CHALLENGE_WINDOW);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooEarly.selector, START + CHALLENGE_WINDOW, START + CHALLENGE_WINDOW)
        );
        game.finalize(job);
        challengeRun(job, auditor, wrongRun(60, 5, 3, "wrong"));
        later(1);
        bytes32 root = Trees.root(Runs.checkpointTree(wrongRun(60, 5, 3, "wrong")));
        bytes32 hash = hashOf(job);
        Node claimed = claimedIn(job);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + CHALLENGE_WINDOW + 1, START + CHALLENGE_WINDOW)
        );
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, hash, claimed, Node.wrap(root));
    }

    function test_challengeWithTheTrainersOwnRoot_reverts() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        bytes32 root = Trees.root(Runs.checkpointTree(honestRun(60, 5)));
        bytes32 hash = hashOf(job);
        Node claimed = claimedIn(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.RootIsTheTrainers.selector, root));
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, hash, claimed, Node.wrap(root));
    }

    function test_finalizeWithALiveGame_reverts_howeverLateItIs() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        challengeRun(job, auditor, wrongRun(60, 5, 3, "wrong"));
        later(CHALLENGE_WINDOW + 300 days);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.LiveGames.selector, job, uint64(1)));
        game.finalize(job);
        game.claimTimeout(GameId.wrap(1));
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.FINAL, JobStatus.CLAIMED));
        game.finalize(job);
    }

    function test_aFriendWhoTakesTheRightRootAndLosesOnPurpose_doesNotProtectAWrongClaim() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        JobId job = post(20, 5);
        commitRun(job, wrong);
        GameId friends = challengeRun(job, stranger, honest);
        GameId auditors = challengeRun(job, auditor, honest);
        playToOpening(auditors, Level.STEP, wrong, honest);
        later(ALLOWANCE + 1);
        game.claimTimeout(friends);
        assertOver(friends, Outcome.TRAINER_WON, Reason.TIMEOUT);
        vm.assertEq(game.getJob(job).liveGames, 1, "the auditor's game is not touched");
        assertPhase(auditors, Phase.OPENING);
    }

    function test_theFirstLostGame_rejectsTheClaim_andEveryOtherChallengerGetsItsBondBack() public {
        Run memory honest = honestRun(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        (JobId job, GameId first) = dispute(wrong, honest);
        GameId second = challengeRun(job, stranger, honest);
        GameId third = challengeRun(job, stranger, wrongRun(20, 5, 2, "also wrong"));
        step(second, wrong, honest);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.REJECTED)
        );
        game.releaseBond(second);
        play(first, wrong, honest);

        vm.assertEq(game.getJob(job).liveGames, 0, "no game goes on");
        assertOver(second, Outcome.VOID, Reason.CLAIM_REJECTED);
        vm.assertTrue(game.getGame(second).bondHeld, "to be released");
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.REJECTED, JobStatus.CLAIMED)
        );
        game.claimTimeout(second);
        game.releaseBond(second);
        vm.prank(customer);
        game.releaseBond(third);
        vm.assertEq(game.creditOf(stranger), 2 * CHALLENGER_BOND, "both bonds");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, second));
        game.releaseBond(second);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.BondNotHeld.selector, first));
        game.releaseBond(first);
        assertCredits(REWARD + TRAINER_BOND / 4, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
    }

    function test_gamesOfAJob_arePaged() public {
        JobId job = post(20, 5);
        commitRun(job, honestRun(20, 5));
        for (uint256 i = 0; i < 5; ++i) {
            challengeRoot(job, auditor, keccak256(abi.encode(i)));
        }
        vm.assertEq(game.gamesOf(job, 0, 10).length, 5, "all");
        vm.assertEq(game.gamesOf(job, 3, 10).length, 2, "the last two");
        vm.assertEq(game.gamesOf(job, 9, 10).length, 0, "none");
        vm.assertEq(GameId.unwrap(game.gamesOf(job, 3, 1)[0]), 4, "the fourth");
        vm.assertEq(game.gamesOf(job, 0, type(uint256).max).length, 5, "no overflow");
    }
}
