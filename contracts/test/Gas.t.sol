// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Side} from "../src/game/Bisection.sol";
import {GameId, JobId, Phase} from "../src/Types.sol";
import {Level} from "../src/game/Level.sol";
import {ElementProof} from "../src/game/Moves.sol";
import {Node} from "../src/Merkle.sol";
import {GameView} from "../src/Views.sol";
import {Players} from "./support/Players.sol";
import {Lie, Run, Runs} from "./support/Runs.sol";
import {Toy} from "./support/Toy.sol";
import {Trees} from "./support/Trees.sol";
import {Finding} from "../src/adjudication/IAdjudicator.sol";
import {BentAdjudicator} from "./support/Adjudicators.sol";

/// @notice What each call costs as a transaction of its own (21,000 and the call data included), where chunks hold two numbers.
/// forge-config: default.isolate = true
contract GasTest is Players {
    uint256 private constant BISECTION_LIMIT = 110_000;
    /// Of the 4,500,000 for a dispute; the others are for the claim, the challenge and the last move, which computes.
    uint256 private constant DISPUTE_LIMIT = 2_900_000;
    /// Moves of a dispute: 13 bisections are enough for 2^16 checkpoints and steps, 2^16 operators and slots, 2^16 chunks (67 MB) and 2^4
    /// segments.
    uint256 private constant BISECTIONS = 13;

    Run private _honest;
    Run private _wrong;
    string[5] private _levels = ["CHECKPOINT", "STEP", "OPERATOR", "CHUNK", "PARTIAL"];

    function setUp() public override {
        super.setUp();
        _honest = honestRun(512, 16);
    }

    function used(string memory name) private returns (uint256 gas) {
        return vm.snapshotGasLastCall(name);
    }

    function start(Lie memory lie) private returns (GameId id) {
        _wrong = Runs.with(512, 16, lie);
        JobId job = post(512, 16);
        used("postJob");
        commitRun(job, _wrong);
        used("commit (32 checkpoints)");
        id = challengeRun(job, auditor, _honest);
        used("challenge");
    }

    function test_gasOfEveryMoveDownToASegment_andOfEveryBisection_withinItsLimit() public {
        GameId id = start(Lie(261, Toy.SUM, 1, 1));
        (uint256 bisections, uint256 others, uint256 total) = (0, 0, BISECTIONS * BISECTION_LIMIT);
        while (game.getGame(id).phase != Phase.OVER) {
            GameView memory shown = game.getGame(id);
            string memory level = _levels[uint8(levelOf(shown))];
            if (shown.phase == Phase.BISECTION) {
                bisections += bisectAll(id, level);
            } else if (shown.phase == Phase.OPENING) {
                open(id, Side.TRAINER, _wrong);
                total += used(string.concat("opening at ", level, ", first"));
                open(id, Side.CHALLENGER, _honest);
                total += used(string.concat("opening at ", level, ", second"));
                others += 2;
            } else if (shown.phase == Phase.POSTING) {
                postChunk(id, _wrong);
                total += used("postChunk");
                ++others;
            } else {
                prove(id, _honest);
                uint256 gas = used(levelOf(shown) == Level.CHUNK ? "disputeSum" : "proveSegment");
                if (levelOf(shown) == Level.CHUNK) total += gas;
                ++others;
            }
        }
        vm.assertEq(others, 4 * 2 + 3, "what is no bisection");
        vm.assertLe(total, DISPUTE_LIMIT, "a whole dispute without its last move");
        vm.assertEq(bisections, 2 + 1 + 1 + 0 + 1, "all levels were searched");
        vm.prank(auditor);
        game.withdraw();
        used("withdraw");
    }

    function bisectAll(GameId id, string memory level) private returns (uint256 moves) {
        while (game.getGame(id).phase == Phase.BISECTION) {
            bisect(id, game.getGame(id).search.turn == Side.CHALLENGER ? _honest : _wrong);
            uint256 gas = moves == 0 ? used(string.concat("bisect (", level, ", first)")) : vm.lastCallGas().gasTotalUsed;
            // A floor as well, so that a measurement without the cost of the transaction cannot pass for one.
            vm.assertGt(gas, 40_000, "a whole transaction is measured");
            vm.assertLe(gas, BISECTION_LIMIT, "a bisection move");
            ++moves;
        }
    }

    function test_gasOfAStore() public {
        GameId id = start(Lie(261, 7, 1, 0));
        playTo(id, Level.OPERATOR, Phase.PROVING, _wrong, _honest);
        prove(id, _honest);
        used("proveStore");
    }

    function test_gasOfAnElement_andOfTheReferee() public {
        GameId id = start(Lie(261, 2, 1, 0));
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        prove(id, _honest);
        used("proveElement");
        adjudicator = new BentAdjudicator(adjudicator, Finding.UNDECIDED);
        id = start(Lie(261, 2, 1, 0));
        playTo(id, Level.CHUNK, Phase.PROVING, _wrong, _honest);
        ElementProof memory proof = elementProof(game.getGame(id), _honest, posted[id]);
        vm.prank(auditor);
        game.proveElement(id, proof);
        adjudicate(id, 0);
        used("adjudicate");
    }

    function test_gasOfEverythingElse() public {
        JobId job = post(512, 16);
        commitRun(job, _honest);
        Node root = Node.wrap(Trees.root(Runs.checkpointTree(_honest)));
        bytes32 hash = hashOf(job);
        vm.prank(auditor);
        game.attest(job, hash, root, "", "", ANY_PLACE);
        used("attest");
        GameId id = challengeRun(job, auditor, wrongRun(512, 16, 261, "wrong"));
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
