// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../src/game/Bisection.sol";
import {Bonds, Ledger, Shares} from "../src/audits/Bonds.sol";
import {Clock, ClockPair, Clocks} from "../src/game/Clock.sol";
import {Meter} from "../src/game/Meter.sol";
import {Duration, Timestamp} from "../src/Time.sol";
import {GameId} from "../src/Types.sol";
import {Test} from "./support/Test.sol";

/// @notice The arithmetic of gas meters and of lost bonds.
contract MeterTest is Test {
    using Clocks for ClockPair;
    using Meter for ClockPair;

    Ledger private _ledger;

    function testFuzz_aMeter_countsItsOwnSideOnly_andLeavesTheClocks(uint256 word, bool trainers, uint128 spent) public pure {
        ClockPair pair = ClockPair.wrap(word);
        (Side mine, Side theirs) = trainers ? (Side.TRAINER, Side.CHALLENGER) : (Side.CHALLENGER, Side.TRAINER);
        ClockPair afterwards = pair.add(mine, spent);
        vm.assertEq(afterwards.read(theirs), pair.read(theirs), "the other side's meter");
        for (uint8 side = 0; side < 2; ++side) {
            (Clock memory before, Clock memory now_) = (pair.get(Side(side)), afterwards.get(Side(side)));
            vm.assertEq(keccak256(abi.encode(before)), keccak256(abi.encode(now_)), "clocks");
        }
        uint256 full = Meter.FULL * Meter.UNIT;
        uint256 exact = pair.read(mine) + spent / Meter.UNIT * Meter.UNIT;
        vm.assertEq(afterwards.read(mine), exact < full ? exact : full, "counts until it is full");
    }

    function testFuzz_setAClock_leavesTheMeters(uint256 word, bool trainers, uint32 remaining, uint40 started) public pure {
        ClockPair pair = ClockPair.wrap(word);
        Clock memory clock = Clock(Duration.wrap(remaining), Timestamp.wrap(started));
        ClockPair afterwards = pair.set(trainers ? Side.TRAINER : Side.CHALLENGER, clock);
        vm.assertEq(afterwards.read(Side.TRAINER), pair.read(Side.TRAINER), "the trainer's");
        vm.assertEq(afterwards.read(Side.CHALLENGER), pair.read(Side.CHALLENGER), "the challenger's");
    }

    function testFuzz_aPrice_countsUpToTwiceTheBaseFee(uint64 gas, uint64 gasPrice, uint64 baseFee) public pure {
        uint256 cost = Meter.cost(gas, gasPrice, baseFee);
        vm.assertLe(cost, uint256(gas) * gasPrice, "no more than was paid");
        vm.assertLe(cost, uint256(gas) * 2 * baseFee, "no more than twice the base fee");
        vm.assertEq(cost, uint256(gas) * (gasPrice < 2 * uint256(baseFee) ? gasPrice : 2 * uint256(baseFee)), "the lesser");
    }

    function testFuzz_aLostBond_isDividedWithoutLosingAWei(uint192 bond, uint256 spent) public pure {
        Shares memory shares = Bonds.split(bond, spent);
        vm.assertEq(shares.gas + shares.half + shares.quarter + shares.burnt, bond, "every wei");
        vm.assertLe(shares.gas, bond / 4, "gas: a quarter at most");
        vm.assertLe(shares.gas, spent, "gas: what was spent at most");
        uint256 rest = bond - shares.gas;
        vm.assertEq(shares.half, rest / 2, "half");
        vm.assertEq(shares.quarter, rest / 4, "a quarter");
        vm.assertTrue(shares.burnt >= rest / 4, "burnt");
    }

    function testFuzz_aForfeitedBond_isHalfTheCustomers(uint128 bond) public {
        Bonds.forfeit(_ledger, GameId.wrap(0), address(1), bond);
        vm.assertEq(_ledger.credits[address(1)] + _ledger.burnt, bond, "every wei");
        vm.assertEq(_ledger.burnt, bond / 2, "half is burnt, rounded in the customer's favour");
    }
}
