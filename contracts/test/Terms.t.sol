// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame, Terms} from "../src/IVerificationGame.sol";
import {Duration} from "../src/Time.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {Players} from "./support/Players.sol";

/// @notice The floors and ceilings of what a customer may ask: each is accepted at its bound and refused one beyond it.
contract TermsTest is Players {
    uint256 private constant MOST = type(uint128).max;
    uint256 private constant LEAST = 0.001 ether;

    TrainingSpec private _spec;

    function setUp() public override {
        super.setUp();
        _spec = spec(60, 5);
    }

    function post(Terms memory offered) private {
        vm.deal(customer, offered.reward);
        vm.prank(customer);
        game.postJob{value: offered.reward}(_spec, offered, "cid");
    }

    function refused(Terms memory offered, string memory field, uint256 value, uint256 least, uint256 most) private {
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.FieldOutOfRange.selector, field, value, least, most));
        post(offered);
    }

    function amounts(uint256 reward, uint256 trainerBond, uint256 challengerBond) private pure returns (Terms memory t) {
        t = terms();
        (t.reward, t.trainerBond, t.challengerBond) = (uint128(reward), uint128(trainerBond), uint128(challengerBond));
    }

    function test_theReward_isAThousandthOfAnEtherAtLeast() public {
        refused(amounts(LEAST - 1, 1 ether, 1 ether), "reward", LEAST - 1, LEAST, MOST);
        post(amounts(LEAST, 1 ether, 1 ether));
    }

    function test_theTrainersBond_isATenthOfTheRewardAtLeast() public {
        refused(amounts(1 ether, 0.1 ether - 1, 0.05 ether), "trainerBond", 0.1 ether - 1, 0.1 ether, MOST);
        post(amounts(1 ether, 0.1 ether, 0.05 ether));
        // What does not divide is rounded up: a tenth of the reward at least.
        refused(amounts(1 ether + 1, 0.1 ether, 0.05 ether), "trainerBond", 0.1 ether, 0.1 ether + 1, MOST);
        // Never less than what holding up a claim has to cost.
        refused(amounts(LEAST, LEAST - 1, LEAST), "trainerBond", LEAST - 1, LEAST, MOST);
        post(amounts(LEAST, LEAST, LEAST));
        post(amounts(LEAST, MOST, MOST));
    }

    function test_theChallengersBond_isAQuarterOfTheTrainersAtLeast_andNeverMore() public {
        refused(amounts(1 ether, 4 ether, 1 ether - 1), "challengerBond", 1 ether - 1, 1 ether, 4 ether);
        post(amounts(1 ether, 4 ether, 1 ether));
        post(amounts(1 ether, 4 ether, 4 ether));
        refused(amounts(1 ether, 4 ether, 4 ether + 1), "challengerBond", 4 ether + 1, 1 ether, 4 ether);
        refused(amounts(LEAST, LEAST, LEAST - 1), "challengerBond", LEAST - 1, LEAST, LEAST);
    }

    function test_windows_haveFloorsAndCeilings() public {
        within("commitWindow", 1, 365 days);
        within("challengeWindow", 1 hours, 90 days);
        within("refereeAllowance", 10 minutes, 14 days);
        within("clockAllowance", leastClock(), 14 days);
    }

    function within(string memory field, uint256 least, uint256 most) private {
        uint256[2] memory good = [least, most];
        uint256[4] memory bad = [least - 1, most + 1, 0, type(uint64).max];
        for (uint256 i = 0; i < good.length; ++i) {
            post(with(field, good[i]));
        }
        for (uint256 i = 0; i < bad.length; ++i) {
            refused(with(field, bad[i]), field, bad[i], least, most);
        }
    }

    function with(string memory field, uint256 length) private pure returns (Terms memory t) {
        t = terms();
        bytes32 name = keccak256(bytes(field));
        Duration value = Duration.wrap(uint64(length));
        if (name == keccak256("commitWindow")) t.commitWindow = value;
        else if (name == keccak256("challengeWindow")) t.challengeWindow = value;
        else if (name == keccak256("refereeAllowance")) t.refereeAllowance = value;
        else t.clockAllowance = value;
    }

    function test_concurrentGames_areOneTo1024() public {
        Terms memory t = terms();
        t.clockAllowance = Duration.wrap(14 days);
        t.concurrentGames = 1024;
        post(t);
        t.concurrentGames = 1025;
        refused(t, "concurrentGames", 1025, 1, 1024);
        t.concurrentGames = 1;
        post(t);
        t.concurrentGames = 0;
        refused(t, "concurrentGames", 0, 1, 1024);
    }

    // ------------------------------------------------------------------------------------------------------------ the least clock

    /// @dev Moves of one side: 12 checkpoints (depth 4), 5 steps (3), 8 operators and slots (4), at most 2^40 chunks of eight bytes (40), at
    ///      most 2^40 segments (40), every other bisection each; four openings, two single moves.
    function leastClock() private pure returns (uint256) {
        uint256 moves = 2 + 2 + 2 + 20 + 20 + 4 + 2;
        return moves * 24 + moves * 12 * CONCURRENT / 16;
    }

    function clockOf(uint256 seconds_, uint256 games) private pure returns (Terms memory t) {
        t = terms();
        (t.clockAllowance, t.concurrentGames) = (Duration.wrap(uint64(seconds_)), uint32(games));
    }

    function test_theLeastClock_growsWithTheTrees_andWithTheGamesPlayedAtATime() public {
        vm.assertEq(leastClock(), 52 * 27, "four games at a time");
        refused(clockOf(52 * 12 * 33 / 16 - 1, 1), "clockAllowance", 52 * 12 * 33 / 16 - 1, 52 * 12 * 33 / 16, 14 days);
        post(clockOf(52 * 12 * 33 / 16, 1));
        refused(clockOf(52 * (24 + 12) - 1, 16), "clockAllowance", 52 * 36 - 1, 52 * 36, 14 days);
        post(clockOf(52 * (24 + 12), 16));
        refused(clockOf(52 * (24 + 768) - 1, 1024), "clockAllowance", 52 * 792 - 1, 52 * 792, 14 days);
        post(clockOf(52 * (24 + 768), 1024));
        // 2^20 checkpoints and 2^20 steps in each; chunks of 1 KiB.
        _spec = spec(1 << 40, 1 << 20);
        _spec.chunkSize = 1024;
        _spec.batchSize = 1;
        uint256 moves = 10 + 10 + 2 + 17 + 20 + 4 + 2;
        refused(clockOf(moves * 36 - 1, 16), "clockAllowance", moves * 36 - 1, moves * 36, 14 days);
        post(clockOf(moves * 36, 16));
    }
}
