// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Children, Side} from "../src/Bisection.sol";
import {GameId, JobId, LeafOpening, NextRoot, Phase} from "../src/IVerificationGame.sol";
import {Level} from "../src/Level.sol";
import {Node} from "../src/Merkle.sol";
import {GameTest, Run} from "./support/GameTest.sol";
import {Trees} from "./support/Trees.sol";

/// @notice What each call costs as a transaction of its own (21,000 and the call data included).
/// forge-config: default.isolate = true
contract GasTest is GameTest {
    uint256 private constant BISECTION_LIMIT = 90_000;

    Run private _honest;
    Run private _wrong;

    function setUp() public override {
        super.setUp();
        _honest = honestRun(512, 16);
        _wrong = wrongRun(512, 16, 261, "wrong");
    }

    function used(string memory name) private returns (uint256 gas) {
        return vm.snapshotGasLastCall(name);
    }

    function test_gasOfEveryCallOfADispute_andOfEveryBisection_atMost90000() public {
        JobId job = post(512, 16);
        used("postJob");
        commitRun(job, _wrong);
        used("commit (32 checkpoints)");
        GameId id = challengeRun(job, auditor, _honest);
        used("challenge");
        uint256 bisections = bisectAll(id, "bisect (CHECKPOINT, first)");
        openBoth(id);
        bisections += bisectAll(id, "bisect (STEP, first)");
        vm.assertEq(bisections, 5 + 4, "both levels were searched");
        open(id, Side.TRAINER, _wrong);
        used("revealLeaf (16 steps, first)");
        open(id, Side.CHALLENGER, _honest);
        used("revealLeaf (16 steps, second)");
        assertPhase(id, Phase.REFEREE);
        adjudicate(id, _honest.states[261]);
        used("adjudicate");
        vm.prank(auditor);
        game.withdraw();
        used("withdraw");
    }

    function openBoth(GameId id) private {
        open(id, Side.TRAINER, _wrong);
        used("openLevel (16 steps, first)");
        open(id, Side.CHALLENGER, _honest);
        used("openLevel (16 steps, second)");
    }

    function bisectAll(GameId id, string memory first) private returns (uint256 moves) {
        while (game.getGame(id).phase == Phase.BISECTION) {
            bool challengers = current(game.getGame(id)).turn == Side.CHALLENGER;
            bisect(id, challengers ? _honest : _wrong);
            uint256 gas = moves == 0 ? used(first) : vm.lastCallGas().gasTotalUsed;
            // A floor as well, so that a measurement without the cost of the transaction cannot pass for one.
            vm.assertGt(gas, 40_000, "a whole transaction is measured");
            vm.assertLe(gas, BISECTION_LIMIT, "a bisection move");
            ++moves;
        }
    }

    function test_gasOfEverythingElse() public {
        JobId job = post(512, 16);
        commitRun(job, _honest);
        Node root = Node.wrap(Trees.root(checkpointTree(_honest)));
        vm.prank(auditor);
        game.attest(job, root);
        used("attest");
        GameId id = challengeRun(job, auditor, _wrong);
        later(ALLOWANCE + 1);
        game.claimTimeout(id);
        used("claimTimeout");
        later(CHALLENGE_WINDOW);
        game.finalize(job);
        used("finalize");
        JobId unclaimed = post(512, 16);
        later(COMMIT_WINDOW + 1);
        game.reclaim(unclaimed);
        used("reclaim");
    }
}
