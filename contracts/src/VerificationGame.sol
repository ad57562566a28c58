// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IAdjudicator} from "./adjudication/IAdjudicator.sol";
import {Bisections, Children, Search, Side} from "./Bisection.sol";
import {Bonds, Ledger} from "./Bonds.sol";
import {Clock, ClockPair, Clocks} from "./Clock.sol";
import {Course} from "./Course.sol";
import {Descent} from "./Descent.sol";
import {GameId, IVerificationGame, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./IVerificationGame.sol";
import {Level} from "./Level.sol";
import {Limits} from "./Limits.sol";
import {Merkle, Node} from "./Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "./Moves.sol";
import {Proofs} from "./Proofs.sol";
import {Claim, Game, Job, Records} from "./Records.sol";
import {Time, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {GameView, JobView} from "./Views.sol";

/// @title Verification game
/// @notice See `IVerificationGame` for what everything means and the order of calls.
contract VerificationGame is IVerificationGame {
    using Bisections for Search;
    using Bisections for Side;
    using Bonds for Ledger;
    using Bonds for uint128;
    using Clocks for Clock;
    using Clocks for ClockPair;
    using Course for Game;
    using Course for Job;
    using Records for Game;
    using Records for Job;

    mapping(JobId id => Job) private _jobs;
    mapping(GameId id => Game) private _games;
    Ledger private _ledger;

    /// @inheritdoc IVerificationGame
    uint64 public override jobCount;
    /// @inheritdoc IVerificationGame
    uint64 public override gameCount;
    /// @inheritdoc IVerificationGame
    IAdjudicator public immutable override adjudicator;

    constructor(IAdjudicator adjudicator_) {
        if (address(adjudicator_).code.length == 0) revert NoAdjudicator(address(adjudicator_));
        adjudicator = adjudicator_;
    }

    // --------------------------------------------------------------------------------------------------------------- the claim

    /// @inheritdoc IVerificationGame
    function postJob(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid)
        external
        payable
        override
        returns (JobId id)
    {
        Limits.check(spec, terms, jobCid);
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
        uint64 count = job.spec.steps / job.spec.interval;
        (claim.left, claim.right) = Merkle.requireLast(checkpointRoot, Merkle.leaf(finalStateRoot), count, proof);
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
        Clock memory clock = Clocks.create(job.terms.clockAllowance);
        game.clocks = game.clocks.set(Side.TRAINER, clock).set(Side.CHALLENGER, clock);
        game.agreed = job.spec.initialStateRoot;
        emit Challenged(id, gameId, msg.sender, checkpointRoot);

        game.roots[Level.CHECKPOINT] = [claimed, checkpointRoot];
        game.search.revealed = Children(job.claim.left, job.claim.right);
        // A tree of one leaf is at its leaf at once, which is never padding.
        settle(job, game, gameId, job.begin(game, gameId, Level.CHECKPOINT), Reason.PADDING);
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
        Search storage search = game.search;
        (Side mover, uint64 index, uint8 height) = (search.turn, search.index, search.height);
        game.stopClock(gameId, mover);
        emit Bisected(gameId, level, mover, index, height, search.advance(opened, next), opened, next);
        if (height == 1) settle(job, game, gameId, job.leafFound(game, gameId, level), Reason.PADDING);
        else game.startClock(mover.other());
    }

    /// @inheritdoc IVerificationGame
    function openLevel(GameId gameId, Side side, LeafOpening calldata leaf, NextRoot calldata next) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        settle(job, game, gameId, Descent.openLevel(job, game, gameId, side, leaf, next), Reason.PADDING);
    }

    /// @inheritdoc IVerificationGame
    function openOperator(GameId gameId, Side side, OperatorOpening calldata opening) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        settle(job, game, gameId, Descent.openOperator(job, game, gameId, side, opening), Reason.PADDING);
    }

    /// @inheritdoc IVerificationGame
    function proveStore(GameId gameId, bytes32 payload, bytes32[] calldata proof) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        settle(job, game, gameId, Proofs.proveStore(job, game, gameId, payload, proof), Reason.PROOF);
    }

    /// @inheritdoc IVerificationGame
    function postChunk(GameId gameId, bytes calldata chunk) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.POSTING);
        Proofs.postChunk(job, game, gameId, chunk);
    }

    /// @inheritdoc IVerificationGame
    function proveElement(GameId gameId, ElementProof calldata proof) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        settle(job, game, gameId, Proofs.proveElement(job, game, gameId, proof), Reason.PROOF);
    }

    /// @inheritdoc IVerificationGame
    function disputeSum(GameId gameId, bytes calldata descriptor, bytes calldata chunk, uint32 position) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        Proofs.disputeSum(job, game, gameId, descriptor, chunk, position);
    }

    /// @inheritdoc IVerificationGame
    function openPartials(GameId gameId, Side side, PartialsOpening calldata opening) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        settle(job, game, gameId, Descent.openPartials(job, game, gameId, side, opening), Reason.PADDING);
    }

    /// @inheritdoc IVerificationGame
    function proveSegment(GameId gameId, SegmentProof calldata proof) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        settle(job, game, gameId, Proofs.proveSegment(job, game, gameId, proof), Reason.PROOF);
    }

    /// @inheritdoc IVerificationGame
    function adjudicate(GameId gameId, uint64 bits) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.REFEREE);
        address referee = job.spec.referee;
        if (msg.sender != referee) revert NotTheReferee(msg.sender, referee);
        requireNotAfter(game.refereeDeadline);
        emit Adjudicated(gameId, bits);
        Outcome outcome = bits == game.disputed.claimed ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON;
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
        Clock memory trainerClock = game.clocks.get(Side.TRAINER);
        Clock memory challengerClock = game.clocks.get(Side.CHALLENGER);
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

    // ------------------------------------------------------------------------------------------------------------ the verdict

    /// @dev Ends the game if a move has brought an outcome.
    function settle(Job storage job, Game storage game, GameId gameId, Outcome outcome, Reason reason) private {
        if (outcome != Outcome.NONE) end(job, game, gameId, outcome, reason);
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
}
