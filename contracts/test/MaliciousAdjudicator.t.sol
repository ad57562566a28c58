// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IAdjudicator, IReducer, Outline} from "../src/adjudication/IAdjudicator.sol";
import {Side} from "../src/game/Bisection.sol";
import {GameId, JobId, JobStatus, Outcome, Phase, Reason, Terms} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";

/// @notice Answers as its owner likes at this moment, or like the real one.
contract MaliciousAdjudicator {
    IAdjudicator private immutable _real;
    mapping(bytes4 call => bytes answer) private _answers;

    constructor(IAdjudicator real) {
        _real = real;
    }

    function set(bytes4 selector, bytes calldata answer) external {
        _answers[selector] = answer;
    }

    fallback(bytes calldata asked) external returns (bytes memory) {
        bytes memory answer = _answers[msg.sig];
        if (answer.length > 0) return answer;
        (bool ok, bytes memory real) = address(_real).staticcall(asked);
        if (!ok) {
            assembly ("memory-safe") {
                revert(add(real, 32), mload(real))
            }
        }
        return real;
    }
}

/// @notice A spec may name any adjudicator. A bad one spoils its own job, and nothing else: every game ends, all money comes out, and other
///         jobs of the same contract go on as if it were not there.
contract MaliciousAdjudicatorTest is Players {
    /// Of a block. What a bad adjudicator makes dearer than that simply fails.
    uint256 private constant BLOCK = 30_000_000;

    MaliciousAdjudicator private _malicious;
    IAdjudicator private _real;
    Run private _honest;
    Run private _wrong;

    /// @notice One game at a time, so that another one waits behind the spoilt one.
    function terms() internal pure override returns (Terms memory offered) {
        offered = super.terms();
        offered.concurrentGames = 1;
    }

    function setUp() public override {
        super.setUp();
        _real = adjudicator;
        _malicious = new MaliciousAdjudicator(_real);
        _honest = honestRun(6, 3);
    }

    /// @dev External, so that a failing move can be caught.
    function moveOf(GameId id, Side side) external returns (bool) {
        return stepOf(id, side, side == Side.TRAINER ? _wrong : _honest);
    }

    function oneMove(GameId id) private returns (bool moved) {
        for (uint8 side = 0; side < 2 && !moved; ++side) {
            try this.moveOf{gas: BLOCK}(id, Side(side)) returns (bool done) {
                moved = done;
            } catch {}
        }
    }

    function ends(GameId id) private {
        // Deep trees are searched to a leaf at most; then nobody has a move that goes through.
        for (uint256 moves = 0; moves < 300 && oneMove(id); ++moves) {}
        if (game.getGame(id).phase == Phase.REFEREE) adjudicate(id, 0);
        if (game.getGame(id).phase != Phase.OVER) timeOut(id);
        vm.assertEq(uint8(game.getGame(id).phase), uint8(Phase.OVER), "every game ends");
    }

    /// @dev Whatever has been won or lost, nothing of the job stays in the contract.
    function settles(JobId job) private {
        later(CHALLENGE_WINDOW);
        if (game.getJob(job).status == JobStatus.CLAIMED) game.finalize(job);
        address[4] memory all = [customer, trainer, auditor, stranger];
        for (uint256 i = 0; i < all.length; ++i) {
            if (game.creditOf(all[i]) == 0) continue;
            vm.prank(all[i]);
            game.withdraw();
        }
        vm.assertEq(address(game).balance, game.burnt(), "all money comes out but for what is burnt");
    }

    function spoilt(bytes4 selector, bytes memory answer, uint256 place, uint256 after_) private {
        _wrong = Runs.with(6, 3, Lie(3, place, 1, 0));
        adjudicator = IAdjudicator(address(_malicious));
        (JobId job, GameId id) = dispute(_wrong, _honest);
        GameId waiting = challengeRun(job, stranger, _honest);
        assertPhase(waiting, Phase.QUEUED);
        adjudicator = _real;
        for (uint256 moves = 0; moves < after_ && oneMove(id); ++moves) {}
        _malicious.set(selector, answer);
        // Another job of the same contract, while this one is in trouble.
        (JobId other, GameId good) = dispute(_wrong, _honest);
        playOut(good, _wrong, _honest);
        assertOver(good, Outcome.CHALLENGER_WON, Reason.PROOF);
        assertJob(other, JobStatus.REJECTED);
        ends(id);
        // The next game starts, or has nothing to wait for any more.
        if (game.getJob(job).status == JobStatus.CLAIMED) ends(waiting);
        else game.releaseBond(waiting);
        settles(job);
    }

    /// forge-config: default.fuzz.runs = 64
    function testFuzz_anyOutline_spoilsOnlyItsOwnJob(uint256 seed, uint8 width, uint64 operand, uint8 place, uint8 after_) public {
        uint64[6] memory sizes = [uint64(0), 1, 3, type(uint64).max, uint64(1) << 40, uint64(seed)];
        Outline memory outline;
        outline.width = seed % 4 == 0 ? width : [4, 0, 1, 8][(seed >> 8) % 4];
        outline.elements = sizes[(seed >> 16) % 6];
        outline.chunks = sizes[(seed >> 24) % 6];
        outline.segments = sizes[(seed >> 32) % 6];
        outline.operands = new uint64[]((seed >> 40) % 4);
        for (uint256 i = 0; i < outline.operands.length; ++i) {
            outline.operands[i] = seed % 2 == 0 ? uint64(i) : operand;
        }
        spoilt(IAdjudicator.outline.selector, abi.encode(outline), place % 4, after_ % 20);
    }

    /// forge-config: default.fuzz.runs = 64
    function testFuzz_anyAnswer_spoilsOnlyItsOwnJob(bytes memory answer, uint8 which, uint8 place, uint8 after_) public {
        bytes4[4] memory calls =
            [IAdjudicator.outline.selector, IReducer.compute.selector, IReducer.reduceSegment.selector, IReducer.finish.selector];
        // Every other answer is as long as it has to be.
        if (place % 2 == 0) {
            answer = bytes.concat(bytes32(uint256(which) % 4), keccak256(answer), keccak256(answer), new bytes(32));
        }
        spoilt(calls[which % 4], answer, place % 4, after_ % 24);
    }

    /// @dev Return data that the caller has to copy.
    function test_aHugeAnswer_spoilsOnlyItsOwnJob() public {
        spoilt(IReducer.compute.selector, new bytes(200_000), 2, 24);
    }

    /// @dev A verdict with other answers than before is still the verdict of this job, and of nothing else.
    function test_anAdjudicatorThatChangesItsMind_decidesNothingTwice() public {
        _wrong = Runs.with(6, 3, Lie(3, 2, 1, 0));
        adjudicator = IAdjudicator(address(_malicious));
        (, GameId id) = dispute(_wrong, _honest);
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        GameView memory shown = game.getGame(id);
        Outline memory outline = _real.outline(descriptorOf(2), Toy.CHUNK_SIZE);
        // The tree that was searched keeps the sizes that the first answer gave.
        (outline.chunks, outline.elements, outline.segments) = (77, 777, 7);
        _malicious.set(IAdjudicator.outline.selector, abi.encode(outline));
        vm.assertEq(keccak256(abi.encode(game.getGame(id))), keccak256(abi.encode(shown)), "nothing moves");
        prove(id, _honest);
        assertOver(id, Outcome.CHALLENGER_WON, Reason.PROOF);
        (bool again,) = address(game).call(abi.encodeCall(game.claimTimeout, (id)));
        vm.assertTrue(!again, "once");
    }
}
