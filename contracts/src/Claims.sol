// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Auditing} from "./audits/Auditing.sol";
import {Bisections, Search, Side} from "./game/Bisection.sol";
import {Bonds, Ledger} from "./audits/Bonds.sol";
import {Clock, ClockPair, Clocks} from "./game/Clock.sol";
import {Fees} from "./audits/Fees.sol";
import {IVerificationGame} from "./IVerificationGame.sol";
import {AuditStatus, GameId, JobId, JobStatus, Phase, Terms} from "./Types.sol";
import {Guards} from "./Guards.sol";
import {Level} from "./game/Level.sol";
import {Limits} from "./Limits.sol";
import {Merkle, Node} from "./Merkle.sol";
import {NextRoot} from "./game/Moves.sol";
import {Queue} from "./game/Queue.sol";
import {Audit, Claim, Game, Job, Records} from "./Records.sol";
import {Seals} from "./audits/Seals.sol";
import {Time, Timestamp} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title New jobs, claims, challenges and appeals
/// @notice A contract of its own for the sake of the limit on code; it works on the storage of the game that calls it.
library Claims {
    using Bisections for Search;
    using Bonds for Ledger;
    using Clocks for ClockPair;
    using Fees for Job;
    using Queue for Job;
    using Records for Game;
    using Records for Job;

    /// @notice `IVerificationGame.postJob`, paid already.
    function post(Job storage job, JobId id, TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) external {
        Limits.check(spec, terms, jobCid);
        job.status = JobStatus.OPEN;
        job.customer = msg.sender;
        job.postedAt = Time.now_();
        bytes32 specHash = keccak256(abi.encode(spec));
        job.specHash = specHash;
        job.spec = spec;
        job.terms = terms;
        job.jobCid = jobCid;
        emit IVerificationGame.JobPosted(id, msg.sender, specHash, spec, terms, jobCid);
    }

    /// @notice `IVerificationGame.commit`, of a job in status OPEN.
    function commit(
        Job storage job,
        JobId id,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid
    ) external {
        if (job.isBlind()) revert IVerificationGame.AuditsAreBlind(id);
        enterTrainer(job);
        prove(job, claimed, finalStateRoot);
        record(job, id, claimed, finalStateRoot, logCid, modelCid);
    }

    /// @notice `IVerificationGame.sealClaim`, of a job in status OPEN.
    function sealClaim(Job storage job, JobId id, bytes32 seal) external {
        if (!job.isBlind()) revert IVerificationGame.AuditsAreOpen(id);
        enterTrainer(job);
        job.status = JobStatus.SEALED;
        (job.audits.sealedAt, job.audits.claimSeal) = (Time.now_(), seal);
        emit IVerificationGame.ClaimSealed(id, msg.sender, seal, job.auditDeadline());
    }

    /// @notice `IVerificationGame.openClaim`, of a job in status SEALED.
    function openClaim(
        Job storage job,
        JobId id,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid,
        bytes32 salt
    ) external {
        // INVARIANT: nobody seals an audit any more once the claim is known.
        Guards.requireAfter(job.auditDeadline());
        Guards.requireNotAfter(job.openingDeadline());
        Seals.requireSame(Seals.ofClaim(id, claimed.root, finalStateRoot, logCid, modelCid, salt), job.audits.claimSeal);
        prove(job, claimed, finalStateRoot);
        record(job, id, claimed, finalStateRoot, logCid, modelCid);
    }

    /// @dev A trainer comes in with its bond.
    function enterTrainer(Job storage job) private {
        Guards.requireNotAfter(job.commitDeadline());
        address expected = job.terms.trainer;
        if (expected != address(0) && msg.sender != expected) revert IVerificationGame.NotTheTrainer(msg.sender, expected);
        Guards.requirePayment(job.terms.trainerBond);
        job.claim.trainer = msg.sender;
    }

    /// @dev The final state is the last leaf.
    function prove(Job storage job, NextRoot calldata claimed, bytes32 finalStateRoot) private {
        Claim storage claim = job.claim;
        uint64 count = job.spec.steps / job.spec.interval;
        Merkle.requireLast(claimed.root, Merkle.leaf(finalStateRoot), count, claimed.lastLeafProof);
        (claim.committedAt, claim.shownIn) = (Time.now_(), uint32(block.number));
        claim.checkpointRoot = claimed.root;
        claim.row = Bisections.shownOf(claimed.root, Merkle.depth(count), claimed.row);
    }

    function record(
        Job storage job,
        JobId id,
        NextRoot calldata claimed,
        bytes32 finalStateRoot,
        string calldata logCid,
        string calldata modelCid
    ) private {
        Limits.checkCid(logCid);
        Limits.checkCid(modelCid);
        Claim storage claim = job.claim;
        claim.finalStateRoot = finalStateRoot;
        claim.logCid = logCid;
        claim.modelCid = modelCid;
        job.status = JobStatus.CLAIMED;
        (address trainer, Timestamp deadline) = (claim.trainer, job.challengeDeadline());
        emit IVerificationGame.Committed(id, trainer, claimed.root, finalStateRoot, logCid, modelCid, deadline);
        emit IVerificationGame.RowShown(id, claimed.row);
    }

    /// @notice `IVerificationGame.reclaim`.
    function reclaim(Job storage job, Ledger storage ledger, JobId id) external {
        JobStatus status = job.status;
        bool isSealed = status == JobStatus.SEALED;
        if (status != JobStatus.OPEN && !isSealed) revert IVerificationGame.WrongJobStatus(id, status, JobStatus.OPEN);
        Guards.requireAfter(isSealed ? job.openingDeadline() : job.commitDeadline());
        job.status = JobStatus.EXPIRED;
        emit IVerificationGame.JobExpired(id);
        if (isSealed) {
            emit IVerificationGame.SealForfeited(id, job.claim.trainer);
            // Who has worked is paid by the one who made it useless. INVARIANT: half of the bond is the fee, or more.
            uint256 bond = job.terms.trainerBond;
            ledger.credit(job.customer, bond - bond / 2);
            ledger.burn(GameId.wrap(0), bond / 2 - job.owed(job.audits.all.length));
        }
        ledger.credit(job.customer, job.escrowed());
    }

    /// @notice `IVerificationGame.challenge`, paid already.
    function challenge(Job storage job, mapping(GameId => Game) storage games, JobId id, GameId gameId, Node[2] memory roots)
        external
    {
        // INVARIANT: the two roots of a search differ. Roots that others have challenged with already are welcome: a friend of the
        // trainer could take the right one and lose on purpose.
        if (roots[0] == roots[1]) revert IVerificationGame.RootIsTheTrainers(roots[1]);
        // Two processes with one key, which know nothing of each other, must not pay two bonds.
        GameId before = job.challenged[msg.sender][roots[1]];
        if (games[before].phase != Phase.NONE && games[before].phase != Phase.OVER) {
            revert IVerificationGame.AlreadyChallenged(before);
        }
        enterChallenge(job, games, id, gameId, roots);
    }

    /// @notice The challenge that an audit turned out to be, which was sealed before the claim was opened.
    /// @dev It is never refused: its bond is paid, and lost if it is not opened.
    function challengeSealed(Job storage job, mapping(GameId => Game) storage games, JobId id, GameId gameId, Node root) external {
        games[gameId].wasSealed = true;
        enterChallenge(job, games, id, gameId, [job.claim.checkpointRoot, root]);
    }

    function enterChallenge(Job storage job, mapping(GameId => Game) storage games, JobId id, GameId gameId, Node[2] memory roots)
        private
    {
        job.challenged[msg.sender][roots[1]] = gameId;
        create(job, games[gameId], id, msg.sender, roots);
        emit IVerificationGame.Challenged(id, gameId, msg.sender, roots[1]);
        job.enter(games, gameId);
        // slither-disable-next-line unused-return
        job.startNext(games);
    }

    /// @notice `IVerificationGame.appeal`, of a job in status APPEALABLE, paid already.
    function appeal(Job storage job, mapping(GameId => Game) storage games, JobId id, GameId gameId) external {
        Guards.requireNotAfter(job.appealDeadline());
        Audit storage audit = Auditing.requireAudit(job, id, msg.sender, AuditStatus.ATTESTED);
        if (GameId.unwrap(audit.appeal) != 0) revert IVerificationGame.AlreadyAppealed(audit.appeal);
        audit.appeal = gameId;
        Game storage won = games[job.audits.verdict];
        Game storage game = games[gameId];
        // INVARIANT: the same two roots, and nothing else of what the trainer has said in the game that it lost.
        create(job, game, id, won.challenger, won.roots[Level.CHECKPOINT]);
        (game.isAppeal, game.appellant) = (true, msg.sender);
        emit IVerificationGame.Appealed(id, gameId, msg.sender);
        job.enterAppeal(game, gameId);
        // slither-disable-next-line unused-return
        job.startNext(games);
    }

    /// @dev All that a game starts with is written here, so that starting it costs little to the one who ends the game before it.
    function create(Job storage job, Game storage game, JobId id, address challenger, Node[2] memory roots) private {
        (game.job, game.phase, game.bondHeld, game.challenger) = (id, Phase.QUEUED, true, challenger);
        Clock memory clock = Clocks.create(job.terms.clockAllowance);
        game.clocks = game.clocks.set(Side.TRAINER, clock).set(Side.CHALLENGER, clock);
        game.agreed = job.spec.initialStateRoot;
        game.roots[Level.CHECKPOINT] = roots;
        uint8 height = Merkle.depth(game.leafCount(job.spec, Level.CHECKPOINT));
        game.search.begin(Side.CHALLENGER, roots[uint8(Side.CHALLENGER)], job.claim.row, height);
        game.search.shownIn = job.claim.shownIn;
    }

    /// @notice `IVerificationGame.startGame`, of a job in status CLAIMED.
    function startGame(Job storage job, mapping(GameId => Game) storage games, JobId id) external {
        if (!job.startNext(games)) revert IVerificationGame.NoGameToStart(id);
    }
}
