// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Children, Side} from "../../src/Bisection.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Terms} from "../../src/IVerificationGame.sol";
import {Level} from "../../src/Level.sol";
import {Node} from "../../src/Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "../../src/Moves.sol";
import {Timestamp} from "../../src/Time.sol";
import {GameView, JobView} from "../../src/Views.sol";
import {Players} from "./Players.sol";
import {Lie, Run, Runs} from "./Runs.sol";
import {Toy} from "./Toy.sol";
import {Tree, Trees} from "./Trees.sol";

/// @notice A small economy for the fuzzer: honest parties that always answer in time, liars that answer when the fuzzer lets them,
///         and strangers who try what is not allowed. Keeps a record of its own of who was honest.
contract World is Players {
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
    mapping(bytes32 key => uint256 game) private latest;

    address public liar;
    address public cheat;
    string public broken;
    uint256 public illegalAttempts;

    /// @notice Few at a time, so that games wait.
    function terms() internal pure override returns (Terms memory offered) {
        offered = super.terms();
        offered.concurrentGames = 2;
    }

    function setUp() public override {
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
        if (!found || !mayCommit(job)) return;
        claims[job].honest = true;
        claims[job].lie.step = claims[job].steps;
        commitRun(JobId.wrap(uint64(job)), runOfTrainer(job));
    }

    function commitWrongly(uint256 jobSeed, Lie memory lie) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job)) return;
        claims[job].lie = tidy(lie, claims[job].steps - 1);
        address saved = trainer;
        trainer = cheat;
        commitRun(JobId.wrap(uint64(job)), runOfTrainer(job));
        trainer = saved;
    }

    function challengeHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (!found || claims[job].honest || !mayChallenge(job)) return;
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

    function tidy(Lie memory lie, uint256 lastStep) private pure returns (Lie memory) {
        return Lie(lie.step % (lastStep + 1), lie.place % 8, 1 + lie.delta % 3, lie.segment % 3);
    }

    function mayCommit(uint256 job) private view returns (bool) {
        return instant(time()) <= getJob(job).commitDeadline;
    }

    function mayChallenge(uint256 job) private view returns (bool) {
        return game.gameCount() < MAX_GAMES && instant(time()) <= getJob(job).claim.challengeDeadline;
    }

    function start(uint256 job, address challenger, bool honest, Lie memory lie) private {
        Run memory run = runWith(job, lie);
        bytes32 key = keccak256(abi.encode(job, challenger, Trees.root(Runs.checkpointTree(run))));
        uint256 id = game.gameCount() + 1;
        if (latest[key] != 0 && game.getGame(GameId.wrap(uint64(latest[key]))).phase != Phase.OVER) return; // refused
        latest[key] = id;
        challenges[id] = Challenged(job, honest, lie, 0);
        challengeRun(JobId.wrap(uint64(job)), challenger, run);
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

    function moveSide(uint256 id, Side side) private returns (bool moved) {
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

    function answerHonestly() public {
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            uint256 job = challenges[id].job;
            // A move that finds the leaf is followed by an opening that the same side owes, hence the loops.
            if (claims[job].honest) while (moveSide(id, Side.TRAINER)) {}
            if (challenges[id].honest) while (moveSide(id, Side.CHALLENGER)) {}
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
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (found) attempt(abi.encodeCall(game.finalize, (JobId.wrap(uint64(job)))));
    }

    function reclaim(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (found) attempt(abi.encodeCall(game.reclaim, (JobId.wrap(uint64(job)))));
    }

    function releaseBond(uint256 gameSeed) external {
        if (game.gameCount() == 0) return;
        attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(uint64(1 + gameSeed % game.gameCount())))));
    }

    function withdraw(uint256 who) external {
        vm.prank(accounts()[who % 7]);
        attempt(abi.encodeCall(game.withdraw, ()));
    }

    function attempt(bytes memory data) private returns (bool ok) {
        (ok,) = address(game).call(data);
    }

    // ---------------------------------------------------------------------------------------------------------------- not allowed

    uint256 public constant ILLEGAL_KINDS = 16;

    /// @notice Calls that no rule allows, whatever the state of the game. One that goes through is written down.
    function cheatSomehow(uint256 gameSeed, uint256 kind, bytes32 junk) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (!found) return;
        ++illegalAttempts;
        kind %= ILLEGAL_KINDS;
        GameView memory shown = getGame(id);
        (bytes memory data, address sender) = kind < 9
            ? illegalAbove(GameId.wrap(uint64(id)), shown, kind, junk)
            : illegalBelow(GameId.wrap(uint64(id)), shown, kind, junk);
        vm.prank(sender);
        if (attempt(data)) broken = string.concat("illegal call of kind ", vm.toString(kind));
    }

    function illegalAbove(GameId id, GameView memory shown, uint256 kind, bytes32 junk)
        private
        view
        returns (bytes memory, address)
    {
        Children memory nonsense = Children(Node.wrap(junk), Node.wrap(keccak256(abi.encode(junk))));
        Children memory nothing;
        if (kind == 0) return (abi.encodeCall(game.bisect, (id, nonsense, nothing)), liar);
        if (kind == 1) return (abi.encodeCall(game.bisect, (id, nonsense, nonsense)), cheat);
        Run memory claimed = runOfTrainer(JobId.unwrap(shown.job));
        if (kind == 2) {
            // The right opening, and junk below it: never the children of anything.
            if (shown.phase != Phase.BISECTION) return (abi.encodeCall(game.bisect, (id, nothing, nothing)), liar);
            Run memory mover = shown.search.turn == Side.TRAINER ? claimed : runOfChallenger(GameId.unwrap(id));
            (Children memory opened,) = nextBisection(shown, mover);
            return (abi.encodeCall(game.bisect, (id, opened, nonsense)), liar);
        }
        LeafOpening memory leaf = LeafOpening(junk, initialState, new bytes32[](0));
        if (kind == 3) return (abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, nextRoot0(shown, claimed))), shown.trainer);
        if (kind == 4) return (abi.encodeCall(game.proveStore, (id, junk, leaf.agreedProof)), liar);
        if (kind == 5 && shown.phase == Phase.OPENING && levelOf(shown) < Level.OPERATOR) {
            // Everything right, but sent by a stranger.
            leaf = leafOpening(shown, claimed);
            return (abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, nextRoot(shown, claimed))), stranger);
        }
        if (kind == 6) return (abi.encodeCall(game.adjudicate, (id, uint64(uint256(junk)))), liar);
        // Without their bonds.
        bytes32 hash = hashOf(shown.job);
        if (kind == 7) return (abi.encodeCall(game.challenge, (shown.job, hash, claimedIn(shown.job), Node.wrap(junk))), stranger);
        return (abi.encodeCall(game.commit, (shown.job, hash, Node.wrap(junk), junk, leaf.agreedProof, "l", "m")), stranger);
    }

    function nextRoot0(GameView memory shown, Run memory run) private pure returns (NextRoot memory next) {
        next.root = Node.wrap(run.states[0]);
        if (levelOf(shown) == Level.CHECKPOINT) next.lastLeafProof = Trees.proof(Runs.stepTree(run, 0), run.interval - 1);
    }

    function illegalBelow(GameId id, GameView memory shown, uint256 kind, bytes32 junk)
        private
        view
        returns (bytes memory, address)
    {
        Run memory wrong = runOfChallenger(GameId.unwrap(id));
        if (kind == 9 && shown.phase == Phase.OPENING && levelOf(shown) == Level.OPERATOR) {
            // Another output than the one below the leaf.
            OperatorOpening memory operator = operatorOpening(shown, wrong);
            operator.tensorRoot = junk;
            return (abi.encodeCall(game.openOperator, (id, Side.CHALLENGER, operator)), shown.challenger);
        }
        if (kind == 10) return (abi.encodeCall(game.postChunk, (id, abi.encode(junk))), shown.trainer);
        if (kind == 11 && shown.phase == Phase.PROVING && levelOf(shown) == Level.CHUNK) {
            // The trainer's chunk is what it has posted.
            ElementProof memory element = elementProof(shown, wrong, posted[id]);
            element.chunk = abi.encode(junk);
            return (abi.encodeCall(game.proveElement, (id, element)), shown.challenger);
        }
        if (kind == 12 && shown.operator.segments > 1 && shown.phase == Phase.PROVING && levelOf(shown) == Level.CHUNK) {
            // Everything right, but sent by a stranger.
            ElementProof memory named = elementProof(shown, wrong, posted[id]);
            return (abi.encodeCall(game.disputeSum, (id, named.descriptor, named.chunk, named.position)), stranger);
        }
        if (kind == 13 && shown.phase == Phase.OPENING && levelOf(shown) == Level.PARTIAL) {
            PartialsOpening memory opening = partialsOpening(shown, wrong);
            return (abi.encodeCall(game.openPartials, (id, Side.CHALLENGER, opening)), shown.trainer);
        }
        if (kind == 14 && shown.phase == Phase.PROVING && levelOf(shown) == Level.PARTIAL) {
            SegmentProof memory segment = segmentProof(shown, wrong);
            segment.before.words[2] = junk | bytes32(uint256(1));
            return (abi.encodeCall(game.proveSegment, (id, segment)), shown.challenger);
        }
        if (kind == 15 && shown.phase == Phase.PROVING && levelOf(shown) == Level.OPERATOR) {
            // What another operator has computed is not what the store keeps.
            Tree memory trace = Runs.traceTree(wrong, stepAt(shown, wrong));
            bytes32 other = Trees.root(Runs.outputTree(wrong, stepAt(shown, wrong), 0));
            return (abi.encodeCall(game.proveStore, (id, other, Trees.proof(trace, 0))), shown.challenger);
        }
        ElementProof memory nothing;
        return (abi.encodeCall(game.proveElement, (id, nothing)), liar);
    }

    // ------------------------------------------------------------------------------------------------------------------- the end

    /// @notice Everybody goes on until nothing is left to do, and takes its money.
    function finish() external {
        // A game that waits starts when another one is over, so there may be as many rounds as games.
        for (uint256 round = 0; round < 3 + game.gameCount(); ++round) {
            answerHonestly();
            later(ALLOWANCE + 1);
            for (uint256 id = 1; id <= game.gameCount(); ++id) {
                attempt(abi.encodeCall(game.claimTimeout, (GameId.wrap(uint64(id)))));
            }
        }
        later(COMMIT_WINDOW + CHALLENGE_WINDOW);
        for (uint256 job = 1; job <= game.jobCount(); ++job) {
            attempt(abi.encodeCall(game.finalize, (JobId.wrap(uint64(job)))));
            attempt(abi.encodeCall(game.reclaim, (JobId.wrap(uint64(job)))));
        }
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(uint64(id)))));
        }
        address[7] memory all = accounts();
        for (uint256 i = 0; i < all.length; ++i) {
            vm.prank(all[i]);
            attempt(abi.encodeCall(game.withdraw, ()));
        }
    }

    // -------------------------------------------------------------------------------------------------------------------- records

    function getJob(uint256 job) public view returns (JobView memory) {
        return game.getJob(JobId.wrap(uint64(job)));
    }

    function getGame(uint256 id) public view returns (GameView memory) {
        return game.getGame(GameId.wrap(uint64(id)));
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

    function runOfTrainer(uint256 job) private view returns (Run memory) {
        return runWith(job, claims[job].lie);
    }

    function runOfChallenger(uint256 id) private view returns (Run memory) {
        return runWith(challenges[id].job, challenges[id].lie);
    }

    function runWith(uint256 job, Lie memory lie) private view returns (Run memory) {
        return Runs.with(claims[job].steps, claims[job].interval, lie);
    }

    /// @dev The first job from the seed on that has the status.
    function pick(uint256 seed, JobStatus status) private view returns (uint256 job, bool found) {
        uint256 count = game.jobCount();
        for (uint256 i = 0; i < count && !found; ++i) {
            job = 1 + (seed % count + i) % count;
            found = game.getJob(JobId.wrap(uint64(job))).status == status;
        }
    }

    function pickGame(uint256 seed) private view returns (uint256, bool) {
        uint256 count = game.gameCount();
        return count == 0 ? (0, false) : (1 + seed % count, true);
    }
}
