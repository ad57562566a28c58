// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IVerificationGame} from "../src/IVerificationGame.sol";
import {Terms} from "../src/Types.sol";
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
        uint256 escrow = uint256(offered.reward) + offered.auditFee;
        vm.deal(customer, escrow);
        vm.prank(customer);
        game.postJob{value: escrow}(_spec, offered, "cid");
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

    // ------------------------------------------------------------------------------------------------------------------ audits

    function market(uint256 needed, uint256 fee, uint256 bond, uint256 auditWindow, uint256 openingWindow)
        private
        pure
        returns (Terms memory t)
    {
        t = terms();
        (t.attestationsNeeded, t.auditFee, t.attestationBond) = (uint32(needed), uint128(fee), uint128(bond));
        (t.auditWindow, t.openingWindow) = (Duration.wrap(uint64(auditWindow)), Duration.wrap(uint64(openingWindow)));
    }

    function test_withoutAttestations_nothingIsAskedOfThem() public {
        refused(market(0, 1, 0, 0, 0), "auditFee", 1, 0, 0);
        refused(market(0, 0, 1, 0, 0), "attestationBond", 1, 0, 0);
        refused(market(0, 0, 0, 1, 0), "auditWindow", 1, 0, 0);
        refused(market(0, 0, 0, 0, 1), "openingWindow", 1, 0, 0);
    }

    function test_attestations_areThirtyTwoAtMost_andBonded() public {
        refused(market(33, 0, LEAST, 0, 0), "attestationsNeeded", 33, 0, 32);
        post(market(32, 0, LEAST, 0, 0));
        refused(market(1, 0, LEAST - 1, 0, 0), "attestationBond", LEAST - 1, LEAST, MOST);
        post(market(1, 0, MOST, 0, 0));
        // What a trainer in league with auditors could have counts for its bond, half of which is the fee or more.
        Terms memory most = market(1, TRAINER_BOND / 2, LEAST, 0, 0);
        post(most);
        ++most.auditFee;
        refused(most, "trainerBond", TRAINER_BOND, TRAINER_BOND + 2, MOST);
        (most.reward, most.auditFee) = (10 * TRAINER_BOND - TRAINER_BOND / 2, TRAINER_BOND / 2);
        post(most);
        ++most.reward;
        refused(most, "trainerBond", TRAINER_BOND, TRAINER_BOND + 1, MOST);
    }

    function test_blindAudits_haveTwoWindows_andAChallengersBond() public {
        uint128 bond = CHALLENGER_BOND;
        post(market(1, 0, bond, 1 hours, 1 hours));
        post(market(1, 0, bond, 90 days, CHALLENGE_WINDOW - 1));
        refused(market(1, 0, bond - 1, 1 hours, 1 hours), "attestationBond", bond - 1, bond, bond);
        refused(market(1, 0, bond + 1, 1 hours, 1 hours), "attestationBond", bond + 1, bond, bond);
        refused(market(1, 0, bond, 1 hours - 1, 1 hours), "auditWindow", 1 hours - 1, 1 hours, 90 days);
        refused(market(1, 0, bond, 90 days + 1, 1 hours), "auditWindow", 90 days + 1, 1 hours, 90 days);
        refused(market(1, 0, bond, 0, 1 hours), "auditWindow", 0, 1 hours, 90 days);
        uint256 longest = CHALLENGE_WINDOW - 1;
        refused(market(1, 0, bond, 1 hours, 0), "openingWindow", 0, 1 hours, longest);
        refused(market(1, 0, bond, 1 hours, 1 hours - 1), "openingWindow", 1 hours - 1, 1 hours, longest);
        refused(market(1, 0, bond, 1 hours, CHALLENGE_WINDOW), "openingWindow", CHALLENGE_WINDOW, 1 hours, longest);
    }

    /// @dev Whatever the customer asks: what is accepted keeps the rules, and what keeps them is accepted.
    function testFuzz_terms_areAcceptedExactlyIfTheyKeepTheRules(
        uint128 fee,
        uint128 bond,
        uint8 needed,
        uint32 auditWindow,
        uint32 openingWindow,
        uint8 shape
    ) public {
        // Half of the time what is nearly right, so that both answers occur.
        if (shape & 1 == 0) fee = uint128(bound(fee, 0, TRAINER_BOND));
        if (shape & 2 == 0) bond = CHALLENGER_BOND;
        if (shape & 4 == 0) (auditWindow, openingWindow) = (0, 0);
        else if (shape & 8 == 0) (auditWindow, openingWindow) = (auditWindow % 100 days, openingWindow % 3 days);
        needed = shape & 16 == 0 ? needed % 34 : 0;
        if (needed == 0 && shape & 32 == 0) (fee, bond, auditWindow, openingWindow) = (0, 0, 0, 0);
        bool blind = auditWindow != 0 || openingWindow != 0;
        bool right = needed == 0
            ? fee == 0 && bond == 0 && !blind
            : needed <= 32 && fee <= TRAINER_BOND / 2
                && (blind
                        ? bond == CHALLENGER_BOND && auditWindow >= 1 hours && auditWindow <= 90 days && openingWindow >= 1 hours
                        && openingWindow < CHALLENGE_WINDOW
                        : bond >= LEAST);
        Terms memory offered = market(needed, fee, bond, auditWindow, openingWindow);
        uint256 escrow = uint256(REWARD) + fee;
        vm.deal(customer, escrow);
        bytes memory call = abi.encodeCall(game.postJob, (_spec, offered, "cid"));
        vm.prank(customer);
        (bool accepted,) = address(game).call{value: escrow}(call);
        vm.assertTrue(accepted == right, "exactly");
    }

    function test_rewardAndFee_areEscrowedTogether() public {
        Terms memory offered = market(1, 1 ether, LEAST, 0, 0);
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.WrongPayment.selector, REWARD, uint256(REWARD) + 1 ether));
        vm.prank(customer);
        game.postJob{value: REWARD}(_spec, offered, "cid");
    }

    // ------------------------------------------------------------------------------------------------------------ the least clock

    /// @dev Moves of one side: 12 checkpoints (depth 4: one move), 5 steps (3: one), 8 operators and slots (4: one), at most 2^40 chunks of
    ///      eight bytes (40: ten), at most 2^40 segments (40: ten), every other bisection each; four openings, two single moves.
    function leastClock() private pure returns (uint256) {
        uint256 moves = 1 + 1 + 1 + 5 + 5 + 4 + 2;
        return moves * 24 + moves * 12 * CONCURRENT / 16;
    }

    function clockOf(uint256 seconds_, uint256 games) private pure returns (Terms memory t) {
        t = terms();
        (t.clockAllowance, t.concurrentGames) = (Duration.wrap(uint64(seconds_)), uint32(games));
    }

    function test_theLeastClock_growsWithTheTrees_andWithTheGamesPlayedAtATime() public {
        vm.assertEq(leastClock(), 19 * 27, "four games at a time");
        // 19 * 12 * 33 / 16, rounded down.
        refused(clockOf(470 - 1, 1), "clockAllowance", 470 - 1, 470, 14 days);
        post(clockOf(470, 1));
        refused(clockOf(19 * (24 + 12) - 1, 16), "clockAllowance", 19 * 36 - 1, 19 * 36, 14 days);
        post(clockOf(19 * (24 + 12), 16));
        refused(clockOf(19 * (24 + 768) - 1, 1024), "clockAllowance", 19 * 792 - 1, 19 * 792, 14 days);
        post(clockOf(19 * (24 + 768), 1024));
        // 2^20 checkpoints and 2^20 steps in each; chunks of 1 KiB.
        _spec = spec(1 << 40, 1 << 20);
        _spec.chunkSize = 1024;
        _spec.batchSize = 1;
        uint256 moves = 3 + 3 + 1 + 5 + 5 + 4 + 2;
        refused(clockOf(moves * 36 - 1, 16), "clockAllowance", moves * 36 - 1, moves * 36, 14 days);
        post(clockOf(moves * 36, 16));
    }
}
