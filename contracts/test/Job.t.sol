// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IAdjudicator} from "../src/adjudication/IAdjudicator.sol";
import {Side} from "../src/Bisection.sol";
import {GameId, IVerificationGame, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/IVerificationGame.sol";
import {Level} from "../src/Level.sol";
import {Merkle, Node} from "../src/Merkle.sol";
import {Duration} from "../src/Time.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {VerificationGame} from "../src/VerificationGame.sol";
import {JobView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

/// @notice A receiver that calls back into `withdraw`, as a thief would.
contract Thief {
    IVerificationGame private _game;
    bool public calledBack;
    bool public refuses;

    constructor(IVerificationGame game, bool refuses_) {
        (_game, refuses) = (game, refuses_);
    }

    function post(TrainingSpec calldata spec, Terms calldata terms) external payable returns (JobId) {
        return _game.postJob{value: msg.value}(spec, terms, "bafyjob");
    }

    function take() external returns (uint256) {
        return _game.withdraw();
    }

    receive() external payable {
        require(!refuses, "no money, please");
        try _game.withdraw() {
            calledBack = true;
        } catch {}
    }
}

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

    function test_specVectorsSharedWithPython_haveTheSameHash() public view {
        string memory json = vm.readFile("tests/vectors/spec.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat("[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat("[", vm.toString(count), "]");
            vm.assertEq(
                game.hashSpec(readSpec(json, string.concat(key, ".spec"))),
                vm.parseJsonBytes32(json, string.concat(key, ".hash")),
                key
            );
        }
        vm.assertGt(count, 2, "the file holds specs");
    }

    function readSpec(string memory json, string memory key) private pure returns (TrainingSpec memory read) {
        read.steps = uint64(vm.parseJsonUint(json, string.concat(key, ".steps")));
        read.interval = uint64(vm.parseJsonUint(json, string.concat(key, ".interval")));
        read.programRoot = vm.parseJsonBytes32(json, string.concat(key, ".programRoot"));
        read.operatorCount = uint64(vm.parseJsonUint(json, string.concat(key, ".operatorCount")));
        read.initialStateRoot = vm.parseJsonBytes32(json, string.concat(key, ".initialStateRoot"));
        read.stateCount = uint64(vm.parseJsonUint(json, string.concat(key, ".stateCount")));
        read.dataRoot = vm.parseJsonBytes32(json, string.concat(key, ".dataRoot"));
        read.dataRows = uint64(vm.parseJsonUint(json, string.concat(key, ".dataRows")));
        read.batchSize = uint64(vm.parseJsonUint(json, string.concat(key, ".batchSize")));
        read.scheduleRoot = vm.parseJsonBytes32(json, string.concat(key, ".scheduleRoot"));
        read.seed = uint64(vm.parseJsonUint(json, string.concat(key, ".seed")));
        read.chunkSize = uint32(vm.parseJsonUint(json, string.concat(key, ".chunkSize")));
        read.roundingPolicy = uint8(vm.parseJsonUint(json, string.concat(key, ".roundingPolicy")));
        read.roundingBits = uint8(vm.parseJsonUint(json, string.concat(key, ".roundingBits")));
        read.logGuard = uint8(vm.parseJsonUint(json, string.concat(key, ".logGuard")));
        read.logVersion = uint8(vm.parseJsonUint(json, string.concat(key, ".logVersion")));
        read.referee = vm.parseJsonAddress(json, string.concat(key, ".referee"));
        read.adjudicator = IAdjudicator(vm.parseJsonAddress(json, string.concat(key, ".adjudicator")));
    }

    // ------------------------------------------------------------------------------------------------------------------- posting

    function expectPost(TrainingSpec memory posted, Terms memory offered, string memory cid, bytes memory why) private {
        vm.expectRevert(why);
        vm.prank(customer);
        game.postJob{value: offered.reward}(posted, offered, cid);
    }

    function outOfRange(string memory field, uint256 value, uint256 minimum, uint256 maximum) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IVerificationGame.FieldOutOfRange.selector, field, value, minimum, maximum);
    }

    function test_specsOutOfRange_areRefusedWithTheFieldsName() public {
        TrainingSpec memory s = spec(60, 5);
        Terms memory t = terms();
        s.steps = 0;
        expectPost(s, t, "cid", outOfRange("steps", 0, 1, 1 << 40));
        s.steps = (1 << 40) + 1;
        expectPost(s, t, "cid", outOfRange("steps", (1 << 40) + 1, 1, 1 << 40));
        s = spec(60, 0);
        expectPost(s, t, "cid", outOfRange("interval", 0, 1, 60));
        s = spec(60, 61);
        expectPost(s, t, "cid", outOfRange("interval", 61, 1, 60));
        s = spec(60, 7);
        expectPost(
            s, t, "cid", abi.encodeWithSelector(IVerificationGame.IntervalDoesNotDivideSteps.selector, uint64(7), uint64(60))
        );
        s = spec(60, 5);
        s.programRoot = 0;
        expectPost(s, t, "cid", outOfRange("programRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.operatorCount = s.stateCount - 1; // every slot is stored by an operator
        expectPost(s, t, "cid", outOfRange("operatorCount", s.stateCount - 1, s.stateCount, 1 << 40));
        s.operatorCount = (1 << 40) + 1;
        expectPost(s, t, "cid", outOfRange("operatorCount", (1 << 40) + 1, s.stateCount, 1 << 40));
        s = spec(60, 5);
        s.initialStateRoot = 0;
        expectPost(s, t, "cid", outOfRange("initialStateRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.stateCount = 0;
        expectPost(s, t, "cid", outOfRange("stateCount", 0, 1, 1 << 40));
        s = spec(60, 5);
        s.dataRoot = 0;
        expectPost(s, t, "cid", outOfRange("dataRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.dataRows = 0;
        expectPost(s, t, "cid", outOfRange("dataRows", 0, 1, 1 << 40));
        s = spec(60, 5);
        s.batchSize = 0;
        expectPost(s, t, "cid", outOfRange("batchSize", 0, 1, type(uint64).max / 60));
        s.batchSize = type(uint64).max / 60 + 1;
        expectPost(s, t, "cid", outOfRange("batchSize", s.batchSize, 1, type(uint64).max / 60));
        s = spec(60, 5);
        s.scheduleRoot = 0;
        expectPost(s, t, "cid", outOfRange("scheduleRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.chunkSize = 0;
        expectPost(s, t, "cid", outOfRange("chunkSize", 0, 1, 1 << 16));
        s = spec(60, 5);
        s.chunkSize = (1 << 16) + 8;
        expectPost(s, t, "cid", outOfRange("chunkSize", (1 << 16) + 8, 1, 1 << 16));
        s.chunkSize = 1020;
        expectPost(s, t, "cid", abi.encodeWithSelector(IVerificationGame.ChunkSizeSplitsElements.selector, uint32(1020)));
        s = spec(60, 5);
        s.roundingPolicy = 1; // threshold: no one right answer
        expectPost(s, t, "cid", outOfRange("roundingPolicy", 1, 0, 0));
        s = spec(60, 5);
        s.roundingBits = 22;
        expectPost(s, t, "cid", outOfRange("roundingBits", 22, 23, 32));
        s.roundingBits = 33;
        expectPost(s, t, "cid", outOfRange("roundingBits", 33, 23, 32));
        s = spec(60, 5);
        s.logGuard = 2;
        expectPost(s, t, "cid", outOfRange("logGuard", 2, 3, 255));
        s = spec(60, 5);
        s.logVersion = 0;
        expectPost(s, t, "cid", outOfRange("logVersion", 0, 1, 255));
        s = spec(60, 5);
        s.referee = address(0);
        expectPost(s, t, "cid", outOfRange("referee", 0, 1, type(uint160).max));
    }

    function test_anAdjudicatorWithoutCode_isRefused_inASpecAndByTheConstructor() public {
        TrainingSpec memory s = spec(60, 5);
        s.adjudicator = IAdjudicator(stranger);
        expectPost(s, terms(), "cid", abi.encodeWithSelector(IVerificationGame.NoAdjudicator.selector, stranger));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NoAdjudicator.selector, stranger));
        new VerificationGame(IAdjudicator(stranger));
        vm.assertEq(address(game.adjudicator()), address(adjudicator), "the one that a client proposes");
    }

    function test_termsOutOfRange_areRefusedWithTheFieldsName() public {
        TrainingSpec memory s = spec(60, 5);
        Terms memory t = terms();
        t.reward = 0;
        expectPost(s, t, "cid", outOfRange("reward", 0, 1, type(uint128).max));
        t = terms();
        t.trainerBond = 0;
        expectPost(s, t, "cid", outOfRange("trainerBond", 0, 1, type(uint128).max));
        t = terms();
        t.challengerBond = 0;
        expectPost(s, t, "cid", outOfRange("challengerBond", 0, 1, type(uint128).max));
        t = terms();
        t.commitWindow = Duration.wrap(0);
        expectPost(s, t, "cid", outOfRange("commitWindow", 0, 1, 365 days));
        t = terms();
        t.challengeWindow = Duration.wrap(0);
        expectPost(s, t, "cid", outOfRange("challengeWindow", 0, 1, 365 days));
        t = terms();
        t.clockAllowance = Duration.wrap(365 days + 1);
        expectPost(s, t, "cid", outOfRange("clockAllowance", 365 days + 1, 1, 365 days));
        t = terms();
        t.refereeAllowance = Duration.wrap(type(uint64).max);
        expectPost(s, t, "cid", outOfRange("refereeAllowance", type(uint64).max, 1, 365 days));
    }

    function test_contentAddresses_areOneTo128Bytes() public {
        string memory longest = string(new bytes(128));
        string memory tooLong = string(new bytes(129));
        expectPost(spec(60, 5), terms(), "", abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 0, 128));
        expectPost(spec(60, 5), terms(), tooLong, abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128));
        vm.prank(customer);
        game.postJob{value: REWARD}(spec(60, 5), terms(), longest);
        Tree memory tree = Runs.checkpointTree(honestRun(60, 5));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128));
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(JobId.wrap(1), Node.wrap(Trees.root(tree)), state, Trees.proof(tree, 11), tooLong, "m");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 0, 128));
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(JobId.wrap(1), Node.wrap(Trees.root(tree)), state, Trees.proof(tree, 11), "l", "");
    }

    function test_everyPayment_hasToBeExact() public {
        vm.prank(customer);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, REWARD - 1, REWARD));
        game.postJob{value: REWARD - 1}(spec(60, 5), terms(), "cid");
        JobId job = post(60, 5);
        Run memory honest = honestRun(60, 5);
        Tree memory tree = Runs.checkpointTree(honest);
        vm.prank(trainer);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, TRAINER_BOND + 1, TRAINER_BOND));
        game.commit{value: TRAINER_BOND + 1}(job, Node.wrap(Trees.root(tree)), honest.states[59], Trees.proof(tree, 11), "l", "m");
        commitRun(job, honest);
        vm.prank(auditor);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, 0, CHALLENGER_BOND));
        game.challenge(job, Node.wrap(bytes32(uint256(1))));
    }

    // ---------------------------------------------------------------------------------------------------------------- committing

    function test_commitOfAStateThatIsNotTheLastLeaf_reverts() public {
        Run memory honest = honestRun(60, 5);
        JobId job = post(60, 5);
        Tree memory tree = Runs.checkpointTree(honest);
        vm.prank(trainer);
        (bool ok, bytes memory why) = address(game).call{value: TRAINER_BOND}(
            abi.encodeCall(game.commit, (job, Node.wrap(Trees.root(tree)), honest.states[54], Trees.proof(tree, 10), "l", "m"))
        );
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProof.selector, "the proof is checked at the last index");
        vm.prank(trainer);
        (ok, why) = address(game).call{value: TRAINER_BOND}(
            abi.encodeCall(game.commit, (job, Node.wrap(Trees.root(tree)), honest.states[59], new bytes32[](3), "l", "m"))
        );
        vm.assertTrue(!ok && bytes4(why) == Merkle.WrongProofLength.selector, "exact depth");
    }

    function test_aJobTakesOneClaim() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        Tree memory tree = Runs.checkpointTree(honestRun(60, 5));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongJobStatus.selector, job, JobStatus.CLAIMED, JobStatus.OPEN));
        vm.prank(stranger);
        game.commit{value: TRAINER_BOND}(job, Node.wrap(Trees.root(tree)), state, Trees.proof(tree, 11), "l", "m");
    }

    function test_whereTheTermsNameATrainer_nobodyElseCommits() public {
        Terms memory t = terms();
        t.trainer = trainer;
        vm.prank(customer);
        JobId job = game.postJob{value: REWARD}(spec(60, 5), t, "cid");
        Tree memory tree = Runs.checkpointTree(honestRun(60, 5));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NotTheTrainer.selector, stranger, trainer));
        vm.prank(stranger);
        game.commit{value: TRAINER_BOND}(job, Node.wrap(Trees.root(tree)), state, Trees.proof(tree, 11), "l", "m");
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
        later(COMMIT_WINDOW + 1);
        Tree memory tree = Runs.checkpointTree(honestRun(60, 5));
        bytes32 state = honestRun(60, 5).states[59];
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + COMMIT_WINDOW + 1, START + COMMIT_WINDOW)
        );
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(job, Node.wrap(Trees.root(tree)), state, Trees.proof(tree, 11), "l", "m");
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
        vm.prank(auditor);
        game.attest(job, root);
        vm.assertTrue(game.hasAttested(job, auditor), "attested");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyAttested.selector, job, auditor));
        vm.prank(auditor);
        game.attest(job, root);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AnotherRootWasCommitted.selector, bytes32(uint256(1)), root));
        vm.prank(stranger);
        game.attest(job, Node.wrap(bytes32(uint256(1))));
        vm.assertEq(game.getJob(job).attestations, 1, "one attestation");
        later(CHALLENGE_WINDOW + 1);
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + CHALLENGE_WINDOW + 1, START + CHALLENGE_WINDOW)
        );
        vm.prank(stranger);
        game.attest(job, root);
    }

    // ---------------------------------------------------------------------------------------------------------------- challenging

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
        vm.expectRevert(
            abi.encodeWithSelector(IVerificationGame.TooLate.selector, START + CHALLENGE_WINDOW + 1, START + CHALLENGE_WINDOW)
        );
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, Node.wrap(root));
    }

    function test_challengeWithTheTrainersOwnRoot_reverts() public {
        JobId job = post(60, 5);
        commitRun(job, honestRun(60, 5));
        bytes32 root = Trees.root(Runs.checkpointTree(honestRun(60, 5)));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.RootIsTheTrainers.selector, root));
        vm.prank(auditor);
        game.challenge{value: CHALLENGER_BOND}(job, Node.wrap(root));
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
        assertCredits(REWARD + TRAINER_BOND / 2, 0, CHALLENGER_BOND + TRAINER_BOND / 2);
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

    // --------------------------------------------------------------------------------------------------------------------- money

    function test_challengingOneself_neverPays() public {
        // The trainer is right and plays against itself: it gets half of its own bond back.
        Run memory honest = honestRun(20, 5);
        JobId job = post(20, 5);
        commitRun(job, honest);
        vm.prank(trainer);
        game.challenge{value: CHALLENGER_BOND}(job, Node.wrap(keccak256("nonsense")));
        later(ALLOWANCE + 1);
        game.claimTimeout(GameId.wrap(1));
        assertCredits(CHALLENGER_BOND - CHALLENGER_BOND / 2, CHALLENGER_BOND / 2, 0);
        // The trainer is wrong and beats itself first: it loses half of the claim's bond.
        job = post(20, 5);
        Run memory wrong = wrongRun(20, 5, 8, "wrong");
        commitRun(job, wrong);
        GameId id = challengeRun(job, trainer, honest);
        play(id, wrong, honest);
        vm.assertEq(game.creditOf(trainer), CHALLENGER_BOND / 2 + CHALLENGER_BOND + TRAINER_BOND / 2, "less than it put in");
    }

    function testFuzz_bondsOfAnySize_areDividedWithoutLosingAWei(uint128 trainerBond, uint128 challengerBond, bool trainerWins)
        public
    {
        Terms memory t = terms();
        t.trainerBond = uint128(bound(trainerBond, 1, 1 ether));
        t.challengerBond = uint128(bound(challengerBond, 1, 1 ether));
        TrainingSpec memory s = spec(1, 1);
        vm.prank(customer);
        JobId job = game.postJob{value: REWARD}(s, t, "cid");
        Run memory claimed = trainerWins ? honestRun(1, 1) : wrongRun(1, 1, 0, "wrong");
        Run memory challenged = trainerWins ? wrongRun(1, 1, 0, "wrong") : honestRun(1, 1);
        Node[2] memory roots =
            [Node.wrap(Trees.root(Runs.checkpointTree(claimed))), Node.wrap(Trees.root(Runs.checkpointTree(challenged)))];
        vm.prank(trainer);
        game.commit{value: t.trainerBond}(job, roots[0], claimed.states[0], new bytes32[](0), "l", "m");
        vm.prank(auditor);
        GameId id = game.challenge{value: t.challengerBond}(job, roots[1]);
        playOut(id, claimed, challenged);
        if (trainerWins) {
            later(CHALLENGE_WINDOW + 1);
            game.finalize(job);
        }
        uint128 lost = trainerWins ? t.challengerBond : t.trainerBond;
        uint256 winners = game.creditOf(trainerWins ? trainer : auditor);
        vm.assertLe(winners - (trainerWins ? REWARD + t.trainerBond : t.challengerBond), lost / 2, "at most half to the winner");
        uint256 credits = game.creditOf(customer) + game.creditOf(trainer) + game.creditOf(auditor);
        vm.assertEq(credits, address(game).balance, "every wei is somebody's");
    }

    function test_withdrawingNothing_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NothingToWithdraw.selector, stranger));
        vm.prank(stranger);
        game.withdraw();
    }

    function test_aReceiverThatCallsBack_getsItsMoneyOnce() public {
        post(60, 5); // another customer's money, to be safe from the thief
        Thief thief = new Thief(game, false);
        vm.prank(customer);
        JobId job = thief.post{value: REWARD}(spec(60, 5), terms());
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        vm.assertEq(thief.take(), REWARD, "its own");
        vm.assertTrue(!thief.calledBack(), "no second time");
        vm.assertEq(address(thief).balance, REWARD, "no more than its own");
        vm.assertEq(address(game).balance, REWARD, "the other customer's money is there");
    }

    function test_aReceiverThatRefuses_keepsItsCredit_andHoldsUpNobody() public {
        Thief thief = new Thief(game, true);
        vm.prank(customer);
        JobId job = thief.post{value: REWARD}(spec(60, 5), terms());
        later(COMMIT_WINDOW + 1);
        game.reclaim(job);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WithdrawalFailed.selector, address(thief), REWARD));
        thief.take();
        vm.assertEq(game.creditOf(address(thief)), REWARD, "still there");
    }

    function test_moneySentWithoutACall_isRefused() public {
        vm.prank(stranger);
        (bool ok,) = address(game).call{value: 1}("");
        vm.assertTrue(!ok, "no receive function");
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
}
