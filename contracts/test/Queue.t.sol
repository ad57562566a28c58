// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descent, Side} from "../src/game/Bisection.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {Node} from "../src/Merkle.sol";
import {Timestamp} from "../src/Time.sol";
import {GameView, JobView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Run} from "./support/Runs.sol";

/// @notice Games that wait for their turn, and how long the games of others can hold up a verdict.
contract QueueTest is Players {
    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(6, 3);
        _wrong = wrongRun(6, 3, 4, "wrong");
    }

    function claimWith(uint32 concurrent, Run memory run) private returns (JobId job) {
        Terms memory offered = terms();
        offered.concurrentGames = concurrent;
        vm.prank(customer);
        job = game.postJob{value: REWARD}(spec(uint64(run.states.length), run.interval), offered, "cid");
        commitRun(job, run);
    }

    /// @dev A challenge with a root of nobody's.
    function puppet(JobId job, uint256 number) private returns (GameId) {
        return challengeRoot(job, stranger, keccak256(abi.encode("puppet", number)));
    }

    function startOf(GameId id) private view returns (uint256) {
        return Timestamp.unwrap(game.getGame(id).startedAt);
    }

    function at(uint256 index) private pure returns (GameId) {
        return GameId.wrap(uint64(index + 1));
    }

    /// @dev Ends all games that somebody has let run out, as they would be by anybody who wants to go on.
    function endAll(JobId job) private {
        GameId[] memory games = game.gamesOf(job, 0, type(uint256).max);
        uint256 live = game.getJob(job).liveGames;
        uint256 started = games.length - game.getJob(job).queuedGames;
        // The live ones are among the last that have started: silent games end in the order of their starts.
        for (uint256 i = started - live; i < started; ++i) {
            game.claimTimeout(games[i]);
        }
    }

    // ------------------------------------------------------------------------------------------------------------------- the bound

    function test_aThousandSilentPuppets_startInTheirOrder_andDelayAVerdictExactlyAsLongAsTheBoundSays() public {
        uint256 puppets = 1000;
        uint32 atATime = 16;
        JobId job = claimWith(atATime, _wrong);
        for (uint256 i = 0; i < puppets; ++i) {
            puppet(job, i);
        }
        GameId last = challengeRun(job, auditor, _honest);
        assertPhase(last, Phase.QUEUED);
        vm.assertEq(game.getGame(last).ahead, puppets - atATime, "all that wait before it");
        // A silent challenger's clock is out one second after its allowance.
        uint256 round = ALLOWANCE + 1;
        for (uint256 i = 0; i < puppets / atATime; ++i) {
            later(round);
            endAll(job);
        }
        for (uint256 i = 0; i <= puppets; ++i) {
            vm.assertEq(startOf(at(i)), START + i / atATime * round, "first in, first out, to the second");
        }
        vm.assertEq(startOf(last), START + puppets / atATime * round, "the honest challenger's turn");
        play(last, _wrong, _honest);
        assertOver(last, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(job, JobStatus.REJECTED);
        vm.assertLe(time() - START, (puppets / atATime + 1) * (2 * ALLOWANCE + REFEREE_ALLOWANCE), "the bound");
    }

    /// forge-config: default.fuzz.runs = 64
    /// @dev Trainer and puppets are one, and use both sides' clocks to the last second.
    function testFuzz_puppetsOfTheTrainer_delayByNoMoreThanTheBound(uint256 puppets, uint256 atATime) public {
        (puppets, atATime) = (bound(puppets, 0, 9), bound(atATime, 1, 4));
        // 24 checkpoints, so that each side moves once before the first leaf.
        (_honest, _wrong) = (honestRun(24, 1), wrongRun(24, 1, 4, "wrong"));
        JobId job = claimWith(uint32(atATime), _wrong);
        Run memory accomplice = wrongRun(24, 1, 4, "accomplice");
        for (uint256 i = 0; i < puppets; ++i) {
            address account = address(uint160(0x9000 + i));
            vm.deal(account, CHALLENGER_BOND);
            challengeRun(job, account, accomplice);
        }
        GameId last = challengeRun(job, auditor, _honest);
        uint256 games = 0;
        for (; game.getGame(last).phase == Phase.QUEUED; games += atATime) {
            vm.assertTrue(games < puppets, "the honest game's turn comes");
            // The challenger moves at the last instant, then the trainer, which opens its leaf too, and then the challenger has no time left.
            later(ALLOWANCE);
            bisectLive(games, atATime, accomplice);
            later(ALLOWANCE);
            bisectLive(games, atATime, _wrong);
            for (uint256 i = games; i < games + atATime; ++i) {
                open(at(i), Side.TRAINER, _wrong);
            }
            later(1);
            endAll(job);
        }
        vm.assertEq(startOf(last), START + puppets / atATime * (2 * ALLOWANCE + 1), "both clocks, as often as there are rounds");
        play(last, _wrong, _honest);
        assertOver(last, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function bisectLive(uint256 first, uint256 count, Run memory run) private {
        for (uint256 i = first; i < first + count; ++i) {
            bisect(at(i), run);
        }
    }

    function test_anAccount_hasOneGameAtATimeWithARoot() public {
        JobId job = claimWith(1, _honest);
        GameId first = puppet(job, 0);
        GameId second = puppet(job, 1);
        JobView memory shown = game.getJob(job);
        for (uint256 i = 0; i < 2; ++i) {
            Node root = Node.wrap(keccak256(abi.encode("puppet", i)));
            vm.expectRevert(abi.encodeWithSelector(IVerificationGame.AlreadyChallenged.selector, i == 0 ? first : second));
            vm.prank(stranger);
            game.challenge{value: CHALLENGER_BOND}(job, shown.specHash, shown.claim.checkpointRoot, root);
        }
        // Another account may, because it could be an accomplice of the trainer that has the right root and loses on purpose.
        challengeRoot(job, auditor, keccak256(abi.encode("puppet", uint256(0))));
        later(ALLOWANCE + 1);
        game.claimTimeout(first);
        // And who has lost by its clock, once more.
        puppet(job, 0);
    }

    function test_anHonestTrainer_isPaid_afterAllPuppetsHaveLost() public {
        JobId job = claimWith(3, _honest);
        for (uint256 i = 0; i < 10; ++i) {
            puppet(job, i);
        }
        later(CHALLENGE_WINDOW + 1);
        for (uint256 rounds = 0; rounds < 4; ++rounds) {
            (bool ok, bytes memory why) = address(game).call(abi.encodeCall(game.finalize, (job)));
            vm.assertTrue(!ok && bytes4(why) == IVerificationGame.LiveGames.selector, "not before the last one is over");
            endAll(job);
            later(ALLOWANCE + 1);
        }
        game.finalize(job);
        assertJob(job, JobStatus.FINAL);
        vm.assertEq(game.creditOf(trainer), REWARD + TRAINER_BOND + 10 * (CHALLENGER_BOND / 2), "and half of each bond");
    }

    // ---------------------------------------------------------------------------------------------------------------- while it waits

    function queued() private returns (JobId job, GameId id) {
        job = claimWith(1, _wrong);
        puppet(job, 0);
        id = challengeRun(job, auditor, _honest);
    }

    function test_whileAGameWaits_noClockRuns_andNobodyMoves() public {
        (, GameId id) = queued();
        GameView memory shown = game.getGame(id);
        vm.assertEq(uint8(shown.phase), uint8(Phase.QUEUED), "queued");
        vm.assertTrue(shown.bondHeld && shown.startedAt.isNever(), "the bond is held, nothing has started");
        for (uint256 side = 0; side < 2; ++side) {
            vm.assertTrue(shown.deadlines[side].isNever() && shown.clocks[side].startedAt.isNever(), "no clock runs");
        }
        later(100 * ALLOWANCE);
        bytes memory why = abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, Phase.QUEUED, Phase.BISECTION);
        Descent memory nothing;
        vm.expectRevert(why);
        game.bisect(id, nothing);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, Phase.QUEUED, Phase.QUEUED));
        game.claimTimeout(id);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPhase.selector, id, Phase.QUEUED, Phase.POSTING));
        game.postChunk(id, "");
    }

    function test_aGameThatHasWaited_hasItsWholeTime() public {
        (JobId job, GameId id) = queued();
        later(40 * ALLOWANCE);
        vm.expectEmit(true, true, false, true, address(game));
        emit IVerificationGame.GameStarted(job, id);
        game.claimTimeout(at(0));
        vm.assertEq(startOf(id), time(), "starts in the transaction that ends the one before");
        vm.assertEq(Timestamp.unwrap(game.getGame(id).deadlines[uint8(Side.CHALLENGER)]), time() + ALLOWANCE, "with all its time");
        play(id, _wrong, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
    }

    function test_whenTheClaimIsRejected_queuedGamesAreVoid_andTheirBondsReturn() public {
        JobId job = claimWith(1, _wrong);
        GameId first = challengeRun(job, auditor, _honest);
        GameId[3] memory others = [puppet(job, 1), puppet(job, 2), challengeRun(job, stranger, _honest)];
        play(first, _wrong, _honest);
        assertJob(job, JobStatus.REJECTED);
        JobView memory shown = game.getJob(job);
        vm.assertEq(shown.liveGames + shown.queuedGames, 0, "nothing goes on");
        for (uint256 i = 0; i < 3; ++i) {
            assertOver(others[i], Outcome.VOID, Reason.CLAIM_REJECTED);
            game.releaseBond(others[i]);
        }
        vm.assertEq(game.creditOf(stranger), 3 * CHALLENGER_BOND, "all bonds");
    }

    /// @dev Challenges and ends in any order; the model is a plain list.
    /// forge-config: default.fuzz.runs = 64
    function testFuzz_theQueue_isFirstInFirstOut(uint256 seed) public {
        uint256 atATime = 1 + seed % 4;
        JobId job = claimWith(uint32(atATime), _honest);
        uint256 challenged = 0;
        uint256 over = 0;
        for (uint256 i = 0; i < 24; ++i) {
            seed = uint256(keccak256(abi.encode(seed)));
            if (seed % 3 > 0 && challenged < 12 && time() <= START + CHALLENGE_WINDOW) {
                puppet(job, challenged++);
            } else if (over < challenged) {
                // Any live one that is out: all that have started and are silent since.
                later(ALLOWANCE + 1);
                uint256 live = challenged - over < atATime ? challenged - over : atATime;
                game.claimTimeout(liveGame(job, seed % live));
                ++over;
            }
            uint256 left = challenged - over;
            JobView memory shown = game.getJob(job);
            vm.assertEq(shown.liveGames, left < atATime ? left : atATime, "as many are live as may be");
            vm.assertEq(shown.queuedGames, left - shown.liveGames, "all others wait");
            uint256 waiting = 0;
            for (uint256 k = 0; k < challenged; ++k) {
                GameView memory one = game.getGame(at(k));
                if (one.phase == Phase.QUEUED) vm.assertEq(one.ahead, waiting++, "in the order of their challenges");
                else vm.assertEq(waiting, 0, "nobody overtakes");
            }
            vm.assertEq(waiting, shown.queuedGames, "counted");
            if (seed % 5 == 0) later(seed % 1000);
        }
    }

    function liveGame(JobId job, uint256 number) private view returns (GameId) {
        GameId[] memory games = game.gamesOf(job, 0, 100);
        for (uint256 i = 0;; ++i) {
            Phase phase = game.getGame(games[i]).phase;
            if (phase != Phase.QUEUED && phase != Phase.OVER) {
                if (number == 0) return games[i];
                --number;
            }
        }
        revert("no such game");
    }
}
