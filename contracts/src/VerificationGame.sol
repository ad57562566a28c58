// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisection, Bisections, Children, Side} from "./Bisection.sol";
import {Bonds, Ledger} from "./Bonds.sol";
import {Clock, Clocks} from "./Clock.sol";
import {
    GameId,
    GameView,
    IVerificationGame,
    JobId,
    JobStatus,
    JobView,
    LeafOpening,
    NextRoot,
    Outcome,
    Phase,
    Reason,
    Terms
} from "./IVerificationGame.sol";
import {Level, Levels} from "./Level.sol";
import {Limits} from "./Limits.sol";
import {Merkle, Node} from "./Merkle.sol";
import {Claim, Game, Job, LevelRecord, Records} from "./Records.sol";
import {Time, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title Verification game
/// @notice See `IVerificationGame` for what everything means and the order of calls.
contract VerificationGame is IVerificationGame {
    using Bisections for Bisection;
    using Bisections for Side;
    using Bonds for Ledger;
    using Bonds for uint128;
    using Clocks for Clock;
    using Levels for Level;
    using Records for Job;
    using Records for Game;

    mapping(JobId id => Job) private _jobs;
    mapping(GameId id => Game) private _games;
    Ledger private _ledger;

    /// @inheritdoc IVerificationGame
    uint256 public override jobCount;
    /// @inheritdoc IVerificationGame
    uint256 public override gameCount;

    // --------------------------------------------------------------------------------------------------------------- the claim

    /// @inheritdoc IVerificationGame
    function postJob(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid)
        external
        payable
        override
        returns (JobId id)
    {
        Limits.checkSpec(spec);
        Limits.checkTerms(terms);
        Limits.checkCid(jobCid);
        requirePayment(terms.reward);

        id = JobId.wrap(++jobCount);
        Job storage job = _jobs[id];
        job.status = JobStatus.OPEN;
        job.customer = msg.sender;
        job.postedAt = Time.now_();
        job.spec = spec;
        job.terms = terms;
        job.jobCid = jobCid;
        emit JobPosted(id, msg.sender, hashSpec(spec), spec, terms, jobCid);
    }

    /// @inheritdoc IVerificationGame
    function reclaim(JobId id) external override {
        Job storage job = jobIn(id, JobStatus.OPEN);
        requireAfter(job.commitDeadline());
        job.status = JobStatus.EXPIRED;
        emit JobExpired(id);
        _ledger.credit(job.customer, job.terms.reward);
    }

    /// @inheritdoc IVerificationGame
    function commit(
        JobId id,
        Node checkpointRoot,
        bytes32 finalStateRoot,
        bytes32[] calldata proof,
        string calldata logCid,
        string calldata modelCid
    ) external payable override {
        Job storage job = jobIn(id, JobStatus.OPEN);
        requireNotAfter(job.commitDeadline());
        address expected = job.terms.trainer;
        if (expected != address(0) && msg.sender != expected) revert NotTheTrainer(msg.sender, expected);
        requirePayment(job.terms.trainerBond);
        Limits.checkCid(logCid);
        Limits.checkCid(modelCid);

        Claim storage claim = job.claim;
        claim.children = lastLeaf(checkpointRoot, finalStateRoot, Level.CHECKPOINT.leafCount(job.spec), proof);
        claim.trainer = msg.sender;
        claim.committedAt = Time.now_();
        claim.checkpointRoot = checkpointRoot;
        claim.finalStateRoot = finalStateRoot;
        claim.logCid = logCid;
        claim.modelCid = modelCid;
        job.status = JobStatus.CLAIMED;
        emit Committed(id, msg.sender, checkpointRoot, finalStateRoot, logCid, modelCid, job.challengeDeadline());
    }

    /// @inheritdoc IVerificationGame
    function attest(JobId id, Node checkpointRoot) external override {
        Job storage job = jobIn(id, JobStatus.CLAIMED);
        requireNotAfter(job.challengeDeadline());
        Node committed = job.claim.checkpointRoot;
        if (checkpointRoot != committed) revert AnotherRootWasCommitted(checkpointRoot, committed);
        if (job.attested[msg.sender]) revert AlreadyAttested(id, msg.sender);
        job.attested[msg.sender] = true;
        ++job.attestations;
        emit Attested(id, msg.sender);
    }

    /// @inheritdoc IVerificationGame
    function challenge(JobId id, Node checkpointRoot) external payable override returns (GameId gameId) {
        Job storage job = jobIn(id, JobStatus.CLAIMED);
        requireNotAfter(job.challengeDeadline());
        requirePayment(job.terms.challengerBond);
        Node claimed = job.claim.checkpointRoot;
        // INVARIANT: the two roots of a search differ. Roots that others have challenged with already are welcome: a friend of the
        // trainer could take the right one and lose on purpose.
        if (checkpointRoot == claimed) revert RootIsTheTrainers(checkpointRoot);

        gameId = GameId.wrap(++gameCount);
        job.games.push(gameId);
        ++job.liveGames;
        Game storage game = _games[gameId];
        game.job = id;
        game.challenger = msg.sender;
        game.bondHeld = true;
        game.trainerBond = job.terms.trainerBond;
        game.challengerBond = job.terms.challengerBond;
        game.refereeAllowance = job.terms.refereeAllowance;
        game.startedAt = Time.now_();
        game.clocks[uint8(Side.TRAINER)] = Clocks.create(job.terms.clockAllowance);
        game.clocks[uint8(Side.CHALLENGER)] = Clocks.create(job.terms.clockAllowance);
        game.agreed = job.spec.initialStateRoot;
        emit Challenged(id, gameId, msg.sender, checkpointRoot);

        LevelRecord storage record = game.levels[Level.CHECKPOINT];
        record.roots = [claimed, checkpointRoot];
        record.search.revealed = job.claim.children;
        beginLevel(job, game, gameId, Level.CHECKPOINT);
    }

    /// @inheritdoc IVerificationGame
    function finalize(JobId id) external override {
        Job storage job = jobIn(id, JobStatus.CLAIMED);
        requireAfter(job.challengeDeadline());
        if (job.liveGames != 0) revert LiveGames(id, job.liveGames);
        job.status = JobStatus.FINAL;
        address trainer = job.claim.trainer;
        emit ClaimFinal(id, trainer, job.claim.finalStateRoot);
        _ledger.credit(trainer, uint256(job.terms.reward) + job.terms.trainerBond);
    }

    // ---------------------------------------------------------------------------------------------------------------- the game

    /// @inheritdoc IVerificationGame
    function bisect(GameId gameId, Children calldata opened, Children calldata next) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.BISECTION);
        Level level = game.level;
        Bisection storage search = game.levels[level].search;
        (Side mover, uint64 index, uint8 height) = (search.turn, search.index, search.height);
        stopClock(game, gameId, mover);
        emit Bisected(gameId, level, mover, index, height, search.advance(opened, next), opened, next);
        if (height == 1) leafFound(job, game, gameId, level);
        else startClock(game, mover.other());
    }

    /// @inheritdoc IVerificationGame
    function openLevel(GameId gameId, Side side, LeafOpening calldata leaf, NextRoot calldata next) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        Level level = game.level;
        if (level.isLast()) revert WrongLevel(gameId, level);
        // INVARIANT: only a new root is a party's own choice, so only the party may make it; all other moves are forced by hashes.
        address party = job.party(game, side);
        if (msg.sender != party) revert NotTheParty(msg.sender, side, party);
        bool bothOpened = openLeaf(job, game, gameId, side, leaf);

        Level below = level.next();
        LevelRecord storage record = game.levels[below];
        // INVARIANT: the last leaf below is the leaf that this side has claimed above; as the claims differ, so do the trees below.
        Children memory children = lastLeaf(next.root, leaf.payload, below.leafCount(job.spec), next.lastLeafProof);
        record.roots[uint8(side)] = next.root;
        if (side == Side.TRAINER) record.search.revealed = children;
        emit RootOpened(gameId, below, side, next.root);
        if (bothOpened) beginLevel(job, game, gameId, below);
    }

    /// @inheritdoc IVerificationGame
    function revealLeaf(GameId gameId, Side side, LeafOpening calldata leaf) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        if (!game.level.isLast()) revert WrongLevel(gameId, game.level);
        if (openLeaf(job, game, gameId, side, leaf)) callReferee(job, game, gameId);
    }

    /// @inheritdoc IVerificationGame
    function adjudicate(GameId gameId, bytes32 stateRoot) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.REFEREE);
        address referee = job.spec.referee;
        if (msg.sender != referee) revert NotTheReferee(msg.sender, referee);
        requireNotAfter(game.refereeDeadline);
        emit Adjudicated(gameId, stateRoot);
        LevelRecord storage record = game.levels[game.level];
        Outcome outcome = Outcome.BOTH_LOST;
        if (stateRoot == record.payloads[uint8(Side.TRAINER)]) outcome = Outcome.TRAINER_WON;
        else if (stateRoot == record.payloads[uint8(Side.CHALLENGER)]) outcome = Outcome.CHALLENGER_WON;
        end(job, game, gameId, outcome, Reason.VERDICT);
    }

    /// @inheritdoc IVerificationGame
    function claimTimeout(GameId gameId) external override {
        Game storage game = _games[gameId];
        Phase phase = game.phase;
        (Job storage job,) = gameIn(gameId, phase);
        if (phase == Phase.REFEREE) {
            requireAfter(game.refereeDeadline);
            end(job, game, gameId, Outcome.UNDECIDED, Reason.TIMEOUT);
            return;
        }
        Timestamp current = Time.now_();
        Clock memory trainerClock = game.clocks[uint8(Side.TRAINER)];
        Clock memory challengerClock = game.clocks[uint8(Side.CHALLENGER)];
        // INVARIANT: a side whose clock runs and is not out may still answer, so nobody can end the game before it had its time. Who
        // loses then follows from who had answered in time, and not from the instant of this claim.
        if (trainerClock.isRunning() && !trainerClock.isOut(current)) revert TooEarly(current, trainerClock.deadline());
        if (challengerClock.isRunning() && !challengerClock.isOut(current)) revert TooEarly(current, challengerClock.deadline());
        Outcome outcome = !trainerClock.isRunning()
            ? Outcome.TRAINER_WON
            : !challengerClock.isRunning() ? Outcome.CHALLENGER_WON : Outcome.BOTH_LOST;
        end(job, game, gameId, outcome, Reason.TIMEOUT);
    }

    /// @inheritdoc IVerificationGame
    function releaseBond(GameId gameId) external override {
        Game storage game = _games[gameId];
        if (!game.bondHeld) revert BondNotHeld(gameId);
        jobIn(game.job, JobStatus.REJECTED);
        (game.phase, game.outcome, game.reason) = (Phase.OVER, Outcome.VOID, Reason.CLAIM_REJECTED);
        game.bondHeld = false;
        emit GameOver(game.job, gameId, Outcome.VOID, Reason.CLAIM_REJECTED);
        _ledger.credit(game.challenger, game.challengerBond);
    }

    /// @inheritdoc IVerificationGame
    function withdraw() external override returns (uint256 amount) {
        return _ledger.payOut(msg.sender);
    }

    // ------------------------------------------------------------------------------------------------------------------- views

    /// @inheritdoc IVerificationGame
    function getJob(JobId id) external view override returns (JobView memory) {
        Job storage job = _jobs[id];
        if (job.status == JobStatus.NONE) revert WrongJobStatus(id, JobStatus.NONE, JobStatus.OPEN);
        return job.show();
    }

    /// @inheritdoc IVerificationGame
    function getGame(GameId gameId) external view override returns (GameView memory) {
        Game storage game = _games[gameId];
        if (game.phase == Phase.NONE) revert WrongPhase(gameId, Phase.NONE, Phase.BISECTION);
        return game.show(_jobs[game.job]);
    }

    /// @inheritdoc IVerificationGame
    function gamesOf(JobId id, uint256 offset, uint256 limit) external view override returns (GameId[] memory page) {
        GameId[] storage games = _jobs[id].games;
        uint256 left = offset < games.length ? games.length - offset : 0;
        page = new GameId[](limit < left ? limit : left);
        for (uint256 i = 0; i < page.length; ++i) {
            page[i] = games[offset + i];
        }
    }

    /// @inheritdoc IVerificationGame
    function creditOf(address account) external view override returns (uint256) {
        return _ledger.credits[account];
    }

    /// @inheritdoc IVerificationGame
    function hasAttested(JobId id, address auditor) external view override returns (bool) {
        return _jobs[id].attested[auditor];
    }

    /// @inheritdoc IVerificationGame
    function hashSpec(TrainingSpec calldata spec) public pure override returns (bytes32) {
        return keccak256(abi.encode(spec));
    }

    // ------------------------------------------------------------------------------------------------- how a game goes forward

    /// @dev The roots of both sides and the trainer's children stand in the level's record already.
    function beginLevel(Job storage job, Game storage game, GameId gameId, Level level) private {
        LevelRecord storage record = game.levels[level];
        uint64 count = level.leafCount(job.spec);
        uint8 height = Merkle.depth(count);
        game.level = level;
        record.agreedBefore = game.agreed;
        record.search.begin(record.roots, height);
        emit LevelStarted(
            gameId, level, record.roots[uint8(Side.TRAINER)], record.roots[uint8(Side.CHALLENGER)], record.search.revealed, count
        );
        if (height == 0) {
            leafFound(job, game, gameId, level);
        } else {
            game.phase = Phase.BISECTION;
            startClock(game, record.search.turn);
        }
    }

    function leafFound(Job storage job, Game storage game, GameId gameId, Level level) private {
        Bisection storage search = game.levels[level].search;
        (Node trainerLeaf, Node challengerLeaf) = (search.nodes[uint8(Side.TRAINER)], search.nodes[uint8(Side.CHALLENGER)]);
        uint64 index = search.index;
        emit LeafFound(gameId, level, index, trainerLeaf, challengerLeaf);
        if (index < level.leafCount(job.spec)) {
            game.phase = Phase.OPENING;
            startClock(game, Side.TRAINER);
            startClock(game, Side.CHALLENGER);
            return;
        }
        // INVARIANT: behind the last leaf only PAD is right. The two differ, so at most one of them is.
        Outcome outcome = trainerLeaf == Merkle.PAD
            ? Outcome.TRAINER_WON
            : challengerLeaf == Merkle.PAD ? Outcome.CHALLENGER_WON : Outcome.BOTH_LOST;
        end(job, game, gameId, outcome, Reason.PADDING);
    }

    /// @return bothOpened whether the other side had opened the leaf before
    function openLeaf(Job storage job, Game storage game, GameId gameId, Side side, LeafOpening calldata leaf)
        private
        returns (bool bothOpened)
    {
        Level level = game.level;
        LevelRecord storage record = game.levels[level];
        if (record.opened[uint8(side)]) revert AlreadyOpened(gameId, side);
        stopClock(game, gameId, side);

        Node computed = Merkle.leaf(leaf.payload);
        Node expected = record.search.nodes[uint8(side)];
        if (computed != expected) revert WrongLeafPayload(computed, expected);

        uint64 index = record.search.index;
        if (index == 0) {
            // INVARIANT: what stands before leaf 0 was agreed above, in the end in the spec; it is never in a party's hands.
            if (leaf.agreed != record.agreedBefore) revert WrongAgreedPayload(leaf.agreed, record.agreedBefore);
            if (leaf.agreedProof.length != 0) revert Merkle.WrongProofLength(leaf.agreedProof.length, 0);
        } else {
            // Left of the leftmost difference both trees are equal, so a proof into either root speaks for both.
            Merkle.requireLeaf(record.roots[uint8(side)], leaf.agreed, index - 1, level.leafCount(job.spec), leaf.agreedProof);
        }
        record.opened[uint8(side)] = true;
        record.payloads[uint8(side)] = leaf.payload;
        game.agreed = leaf.agreed;
        emit LeafOpened(gameId, level, side, leaf.payload, leaf.agreed);
        return record.opened[uint8(side.other())];
    }

    function callReferee(Job storage job, Game storage game, GameId gameId) private {
        game.phase = Phase.REFEREE;
        Timestamp deadline = Time.now_().add(game.refereeAllowance);
        game.refereeDeadline = deadline;
        emit RefereeCalled(gameId, job.spec.referee, game.agreed, deadline);
    }

    /// @dev The only place where a game ends with a winner or a loser, and the only one that moves a trainer's bond in a dispute.
    function end(Job storage job, Game storage game, GameId gameId, Outcome outcome, Reason reason) private {
        (game.phase, game.outcome, game.reason) = (Phase.OVER, outcome, reason);
        game.bondHeld = false;
        emit GameOver(game.job, gameId, outcome, reason);
        (address customer, address trainer, address challenger) = (job.customer, job.claim.trainer, game.challenger);
        (uint128 trainerBond, uint128 challengerBond) = (game.trainerBond, game.challengerBond);

        if (outcome == Outcome.TRAINER_WON) {
            --job.liveGames;
            payLoser(challengerBond, trainer, customer);
            return;
        }
        // INVARIANT: one lost game rejects the claim. The trainer's bond and the reward leave here, once, because from now on
        // every other game of this job is void: its moves ask for a claim that is not rejected.
        job.status = JobStatus.REJECTED;
        job.liveGames = 0;
        emit ClaimRejected(game.job, gameId);
        _ledger.credit(customer, job.terms.reward);
        if (outcome == Outcome.CHALLENGER_WON) {
            _ledger.credit(challenger, challengerBond);
            payLoser(trainerBond, challenger, customer);
        } else if (outcome == Outcome.BOTH_LOST) {
            _ledger.credit(customer, uint256(trainerBond) + challengerBond);
        } else {
            _ledger.credit(trainer, trainerBond);
            _ledger.credit(challenger, challengerBond);
        }
    }

    /// @dev Divides a loser's bond.
    function payLoser(uint128 bond, address winner, address customer) private {
        (uint256 toWinner, uint256 toCustomer) = bond.split();
        _ledger.credit(winner, toWinner);
        _ledger.credit(customer, toCustomer);
    }

    // ------------------------------------------------------------------------------------------------------- guards and clocks

    function jobIn(JobId id, JobStatus expected) private view returns (Job storage job) {
        job = _jobs[id];
        if (job.status != expected) revert WrongJobStatus(id, job.status, expected);
    }

    function gameIn(GameId gameId, Phase expected) private view returns (Job storage job, Game storage game) {
        game = _games[gameId];
        Phase phase = game.phase;
        // INVARIANT: a game that is over, or was never started, moves no more.
        if (phase != expected || phase == Phase.NONE || phase == Phase.OVER) revert WrongPhase(gameId, phase, expected);
        job = jobIn(game.job, JobStatus.CLAIMED);
    }

    function requirePayment(uint128 expected) private view {
        if (msg.value != expected) revert WrongPayment(msg.value, expected);
    }

    /// @dev The instant of a deadline belongs to whoever it binds.
    function requireNotAfter(Timestamp deadline) private view {
        Timestamp current = Time.now_();
        if (current > deadline) revert TooLate(current, deadline);
    }

    function requireAfter(Timestamp deadline) private view {
        Timestamp current = Time.now_();
        if (current <= deadline) revert TooEarly(current, deadline);
    }

    function startClock(Game storage game, Side side) private {
        game.clocks[uint8(side)] = game.clocks[uint8(side)].start(Time.now_());
    }

    function stopClock(Game storage game, GameId gameId, Side side) private {
        Clock memory clock = game.clocks[uint8(side)];
        Timestamp current = Time.now_();
        // INVARIANT: whoever is out of time cannot move any more, so a late move can never race a timeout claim.
        if (clock.isOut(current)) revert ClockRanOut(gameId, side, clock.deadline());
        game.clocks[uint8(side)] = clock.stop(current);
    }

    /// @dev Checks that `payload` is the last of `count` leaves under `root`, and returns the root's children.
    function lastLeaf(Node root, bytes32 payload, uint64 count, bytes32[] calldata proof)
        private
        pure
        returns (Children memory children)
    {
        Node computed;
        (computed, children.left, children.right) = Merkle.climb(Merkle.leaf(payload), count - 1, count, proof);
        if (computed != root) revert Merkle.WrongProof(Node.unwrap(computed), Node.unwrap(root));
    }
}
