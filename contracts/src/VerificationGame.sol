// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IAdjudicator} from "./adjudication/IAdjudicator.sol";
import {Auditing} from "./audits/Auditing.sol";
import {Bisections, Descent, Search, Side} from "./game/Bisection.sol";
import {Bonds, Ledger} from "./audits/Bonds.sol";
import {Claims} from "./Claims.sol";
import {Clock, ClockPair, Clocks} from "./game/Clock.sol";
import {Transitions} from "./game/Transitions.sol";
import {LevelOpenings} from "./game/LevelOpenings.sol";
import {Display} from "./Display.sol";
import {IVerificationGame} from "./IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "./Types.sol";
import {Guards} from "./Guards.sol";
import {Node} from "./Merkle.sol";
import {ElementProof, LeafOpening, NextRoot, OperatorOpening, PartialsOpening, SegmentProof} from "./game/Moves.sol";
import {Proofs} from "./game/Proofs.sol";
import {Game, Job, Records} from "./Records.sol";
import {Time, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";
import {Verdicts} from "./audits/Verdicts.sol";
import {Answer, AuditView, GameView, JobView} from "./Views.sol";

/// @title Verification game
/// @notice `IVerificationGame` documents every function, and the order of calls; Solidity inherits its comments.
contract VerificationGame is IVerificationGame {
    using Bisections for Search;
    using Bisections for Side;
    using Bonds for Ledger;
    using Clocks for Clock;
    using Clocks for ClockPair;
    using Transitions for Game;
    using Transitions for Job;
    using Records for Game;
    using Records for Job;

    mapping(JobId id => Job) private _jobs;
    mapping(GameId id => Game) private _games;
    Ledger private _ledger;

    uint64 public override jobCount;
    uint64 public override gameCount;
    IAdjudicator public immutable override adjudicator;

    constructor(IAdjudicator adjudicator_) {
        if (address(adjudicator_).code.length == 0) revert NoAdjudicator(address(adjudicator_));
        adjudicator = adjudicator_;
    }

    // --------------------------------------------------------------------------------------------------------------- the claim

    function postJob(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid)
        external
        payable
        override
        returns (JobId id)
    {
        Guards.requirePayment(uint256(terms.reward) + terms.auditFee);
        id = JobId.wrap(++jobCount);
        Claims.post(_jobs[id], id, spec, terms, jobCid);
    }

    function reclaim(JobId id) external override {
        Claims.reclaim(_jobs[id], _ledger, id);
    }

    function commit(
        JobId id,
        bytes32 specHash,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid
    ) external payable override {
        Job storage job = jobWith(id, JobStatus.OPEN, specHash);
        Claims.commit(job, id, claimed, finalStateRoot, logCid, modelCid);
    }

    function sealClaim(JobId id, bytes32 specHash, bytes32 seal) external payable override {
        Claims.sealClaim(jobWith(id, JobStatus.OPEN, specHash), id, seal);
    }

    function openClaim(
        JobId id,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid,
        bytes32 salt
    ) external override {
        Job storage job = jobIn(id, JobStatus.SEALED);
        Claims.openClaim(job, id, claimed, finalStateRoot, logCid, modelCid, salt);
    }

    function attest(
        JobId id,
        bytes32 specHash,
        Node checkpointRoot,
        string calldata logCid,
        string calldata modelCid,
        uint64 lastPlace
    ) external payable override {
        Auditing.attest(jobWith(id, JobStatus.CLAIMED, specHash), id, checkpointRoot, logCid, modelCid, lastPlace);
    }

    function sealAudit(JobId id, bytes32 specHash, bytes32 seal, uint64 lastPlace) external payable override {
        Auditing.sealAudit(jobWith(id, JobStatus.SEALED, specHash), id, seal, lastPlace);
    }

    function replaceSeal(JobId id, bytes32 seal) external override {
        Auditing.replaceSeal(jobIn(id, JobStatus.SEALED), id, seal);
    }

    function openAudit(JobId id, Node checkpointRoot, string calldata logCid, string calldata modelCid, bytes32 salt)
        external
        override
        returns (GameId gameId)
    {
        Job storage job = jobIn(id, JobStatus.CLAIMED);
        if (Auditing.open(job, id, checkpointRoot, logCid, modelCid, salt)) return gameId;
        gameId = GameId.wrap(++gameCount);
        Claims.challengeSealed(job, _games, id, gameId, checkpointRoot);
    }

    function challenge(JobId id, bytes32 specHash, Node claimedRoot, Node checkpointRoot)
        external
        payable
        override
        returns (GameId gameId)
    {
        Job storage job = jobWith(id, JobStatus.CLAIMED, specHash);
        Guards.requireNotAfter(job.challengeDeadline());
        Auditing.requireCommitted(job, claimedRoot);
        Guards.requirePayment(job.terms.challengerBond);
        gameId = GameId.wrap(++gameCount);
        Claims.challenge(job, _games, id, gameId, [claimedRoot, checkpointRoot]);
    }

    function startGame(JobId id) external override {
        Claims.startGame(jobIn(id, JobStatus.CLAIMED), _games, id);
    }

    function appeal(JobId id, bytes32 specHash) external payable override returns (GameId gameId) {
        Job storage job = jobWith(id, JobStatus.APPEALABLE, specHash);
        Guards.requirePayment(job.terms.challengerBond);
        gameId = GameId.wrap(++gameCount);
        Claims.appeal(job, _games, id, gameId);
    }

    function finalize(JobId id) external override {
        Verdicts.finalize(_jobs[id], _games, _ledger, id);
    }

    function collect(JobId id, address auditor) external override {
        Auditing.collect(_jobs[id], _ledger, id, auditor);
    }

    // ---------------------------------------------------------------------------------------------------------------- the game

    function bisect(GameId gameId, Descent calldata move) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.BISECTION);
        Side mover = game.search.turn;
        Outcome outcome = LevelOpenings.bisect(job, game, gameId, mover, move);
        settle(game, gameId, mover, gas, outcome, Reason.PADDING);
    }

    function openLevel(GameId gameId, Side side, LeafOpening calldata leaf, NextRoot calldata next) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        Outcome outcome = LevelOpenings.openLevel(job, game, gameId, side, leaf, next);
        settle(game, gameId, side, gas, outcome, Reason.PADDING);
    }

    function openOperator(GameId gameId, Side side, OperatorOpening calldata opening) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        Outcome outcome = LevelOpenings.openOperator(job, game, gameId, side, opening);
        settle(game, gameId, side, gas, outcome, Reason.PADDING);
    }

    function proveStore(GameId gameId, bytes32 payload, bytes32[] calldata proof) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        Outcome outcome = Proofs.proveStore(job, game, gameId, payload, proof);
        settle(game, gameId, Side.CHALLENGER, gas, outcome, Reason.PROOF);
    }

    function postChunk(GameId gameId, bytes calldata chunk) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.POSTING);
        Proofs.postChunk(job, game, gameId, chunk);
        game.charge(Side.TRAINER, gas);
    }

    function proveElement(GameId gameId, ElementProof calldata proof) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        Outcome outcome = Proofs.proveElement(job, game, gameId, proof);
        settle(game, gameId, Side.CHALLENGER, gas, outcome, Reason.PROOF);
    }

    function disputeSum(GameId gameId, bytes calldata descriptor, bytes calldata chunk, uint32 position) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        Proofs.disputeSum(job, game, gameId, descriptor, chunk, position);
        game.charge(Side.CHALLENGER, gas);
    }

    function openPartials(GameId gameId, Side side, PartialsOpening calldata opening) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.OPENING);
        Outcome outcome = LevelOpenings.openPartials(job, game, gameId, side, opening);
        settle(game, gameId, side, gas, outcome, Reason.PADDING);
    }

    function proveSegment(GameId gameId, SegmentProof calldata proof) external override {
        uint256 gas = gasleft();
        (Job storage job, Game storage game) = gameIn(gameId, Phase.PROVING);
        Outcome outcome = Proofs.proveSegment(job, game, gameId, proof);
        settle(game, gameId, Side.CHALLENGER, gas, outcome, Reason.PROOF);
    }

    function adjudicate(GameId gameId, uint64 bits) external override {
        (Job storage job, Game storage game) = gameIn(gameId, Phase.REFEREE);
        address referee = job.spec.referee;
        if (msg.sender != referee) revert NotTheReferee(msg.sender, referee);
        Guards.requireNotAfter(game.refereeDeadline);
        emit Adjudicated(gameId, bits);
        Outcome outcome = bits == game.disputed.claimed ? Outcome.TRAINER_WON : Outcome.CHALLENGER_WON;
        end(job, gameId, outcome, Reason.VERDICT);
    }

    function claimTimeout(GameId gameId) external override {
        Game storage game = _games[gameId];
        Phase phase = game.phase;
        (Job storage job,) = gameIn(gameId, phase);
        if (phase == Phase.REFEREE) {
            Guards.requireAfter(game.refereeDeadline);
            end(job, gameId, Outcome.UNDECIDED, Reason.TIMEOUT);
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
        end(job, gameId, outcome, Reason.TIMEOUT);
    }

    function releaseBond(GameId gameId) external override {
        Game storage game = _games[gameId];
        Verdicts.releaseBond(_jobs[game.job], game, _ledger, gameId);
    }

    function withdraw() external override returns (uint256 amount) {
        return _ledger.payOut(msg.sender);
    }

    function batch(bytes[] calldata calls) external override returns (Answer[] memory answers) {
        answers = new Answer[](calls.length);
        for (uint256 i = 0; i < calls.length; ++i) {
            (answers[i].success, answers[i].data) = callSelf(calls[i]);
        }
    }

    function inTurn(bytes[] calldata calls) external override {
        for (uint256 i = 0; i < calls.length; ++i) {
            (bool success, bytes memory data) = callSelf(calls[i]);
            if (success) continue;
            // slither-disable-next-line assembly
            assembly ("memory-safe") {
                revert(add(data, 32), mload(data))
            }
        }
    }

    /// @dev INVARIANT: the call goes to this contract's own code, keeps the sender, and brings no money: its callers take none.
    function callSelf(bytes calldata call) private returns (bool, bytes memory) {
        if (bytes4(call) == this.batch.selector) return (false, abi.encodeWithSelector(NestedBatch.selector));
        // slither-disable-next-line calls-loop,low-level-calls
        return address(this).delegatecall(call);
    }

    // ------------------------------------------------------------------------------------------------------------------- views

    function getJob(JobId id) external view override returns (JobView memory) {
        Job storage job = _jobs[id];
        if (job.status == JobStatus.NONE) revert WrongJobStatus(id, JobStatus.NONE, JobStatus.OPEN);
        answerWith(Display.jobView(job));
    }

    function getGame(GameId gameId) external view override returns (GameView memory) {
        Game storage game = _games[gameId];
        if (game.phase == Phase.NONE) revert WrongPhase(gameId, Phase.NONE, Phase.BISECTION);
        answerWith(Display.gameView(game, _jobs[game.job]));
    }

    function gamesOf(JobId id, uint256 offset, uint256 limit) external view override returns (GameId[] memory) {
        answerWith(Display.gamesOf(_jobs[id], offset, limit));
    }

    function auditsOf(JobId id, uint256 offset, uint256 limit) external view override returns (AuditView[] memory) {
        answerWith(Display.auditsOf(_jobs[id], offset, limit));
    }

    function creditOf(address account) external view override returns (uint256) {
        return _ledger.credits[account];
    }

    function burnt() external view override returns (uint256) {
        return _ledger.burnt;
    }

    function hasAttested(JobId id, address auditor) external view override returns (bool) {
        return _jobs[id].attested[auditor];
    }

    function hashSpec(TrainingSpec calldata spec) public pure override returns (bytes32) {
        return keccak256(abi.encode(spec));
    }

    // ------------------------------------------------------------------------------------------------------------ the verdict

    /// @dev After a move of a side: counts its gas, and ends the game if the move has brought an outcome.
    function settle(Game storage game, GameId gameId, Side side, uint256 gas, Outcome outcome, Reason reason) private {
        game.charge(side, gas);
        if (outcome != Outcome.NONE) end(_jobs[game.job], gameId, outcome, reason);
    }

    function end(Job storage job, GameId gameId, Outcome outcome, Reason reason) private {
        Verdicts.end(job, _games, _ledger, gameId, outcome, reason);
    }

    /// @dev Returns from the contract with what a library has encoded, so that its code is not here a second time.
    function answerWith(bytes memory encoded) private pure {
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            return(add(encoded, 32), mload(encoded))
        }
    }

    // ------------------------------------------------------------------------------------------------------- guards and clocks

    function jobIn(JobId id, JobStatus expected) private view returns (Job storage job) {
        job = _jobs[id];
        if (job.status != expected) revert WrongJobStatus(id, job.status, expected);
    }

    /// @dev INVARIANT: a bond on a job comes with the job's spec hash, so that a number which a reorganisation gives to another job does not count.
    function jobWith(JobId id, JobStatus expected, bytes32 specHash) private view returns (Job storage job) {
        job = jobIn(id, expected);
        if (specHash != job.specHash) revert WrongSpec(specHash, job.specHash);
    }

    function gameIn(GameId gameId, Phase expected) private view returns (Job storage job, Game storage game) {
        game = _games[gameId];
        Phase phase = game.phase;
        // INVARIANT: a game that is over, or has not started, does not move.
        if (phase != expected || phase <= Phase.QUEUED || phase == Phase.OVER) revert WrongPhase(gameId, phase, expected);
        job = jobIn(game.job, game.isAppeal ? JobStatus.APPEALABLE : JobStatus.CLAIMED);
    }
}
