// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../../src/game/Bisection.sol";
import {Node} from "../../src/Merkle.sol";
import {NextRoot} from "../../src/game/Moves.sol";
import {AuditStatus, GameId, JobId, JobStatus, Terms} from "../../src/Types.sol";
import {AuditView, JobView} from "../../src/Views.sol";
import {Market} from "./Market.sol";
import {Lie, Run} from "./Runs.sol";
import {GameTest} from "./GameTest.sol";
import {World} from "./World.sol";

/// @notice The world with jobs that need attestations. `auditor` attests to what is right and to nothing else, seals what is right, opens in
///         time and appeals in time; `liar` and `cheat` do as the fuzzer likes, also with a right root.
contract MarketWorld is World, Market {
    /// @notice Of an appeal: whether its appellant is honest.
    mapping(uint256 game => bool) public defendedHonestly;
    /// What an account has sealed about a job.
    mapping(uint256 job => mapping(address who => Lie)) private _sealed;
    /// Whether an account has taken a place in a job with a seal of nothing, and has yet to replace it.
    mapping(uint256 job => mapping(address who => bool)) private _reserved;

    function setUp() public override(World, Market) {
        super.setUp();
    }

    function terms() internal pure override(World, GameTest) returns (Terms memory) {
        return super.terms();
    }

    function postMarketJob(uint256 shape, bool isBlind_) external {
        if (game.jobCount() >= MAX_JOBS) return;
        uint64[2][3] memory shapes = [[uint64(6), 2], [uint64(4), 4], [uint64(6), 3]];
        uint64[2] memory chosen = shapes[shape % 3];
        blind = isBlind_;
        needed = uint32(1 + shape / 3 % 3);
        uint256 job = JobId.unwrap(postMarket(honestRun(chosen[0], chosen[1])));
        (claims[job].steps, claims[job].interval) = (chosen[0], chosen[1]);
    }

    // ----------------------------------------------------------------------------------------------------------------------- claims

    /// @notice The right root, by somebody who may fall silent.
    function commitRightly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job) || isBlind(job)) return;
        claims[job].lie.step = claims[job].steps;
        as_(cheat, job, false);
    }

    function sealHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job) || !isBlind(job)) return;
        claims[job].honest = true;
        claims[job].lie.step = claims[job].steps;
        sealClaim(id_(job), runOfTrainer(job));
    }

    /// @notice A wrong root, or the right one of somebody who may fall silent.
    function sealUnreliably(uint256 jobSeed, Lie memory lie) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.OPEN);
        if (!found || !mayCommit(job) || !isBlind(job)) return;
        claims[job].lie = tidy(lie, claims[job].steps);
        as_(cheat, job, true);
    }

    function as_(address who, uint256 job, bool seals) private {
        address saved = trainer;
        trainer = who;
        if (seals) sealClaim(id_(job), runOfTrainer(job));
        else commitRun(id_(job), runOfTrainer(job));
        trainer = saved;
    }

    /// @notice If the fuzzer does not do it in time, the seal is lost.
    function openUnreliably(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.SEALED);
        if (found && !claims[job].honest) openTheClaim(job);
    }

    function openTheClaim(uint256 job) private {
        JobView memory shown = getJob(job);
        if (instant(time()) <= shown.audits.auditDeadline || instant(time()) > shown.audits.openingDeadline) return;
        openClaimAs(id_(job), shown.claim.trainer, runOfTrainer(job), salt(shown.claim.trainer));
    }

    // ----------------------------------------------------------------------------------------------------------------------- audits

    function attestHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        // To nothing but the right root, whoever has claimed it.
        if (found && claims[job].lie.step == claims[job].steps) attestAs(job, auditor);
    }

    function attestUnreliably(uint256 jobSeed, bool cheats) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (found) attestAs(job, cheats ? cheat : liar);
    }

    function attestAs(uint256 job, address who) private {
        JobView memory shown = getJob(job);
        bool late = instant(time()) > shown.claim.challengeDeadline;
        if (late || shown.terms.attestationsNeeded == 0 || isBlind(job) || game.hasAttested(id_(job), who)) return;
        attestBy(id_(job), who);
    }

    function sealAuditHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.SEALED);
        if (found) sealAs(job, auditor, Lie(claims[job].steps, 0, 0, 0));
    }

    /// @notice Takes a place before the work is done; `answerHonestly` fills it in time.
    function reserveHonestly(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.SEALED);
        if (found) reserveAs(job, auditor);
    }

    /// @notice Takes a place that is filled if the fuzzer comes to `sealAuditUnreliably` in time, and else lost.
    function reserveUnreliably(uint256 jobSeed, bool cheats) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.SEALED);
        if (found) reserveAs(job, cheats ? cheat : liar);
    }

    function reserveAs(uint256 job, address who) private {
        if (instant(time()) > getJob(job).audits.auditDeadline || statusOf(job, who) != AuditStatus.NONE) return;
        _reserved[job][who] = true;
        bytes32 hash = hashOf(id_(job));
        vm.prank(who);
        game.sealAudit{value: CHALLENGER_BOND}(id_(job), hash, keccak256("nothing"), ANY_PLACE);
    }

    /// @param leaked whether it is the trainer's root, and nothing that was computed
    function sealAuditUnreliably(uint256 jobSeed, bool cheats, bool leaked, Lie memory lie) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.SEALED);
        if (found) sealAs(job, cheats ? cheat : liar, leaked ? claims[job].lie : tidy(lie, claims[job].steps));
    }

    function sealAs(uint256 job, address who, Lie memory lie) private {
        if (instant(time()) > getJob(job).audits.auditDeadline) return;
        if (_reserved[job][who]) {
            // A liar changes its mind as often as it likes.
            _reserved[job][who] = who != auditor;
            _sealed[job][who] = lie;
            bytes32 seal = auditSeal(id_(job), who, rootOf(runWith(job, lie)));
            vm.prank(who);
            game.replaceSeal(id_(job), seal);
        } else if (statusOf(job, who) == AuditStatus.NONE) {
            _sealed[job][who] = lie;
            sealAudit(id_(job), who, runWith(job, lie));
        }
    }

    function openAuditUnreliably(uint256 jobSeed, bool cheats) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (found) openAs(job, cheats ? cheat : liar);
    }

    function openAs(uint256 job, address who) private {
        if (statusOf(job, who) != AuditStatus.SEALED || instant(time()) > getJob(job).audits.auditOpeningDeadline) return;
        Run memory run = runWith(job, _sealed[job][who]);
        if (auditOf(job, who).seal != auditSeal(id_(job), who, rootOf(run))) return;
        uint256 id = GameId.unwrap(openAudit(id_(job), who, run));
        if (id == 0) return;
        bool honest = who == auditor;
        if (honest) claims[job].honestlyChallenged = true;
        latest[keyOf(job, who, run)] = id;
        challenges[id] = Challenged(job, honest, _sealed[job][who], 0);
    }

    // ---------------------------------------------------------------------------------------------------------------------- appeals

    function appealUnreliably(uint256 jobSeed, bool cheats) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.APPEALABLE);
        if (found) appealAs(job, cheats ? cheat : liar);
    }

    function appealAs(uint256 job, address who) private {
        JobView memory shown = getJob(job);
        if (instant(time()) > shown.audits.appealDeadline || statusOf(job, who) != AuditStatus.ATTESTED) return;
        if (GameId.unwrap(auditOf(job, who).appeal) != 0) return;
        uint256 id = GameId.unwrap(appealBy(id_(job), who));
        uint256 verdict = GameId.unwrap(shown.audits.verdict);
        challenges[id] = Challenged(job, challenges[verdict].honest, challenges[verdict].lie, 0);
        defendedHonestly[id] = who == auditor;
    }

    function isHonest(uint256 id, Side side) internal view override returns (bool) {
        bool appealed = side == Side.TRAINER && getGame(id).isAppeal;
        return appealed ? defendedHonestly[id] : super.isHonest(id, side);
    }

    /// @dev Besides moves: openings, appeals, and the start of what waits.
    function answerHonestly() public override {
        for (uint256 job = 1; job <= game.jobCount(); ++job) {
            JobStatus status = getJob(job).status;
            if (status == JobStatus.SEALED && _reserved[job][auditor]) sealAs(job, auditor, Lie(claims[job].steps, 0, 0, 0));
            if (status == JobStatus.SEALED && claims[job].honest) openTheClaim(job);
            if (status == JobStatus.CLAIMED) openAs(job, auditor);
            if (status == JobStatus.APPEALABLE) appealAs(job, auditor);
            startAll(job);
        }
        super.answerHonestly();
    }

    function startAll(uint256 job) private {
        while (attempt(abi.encodeCall(game.startGame, (id_(job))))) {}
    }

    function startGame(uint256 jobSeed) external {
        (uint256 job, bool found) = pick(jobSeed, JobStatus.CLAIMED);
        if (found) attempt(abi.encodeCall(game.startGame, (id_(job))));
    }

    function collect(uint256 jobSeed, uint256 who) external {
        if (game.jobCount() == 0) return;
        attempt(abi.encodeCall(game.collect, (id_(1 + jobSeed % game.jobCount()), accounts()[who % 7])));
    }

    function tidyUp() internal override {
        super.tidyUp();
        address[7] memory all = accounts();
        for (uint256 job = 1; job <= game.jobCount(); ++job) {
            for (uint256 i = 0; i < all.length; ++i) {
                attempt(abi.encodeCall(game.collect, (id_(job), all[i])));
            }
        }
    }

    function rounds() internal pure override returns (uint256) {
        return 6 + (COMMIT_WINDOW + AUDIT_WINDOW + 2 * OPENING_WINDOW + 2 * CHALLENGE_WINDOW) / ALLOWANCE;
    }

    // ------------------------------------------------------------------------------------------------------------------ not allowed

    uint256 public constant ILLEGAL_AT_MARKET = 11;

    /// @notice Calls that no rule allows, whatever the state of the job. One that goes through is written down.
    function cheatAtMarket(uint256 jobSeed, uint256 kind, bytes32 junk) external {
        if (game.jobCount() == 0) return;
        JobId job = id_(1 + jobSeed % game.jobCount());
        ++illegalAttempts;
        kind %= ILLEGAL_AT_MARKET;
        (bytes memory data, address sender) = illegalAtMarket(job, kind, junk);
        vm.prank(sender);
        if (attempt(data)) broken = string.concat("illegal call at the market of kind ", vm.toString(kind));
    }

    function illegalAtMarket(JobId job, uint256 kind, bytes32 junk) private view returns (bytes memory, address) {
        (bytes32 hash, Node root) = (hashOf(job), claimedIn(job));
        NextRoot memory claimed = NextRoot(Node.wrap(junk), new bytes32[](1), new Node[](2));
        // Without their bonds.
        if (kind == 0 && getJob(JobId.unwrap(job)).terms.attestationsNeeded > 0) {
            return (abi.encodeCall(game.attest, (job, hash, root, "l", "m", ANY_PLACE)), liar);
        }
        if (kind == 1) return (abi.encodeCall(game.sealClaim, (job, hash, junk)), cheat);
        if (kind == 2) return (abi.encodeCall(game.sealAudit, (job, hash, junk, ANY_PLACE)), liar);
        if (kind == 3) return (abi.encodeCall(game.appeal, (job, hash)), liar);
        // What was never sealed; with a right salt, but another root; by another account.
        if (kind == 4) return (abi.encodeCall(game.openClaim, (job, claimed, junk, "l", "m", salt(cheat))), cheat);
        if (kind == 5) return (abi.encodeCall(game.openAudit, (job, Node.wrap(junk), "l", "m", salt(liar))), liar);
        if (kind == 6) return (abi.encodeCall(game.openAudit, (job, root, "l", "m", salt(liar))), stranger);
        // Nothing of a stranger's is there to collect.
        if (kind == 7) return (abi.encodeCall(game.collect, (job, stranger)), liar);
        // Another seal without an audit; a place that others have.
        if (kind == 8) return (abi.encodeCall(game.replaceSeal, (job, junk)), stranger);
        if (kind == 9 && auditsIn(JobId.unwrap(job)).length > 0) {
            return (abi.encodeCall(game.sealAudit, (job, hash, junk, 0)), stranger);
        }
        return (abi.encodeCall(game.attest, (job, hash, Node.wrap(junk), "l", "m", ANY_PLACE)), stranger);
    }

    // ---------------------------------------------------------------------------------------------------------------------- records

    function id_(uint256 job) private pure returns (JobId) {
        return JobId.wrap(uint64(job));
    }

    function auditsIn(uint256 job) public view returns (AuditView[] memory) {
        return game.auditsOf(id_(job), 0, type(uint256).max);
    }

    function auditOf(uint256 job, address who) public view returns (AuditView memory none) {
        AuditView[] memory all = auditsIn(job);
        for (uint256 i = 0; i < all.length; ++i) {
            if (all[i].auditor == who) return all[i];
        }
    }

    function statusOf(uint256 job, address who) private view returns (AuditStatus) {
        return auditOf(job, who).status;
    }
}
