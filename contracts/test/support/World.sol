// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../../src/game/Bisection.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Terms} from "../../src/Types.sol";
import {Timestamp} from "../../src/Time.sol";
import {GameView, JobView} from "../../src/Views.sol";
import {IllegalMoves} from "./IllegalMoves.sol";
import {Lie, Run, Runs} from "./Runs.sol";
import {Trees} from "./Trees.sol";

/// @notice A small economy for the fuzzer: honest parties that always answer in time, liars that answer when the fuzzer lets them,
///         and strangers who try what is not allowed. Keeps a record of its own of who was honest.
contract World is IllegalMoves {
    uint256 public constant MAX_JOBS = 5;
    uint256 public constant MAX_GAMES = 12;

    struct Claimed {
        bool honest;
        Lie lie;
        uint64 steps;
        uint64 interval;
        bool honestlyChallenged;
    }

    struct Challenged {
        uint256 job;
        bool honest;
        /// From step `steps` on if the challenger is right and merely unreliable.
        Lie lie;
        uint256 moves;
    }

    mapping(uint256 job => Claimed) public claims;
    mapping(uint256 game => Challenged) public challenges;
    /// @notice Of an account with a root, by the hash of job, account and root.
    mapping(bytes32 key => uint256 game) internal latest;

    string public broken;
    uint256 public illegalAttempts;

    /// @notice Few at a time, so that games wait.
    function terms() internal pure virtual override returns (Terms memory offered) {
        offered = super.terms();
        offered.concurrentGames = 2;
    }

    function setUp() public virtual override {
        super.setUp();
        liar = account("liar");
        cheat = account("cheat");
    }

    function accounts() public view returns (address[7] memory) {
        return [customer, trainer, auditor, referee, stranger, liar, cheat];
    }

    // ---------------------------------------------------------------------------------------------------------- honest and not

    function postJob(uint256 shape) external {
        if (game.jobCount() >= MAX_JOBS) return;
        uint64[2][5] memory shapes = [[uint64(6), 2], [uint64(3), 1], [uint64(4), 4], [uint64(1), 1], [uint64(6), 3]];
        uint64[2] memory chosen = shapes[shape % 5];
        uint256 job = JobId.unwrap(post(chosen[0], chosen[1]));
        (claims[job].steps, claims[job].interval) = (chosen[0], chosen[1]);
    }

    function commitHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job) || isBlind(job)) return;
        claims[job].honest = true;
        claims[job].lie.step = claims[job].steps;
        commitRun(JobId.wrap(uint64(job)), runOfTrainer(job));
    }

    function commitWrongly(uint256 jobSeed, Lie memory lie) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job) || isBlind(job)) return;
        claims[job].lie = tidy(lie, claims[job].steps - 1);
        address saved = trainer;
        trainer = cheat;
        commitRun(JobId.wrap(uint64(job)), runOfTrainer(job));
        trainer = saved;
    }

    function challengeHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        bool right = claims[job].lie.step == claims[job].steps;
        if (!found || right || !mayChallenge(job)) return;
        claims[job].honestlyChallenged = true;
        start(job, auditor, true, Lie(claims[job].steps, 0, 0, 0));
    }

    function challengeUnreliably(uint256 jobSeed, Lie memory lie) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (!found || !mayChallenge(job)) return;
        // Not the trainer's own root.
        lie = tidy(lie, claims[job].honest ? claims[job].steps - 1 : claims[job].steps);
        if (keccak256(abi.encode(lie)) == keccak256(abi.encode(claims[job].lie))) ++lie.delta;
        bytes32 root = Trees.root(Runs.checkpointTree(runWith(job, lie)));
        if (root == Trees.root(Runs.checkpointTree(runOfTrainer(job)))) return;
        start(job, liar, false, lie);
    }

    function tidy(Lie memory lie, uint256 lastStep) internal pure returns (Lie memory) {
        return Lie(lie.step % (lastStep + 1), lie.place % 8, 1 + lie.delta % 3, lie.segment % 3);
    }

    function isBlind(uint256 job) internal view returns (bool) {
        return !getJob(job).terms.openingWindow.isZero();
    }

    function mayCommit(uint256 job) internal view returns (bool) {
        return instant(time()) <= getJob(job).commitDeadline;
    }

    function mayChallenge(uint256 job) internal view returns (bool) {
        return game.gameCount() < MAX_GAMES && instant(time()) <= getJob(job).claim.challengeDeadline;
    }

    function start(uint256 job, address challenger, bool honest, Lie memory lie) private {
        Run memory run = runWith(job, lie);
        bytes32 key = keyOf(job, challenger, run);
        uint256 id = game.gameCount() + 1;
        if (latest[key] != 0 && game.getGame(GameId.wrap(uint64(latest[key]))).phase != Phase.OVER) return; // refused
        latest[key] = id;
        challenges[id] = Challenged(job, honest, lie, 0);
        challengeRun(JobId.wrap(uint64(job)), challenger, run);
    }

    function keyOf(uint256 job, address challenger, Run memory run) internal pure returns (bytes32) {
        return keccak256(abi.encode(job, challenger, Trees.root(Runs.checkpointTree(run))));
    }

    /// @notice A side that owes a move makes it, as its run says, unless its time is over.
    function move(uint256 gameSeed, bool trainers) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (found) moveSide(id, trainers ? Side.TRAINER : Side.CHALLENGER);
    }

    /// @notice Both sides go on for a while, so that games get deep.
    function playOn(uint256 gameSeed, uint256 moves) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (!found) return;
        for (moves = bound(moves, 1, 16); moves > 0; --moves) {
            if (!moveSide(id, Side.TRAINER) && !moveSide(id, Side.CHALLENGER)) return;
        }
    }

    function moveSide(uint256 id, Side side) internal returns (bool moved) {
        GameView memory before = getGame(id);
        if (instant(time()) > before.deadlines[uint8(side)]) return false;
        moved = stepOf(GameId.wrap(uint64(id)), side, side == Side.TRAINER ? runOfTrainer(challenges[id].job) : runOfChallenger(id));
        if (!moved) return false;
        ++challenges[id].moves;
        examine(id, before, side);
    }

    /// @dev What has to be true after every move.
    function examine(uint256 id, GameView memory before, Side side) private {
        GameView memory shown = getGame(id);
        uint8 other = side == Side.TRAINER ? 1 : 0;
        // Time that a side has left is its own: nobody else's move takes it, or gives it.
        bool touched = keccak256(abi.encode(shown.clocks[other].remaining)) != keccak256(abi.encode(before.clocks[other].remaining));
        bool restarted = !before.clocks[other].startedAt.isNever()
            && keccak256(abi.encode(shown.clocks[other].startedAt)) != keccak256(abi.encode(before.clocks[other].startedAt));
        if (touched || restarted) broken = "a move touched the other side's clock";
        if (shown.phase == before.phase || before.phase != Phase.BISECTION) return;
        // A search has ended: at the leftmost difference.
        before.search.height = 0;
        (Run memory claimed, Run memory challenged) = (runOfTrainer(challenges[id].job), runOfChallenger(id));
        uint256 oracle = Trees.firstDifference(treeOf(before, claimed), treeOf(before, challenged));
        if (shown.levels[before.levels.length - 1].index != oracle) broken = "not the leftmost difference";
    }

    /// @notice Time goes by; whoever is honest has answered before.
    function wait_(uint256 length) external {
        answerHonestly();
        // Mostly minutes: who lets hours go by soon plays no game any more.
        later(bound(length, 1, length % 8 == 0 ? ALLOWANCE : 10 minutes));
    }

    function isHonest(uint256 id, Side side) internal view virtual returns (bool) {
        return side == Side.TRAINER ? claims[challenges[id].job].honest : challenges[id].honest;
    }

    function answerHonestly() public virtual {
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            // A move that finds the leaf is followed by an opening that the same side owes, hence the loops.
            if (isHonest(id, Side.TRAINER)) while (moveSide(id, Side.TRAINER)) {}
            if (isHonest(id, Side.CHALLENGER)) while (moveSide(id, Side.CHALLENGER)) {}
        }
    }

    // ---------------------------------------------------------------------------------------------------------- what anyone does

    function claimTimeout(uint256 gameSeed) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (!found) return;
        GameView memory before = getGame(id);
        if (!attempt(abi.encodeCall(game.claimTimeout, (GameId.wrap(uint64(id)))))) return;
        // Nobody loses but by its own clock.
        Outcome outcome = getGame(id).outcome;
        bool[2] memory isOut;
        for (uint256 side = 0; side < 2; ++side) {
            Timestamp deadline = before.deadlines[side];
            isOut[side] = !deadline.isNever() && instant(time()) > deadline;
        }
        Outcome expected = isOut[0] ? isOut[1] ? Outcome.BOTH_LOST : Outcome.CHALLENGER_WON : Outcome.TRAINER_WON;
        if (outcome != expected || !(isOut[0] || isOut[1])) broken = "a timeout against a side that had time";
    }

    function finalize(uint256 jobSeed) external {
        if (game.jobCount() > 0) attempt(abi.encodeCall(game.finalize, (JobId.wrap(uint64(1 + jobSeed % game.jobCount())))));
    }

    function reclaim(uint256 jobSeed) external {
        if (game.jobCount() > 0) attempt(abi.encodeCall(game.reclaim, (JobId.wrap(uint64(1 + jobSeed % game.jobCount())))));
    }

    function releaseBond(uint256 gameSeed) external {
        if (game.gameCount() == 0) return;
        attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(uint64(1 + gameSeed % game.gameCount())))));
    }

    function withdraw(uint256 who) external {
        vm.prank(accounts()[who % 7]);
        attempt(abi.encodeCall(game.withdraw, ()));
    }

    function attempt(bytes memory data) internal returns (bool ok) {
        (ok,) = address(game).call(data);
    }

    // ---------------------------------------------------------------------------------------------------------------- not allowed

    /// @notice Calls that no rule allows, whatever the state of the game. One that goes through is written down.
    function cheatSomehow(uint256 gameSeed, uint256 kind, bytes32 junk) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (!found) return;
        ++illegalAttempts;
        kind %= ILLEGAL_KINDS;
        GameView memory shown = getGame(id);
        Run[2] memory runs = [runOfTrainer(JobId.unwrap(shown.job)), runOfChallenger(id)];
        (bytes memory data, address sender) = illegalCall(GameId.wrap(uint64(id)), shown, runs, kind, junk);
        vm.prank(sender);
        if (attempt(data)) broken = string.concat("illegal call of kind ", vm.toString(kind));
    }

    // ------------------------------------------------------------------------------------------------------------------- the end

    /// @notice Everybody goes on until nothing is left to do, and takes its money.
    function finish() external {
        // A game that waits starts when another one is over, so there may be as many rounds as games, and as many as the windows of a job
        // have.
        for (uint256 round = 0; round < rounds() + game.gameCount(); ++round) {
            answerHonestly();
            later(ALLOWANCE + 1);
            tidyUp();
        }
        address[7] memory all = accounts();
        for (uint256 i = 0; i < all.length; ++i) {
            vm.prank(all[i]);
            attempt(abi.encodeCall(game.withdraw, ()));
        }
    }

    function rounds() internal pure virtual returns (uint256) {
        return 3 + (COMMIT_WINDOW + CHALLENGE_WINDOW) / ALLOWANCE;
    }

    /// @dev What anybody may do for everybody.
    function tidyUp() internal virtual {
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            attempt(abi.encodeCall(game.claimTimeout, (GameId.wrap(uint64(id)))));
            attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(uint64(id)))));
        }
        for (uint256 job = 1; job <= game.jobCount(); ++job) {
            attempt(abi.encodeCall(game.finalize, (JobId.wrap(uint64(job)))));
            attempt(abi.encodeCall(game.reclaim, (JobId.wrap(uint64(job)))));
        }
    }

    function getJob(uint256 job) public view returns (JobView memory) {
        return game.getJob(JobId.wrap(uint64(job)));
    }

    function getGame(uint256 id) public view returns (GameView memory) {
        return game.getGame(GameId.wrap(uint64(id)));
    }

    function instantNow() external view returns (Timestamp) {
        return instant(time());
    }

    function counts() external view returns (uint256 jobs, uint256 games) {
        return (game.jobCount(), game.gameCount());
    }

    function credits() external view returns (uint256 sum) {
        address[7] memory all = accounts();
        for (uint256 i = 0; i < all.length; ++i) {
            sum += game.creditOf(all[i]);
        }
    }

    function burnt() external view returns (uint256) {
        return game.burnt();
    }

    function funds() external view returns (uint256) {
        return address(game).balance;
    }

    function wealth(address who) external view returns (uint256) {
        return who.balance + game.creditOf(who);
    }

    function honestParties() external view returns (address, address) {
        return (trainer, auditor);
    }

    function runOfTrainer(uint256 job) internal view returns (Run memory) {
        return runWith(job, claims[job].lie);
    }

    function runOfChallenger(uint256 id) internal view returns (Run memory) {
        return runWith(challenges[id].job, challenges[id].lie);
    }

    function runWith(uint256 job, Lie memory lie) internal view returns (Run memory) {
        return Runs.with(claims[job].steps, claims[job].interval, lie);
    }

    /// @dev The first job from the seed on that has the status.
    function pick(uint256 seed, JobStatus status) internal view returns (uint256 job, bool found) {
        uint256 count = game.jobCount();
        for (uint256 i = 0; i < count && !found; ++i) {
            job = 1 + (seed % count + i) % count;
            found = game.getJob(JobId.wrap(uint64(job))).status == status;
        }
    }

    function pickGame(uint256 seed) internal view returns (uint256, bool) {
        uint256 count = game.gameCount();
        return count == 0 ? (0, false) : (1 + seed % count, true);
    }
}
