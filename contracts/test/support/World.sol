// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Children, Side} from "../../src/Bisection.sol";
import {GameId, GameView, JobId, JobStatus, JobView, LeafOpening, NextRoot, Outcome, Phase} from "../../src/IVerificationGame.sol";
import {Node} from "../../src/Merkle.sol";
import {GameTest, Run} from "./GameTest.sol";
import {Trees} from "./Trees.sol";

/// @notice A small economy for the fuzzer: honest parties that always answer in time, liars that answer when the fuzzer lets them,
///         and strangers who try what is not allowed. Keeps a record of its own of who was honest.
contract World is GameTest {
    uint256 public constant MAX_JOBS = 5;
    uint256 public constant MAX_GAMES = 12;

    struct Claimed {
        bool honest;
        uint256 from;
        uint64 steps;
        uint64 interval;
        bool honestlyChallenged;
    }

    struct Challenged {
        uint256 job;
        bool honest;
        /// First step at which the challenger's run is wrong; `steps` if it is right and merely unreliable.
        uint256 from;
        uint256 moves;
    }

    mapping(uint256 job => Claimed) public claims;
    mapping(uint256 game => Challenged) public challenges;

    address public liar;
    address public cheat;
    string public broken;
    uint256 public illegalAttempts;

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
        uint64[2][5] memory shapes = [[uint64(12), 4], [uint64(5), 1], [uint64(4), 4], [uint64(1), 1], [uint64(14), 2]];
        uint64[2] memory chosen = shapes[shape % 5];
        uint256 job = JobId.unwrap(post(chosen[0], chosen[1]));
        (claims[job].steps, claims[job].interval) = (chosen[0], chosen[1]);
    }

    function commitHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job)) return;
        claims[job].honest = true;
        claims[job].from = claims[job].steps;
        commitRun(JobId.wrap(job), runOfTrainer(job));
    }

    function commitWrongly(uint256 jobSeed, uint256 from) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job)) return;
        claims[job].from = from % claims[job].steps;
        address saved = trainer;
        trainer = cheat;
        commitRun(JobId.wrap(job), runOfTrainer(job));
        trainer = saved;
    }

    function challengeHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (!found || claims[job].honest || !mayChallenge(job)) return;
        claims[job].honestlyChallenged = true;
        start(job, auditor, true, claims[job].steps);
    }

    function challengeUnreliably(uint256 jobSeed, uint256 from) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (!found || !mayChallenge(job)) return;
        from = from % (claims[job].steps + 1);
        if (claims[job].honest && from == claims[job].steps) --from;
        start(job, liar, false, from);
    }

    function mayCommit(uint256 job) private view returns (bool) {
        return instant(time()) <= game.getJob(JobId.wrap(job)).commitDeadline;
    }

    function mayChallenge(uint256 job) private view returns (bool) {
        return game.gameCount() < MAX_GAMES && instant(time()) <= game.getJob(JobId.wrap(job)).claim.challengeDeadline;
    }

    function start(uint256 job, address challenger, bool honest, uint256 from) private {
        uint256 id = game.gameCount() + 1;
        challenges[id] = Challenged(job, honest, from, 0);
        challengeRun(JobId.wrap(job), challenger, runOfChallenger(id));
    }

    /// @notice A side that owes a move makes it, as its run says, unless its time is over.
    function move(uint256 gameSeed, bool trainers) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (found) moveSide(id, trainers ? Side.TRAINER : Side.CHALLENGER);
    }

    function moveSide(uint256 id, Side side) private returns (bool moved) {
        GameView memory shown = game.getGame(GameId.wrap(id));
        if (instant(time()) > shown.deadlines[uint8(side)]) return false;
        moved = stepOf(GameId.wrap(id), side, side == Side.TRAINER ? runOfTrainer(challenges[id].job) : runOfChallenger(id));
        if (moved) ++challenges[id].moves;
    }

    /// @notice Time goes by; whoever is honest has answered before.
    function wait_(uint256 length) external {
        answerHonestly();
        later(bound(length, 1, ALLOWANCE));
    }

    function answerHonestly() public {
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            uint256 job = challenges[id].job;
            // A move that finds the leaf is followed by an opening that the same side owes, hence the loops.
            if (claims[job].honest) while (moveSide(id, Side.TRAINER)) {}
            if (challenges[id].honest) while (moveSide(id, Side.CHALLENGER)) {}
            judge(id);
        }
    }

    function judge(uint256 id) private {
        if (game.getGame(GameId.wrap(id)).phase != Phase.REFEREE) return;
        GameView memory shown = game.getGame(GameId.wrap(id));
        uint64 interval = claims[challenges[id].job].interval;
        uint256 s = shown.levels[0].index * interval + shown.levels[1].index;
        // The referee computes: right from a right state, and something else from a state that both got wrong.
        bytes32 before = s == 0 ? INITIAL_STATE : honestRun(s, 1).states[s - 1];
        bytes32 verdict = shown.agreed == before ? honestRun(s + 1, 1).states[s] : keccak256(abi.encode(shown.agreed));
        adjudicate(GameId.wrap(id), verdict);
    }

    // ---------------------------------------------------------------------------------------------------------- what anyone does

    function claimTimeout(uint256 gameSeed) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (found) attempt(abi.encodeCall(game.claimTimeout, (GameId.wrap(id))));
    }

    function finalize(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (found) attempt(abi.encodeCall(game.finalize, (JobId.wrap(job))));
    }

    function reclaim(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (found) attempt(abi.encodeCall(game.reclaim, (JobId.wrap(job))));
    }

    function releaseBond(uint256 gameSeed) external {
        if (game.gameCount() == 0) return;
        attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(1 + gameSeed % game.gameCount()))));
    }

    function withdraw(uint256 who) external {
        address[7] memory all = accounts();
        vm.prank(all[who % all.length]);
        attempt(abi.encodeCall(game.withdraw, ()));
    }

    function attempt(bytes memory data) private returns (bool ok) {
        (ok,) = address(game).call(data);
    }

    // ---------------------------------------------------------------------------------------------------------------- not allowed

    /// @notice Calls that no rule allows, whatever the state of the game. One that goes through is written down.
    function cheatSomehow(uint256 gameSeed, uint256 kind, bytes32 junk) external {
        (uint256 id, bool found) = pickGame(gameSeed);
        if (!found) return;
        ++illegalAttempts;
        GameId gameId = GameId.wrap(id);
        GameView memory shown = game.getGame(gameId);
        (bytes memory data, address sender) = illegal(gameId, shown, kind % 9, junk);
        vm.prank(sender);
        if (attempt(data)) broken = string.concat("illegal call of kind ", vm.toString(kind % 9));
    }

    function illegal(GameId id, GameView memory shown, uint256 kind, bytes32 junk) private view returns (bytes memory, address) {
        Children memory nonsense = Children(Node.wrap(junk), Node.wrap(keccak256(abi.encode(junk))));
        Children memory nothing;
        if (kind == 0) return (abi.encodeCall(game.bisect, (id, nonsense, nothing)), liar);
        if (kind == 1) return (abi.encodeCall(game.bisect, (id, nonsense, nonsense)), cheat);
        Run memory claimed = runOfTrainer(JobId.unwrap(shown.job));
        if (kind == 2) {
            // The right opening, and junk below it: never the children of anything.
            if (shown.phase != Phase.BISECTION) return (abi.encodeCall(game.bisect, (id, nothing, nothing)), liar);
            Run memory mover = current(shown).turn == Side.TRAINER ? claimed : runOfChallenger(GameId.unwrap(id));
            (Children memory opened,) = nextBisection(shown, mover);
            return (abi.encodeCall(game.bisect, (id, opened, nonsense)), liar);
        }
        LeafOpening memory leaf;
        leaf.payload = junk;
        leaf.agreed = INITIAL_STATE;
        if (kind == 3) return (abi.encodeCall(game.revealLeaf, (id, Side.TRAINER, leaf)), cheat);
        if (kind == 4) return (abi.encodeCall(game.revealLeaf, (id, Side.CHALLENGER, leaf)), liar);
        if (kind == 5 && shown.phase == Phase.OPENING && shown.levels.length == 1) {
            // Everything right, but sent by a stranger.
            leaf = leafOpening(shown, claimed);
            return (abi.encodeCall(game.openLevel, (id, Side.TRAINER, leaf, nextRoot(shown, claimed))), stranger);
        }
        if (kind == 6) return (abi.encodeCall(game.adjudicate, (id, junk)), liar);
        if (kind == 7) return (abi.encodeCall(game.challenge, (shown.job, Node.wrap(junk))), stranger); // without its bond
        bytes32[] memory none = new bytes32[](0);
        return (abi.encodeCall(game.commit, (shown.job, Node.wrap(junk), junk, none, "l", "m")), stranger); // without its bond
    }

    // ------------------------------------------------------------------------------------------------------------------- the end

    /// @notice Everybody goes on until nothing is left to do, and takes its money.
    function finish() external {
        for (uint256 round = 0; round < 3; ++round) {
            answerHonestly();
            later(ALLOWANCE);
        }
        later(COMMIT_WINDOW + CHALLENGE_WINDOW);
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            attempt(abi.encodeCall(game.claimTimeout, (GameId.wrap(id))));
        }
        for (uint256 job = 1; job <= game.jobCount(); ++job) {
            attempt(abi.encodeCall(game.finalize, (JobId.wrap(job))));
            attempt(abi.encodeCall(game.reclaim, (JobId.wrap(job))));
        }
        for (uint256 id = 1; id <= game.gameCount(); ++id) {
            attempt(abi.encodeCall(game.releaseBond, (GameId.wrap(id))));
        }
        address[7] memory all = accounts();
        for (uint256 i = 0; i < all.length; ++i) {
            vm.prank(all[i]);
            attempt(abi.encodeCall(game.withdraw, ()));
        }
    }

    // -------------------------------------------------------------------------------------------------------------------- records

    function getJob(uint256 job) external view returns (JobView memory) {
        return game.getJob(JobId.wrap(job));
    }

    function getGame(uint256 id) external view returns (GameView memory) {
        return game.getGame(GameId.wrap(id));
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
        Claimed storage claim = claims[job];
        return wrongRun(claim.steps, claim.interval, claim.from, "cheat");
    }

    function runOfChallenger(uint256 id) private view returns (Run memory) {
        Challenged storage challenged = challenges[id];
        Claimed storage claim = claims[challenged.job];
        return wrongRun(claim.steps, claim.interval, challenged.from, "liar");
    }

    /// @dev The first job from the seed on that has the status.
    function pick(uint256 seed, JobStatus status) private view returns (uint256 job, bool found) {
        uint256 count = game.jobCount();
        for (uint256 i = 0; i < count && !found; ++i) {
            job = 1 + (seed % count + i) % count;
            found = game.getJob(JobId.wrap(job)).status == status;
        }
    }

    function pickGame(uint256 seed) private view returns (uint256, bool) {
        uint256 count = game.gameCount();
        return count == 0 ? (0, false) : (1 + seed % count, true);
    }
}
