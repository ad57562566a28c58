// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IAdjudicator} from "../src/adjudication/IAdjudicator.sol";
import {IVerificationGame} from "../src/IVerificationGame.sol";
import {JobId, Terms} from "../src/Types.sol";
import {Node} from "../src/Merkle.sol";
import {NextRoot} from "../src/game/Moves.sol";
import {TrainingSpec} from "../src/TrainingSpec.sol";
import {VerificationGame} from "../src/VerificationGame.sol";
import {Players} from "./support/Players.sol";
import {Runs} from "./support/Runs.sol";
import {Tree, Trees} from "./support/Trees.sol";

contract PostingTest is Players {
    function expectPost(TrainingSpec memory posted, Terms memory offered, string memory cid, bytes memory why) private {
        vm.expectRevert(why);
        vm.prank(customer);
        game.postJob{value: offered.reward}(posted, offered, cid);
    }

    function outOfRange(string memory field, uint256 value, uint256 minimum, uint256 maximum) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IVerificationGame.FieldOutOfRange.selector, field, value, minimum, maximum);
    }

    function test_specsOutOfRange_areRefusedWithTheFieldsName() public {
        TrainingSpec memory s = spec(60, 5);
        Terms memory t = terms();
        s.steps = 0;
        expectPost(s, t, "cid", outOfRange("steps", 0, 1, 1 << 40));
        s.steps = (1 << 40) + 1;
        expectPost(s, t, "cid", outOfRange("steps", (1 << 40) + 1, 1, 1 << 40));
        s = spec(60, 0);
        expectPost(s, t, "cid", outOfRange("interval", 0, 1, 60));
        s = spec(60, 61);
        expectPost(s, t, "cid", outOfRange("interval", 61, 1, 60));
        s = spec(60, 7);
        expectPost(
            s, t, "cid", abi.encodeWithSelector(IVerificationGame.IntervalDoesNotDivideSteps.selector, uint64(7), uint64(60))
        );
        s = spec(60, 5);
        s.programRoot = 0;
        expectPost(s, t, "cid", outOfRange("programRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.operatorCount = s.stateCount - 1; // every slot is stored by an operator
        expectPost(s, t, "cid", outOfRange("operatorCount", s.stateCount - 1, s.stateCount, 1 << 40));
        s.operatorCount = (1 << 40) + 1;
        expectPost(s, t, "cid", outOfRange("operatorCount", (1 << 40) + 1, s.stateCount, 1 << 40));
        s = spec(60, 5);
        s.initialStateRoot = 0;
        expectPost(s, t, "cid", outOfRange("initialStateRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.stateCount = 0;
        expectPost(s, t, "cid", outOfRange("stateCount", 0, 1, 1 << 40));
        s = spec(60, 5);
        s.dataRoot = 0;
        expectPost(s, t, "cid", outOfRange("dataRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.dataRows = 0;
        expectPost(s, t, "cid", outOfRange("dataRows", 0, 1, 1 << 40));
        s = spec(60, 5);
        s.batchSize = 0;
        expectPost(s, t, "cid", outOfRange("batchSize", 0, 1, type(uint64).max / 60));
        s.batchSize = type(uint64).max / 60 + 1;
        expectPost(s, t, "cid", outOfRange("batchSize", s.batchSize, 1, type(uint64).max / 60));
        s = spec(60, 5);
        s.scheduleRoot = 0;
        expectPost(s, t, "cid", outOfRange("scheduleRoot", 0, 1, type(uint256).max));
        s = spec(60, 5);
        s.chunkSize = 0;
        expectPost(s, t, "cid", outOfRange("chunkSize", 0, 1, 1 << 16));
        s = spec(60, 5);
        s.chunkSize = (1 << 16) + 8;
        expectPost(s, t, "cid", outOfRange("chunkSize", (1 << 16) + 8, 1, 1 << 16));
        s.chunkSize = 1020;
        expectPost(s, t, "cid", abi.encodeWithSelector(IVerificationGame.ChunkSizeSplitsElements.selector, uint32(1020)));
        s = spec(60, 5);
        s.roundingPolicy = 1; // threshold: no one right answer
        expectPost(s, t, "cid", outOfRange("roundingPolicy", 1, 0, 0));
        s = spec(60, 5);
        s.roundingBits = 22;
        expectPost(s, t, "cid", outOfRange("roundingBits", 22, 23, 32));
        s.roundingBits = 33;
        expectPost(s, t, "cid", outOfRange("roundingBits", 33, 23, 32));
        s = spec(60, 5);
        s.logGuard = 2;
        expectPost(s, t, "cid", outOfRange("logGuard", 2, 3, 255));
        s = spec(60, 5);
        s.logVersion = 0;
        expectPost(s, t, "cid", outOfRange("logVersion", 0, 1, 255));
        s = spec(60, 5);
        s.referee = address(0);
        expectPost(s, t, "cid", outOfRange("referee", 0, 1, type(uint160).max));
    }

    function test_anAdjudicatorWithoutCode_isRefused_inASpecAndByTheConstructor() public {
        TrainingSpec memory s = spec(60, 5);
        s.adjudicator = IAdjudicator(stranger);
        expectPost(s, terms(), "cid", abi.encodeWithSelector(IVerificationGame.NoAdjudicator.selector, stranger));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.NoAdjudicator.selector, stranger));
        new VerificationGame(IAdjudicator(stranger));
        vm.assertEq(address(game.adjudicator()), address(adjudicator), "the one that a client proposes");
    }

    function test_contentAddresses_areOneTo128Bytes() public {
        string memory longest = string(new bytes(128));
        string memory tooLong = string(new bytes(129));
        expectPost(spec(60, 5), terms(), "", abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 0, 128));
        expectPost(spec(60, 5), terms(), tooLong, abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128));
        vm.prank(customer);
        game.postJob{value: REWARD}(spec(60, 5), terms(), longest);
        NextRoot memory root = asNextRoot(Runs.checkpointTree(honestRun(60, 5)));
        bytes32 state = honestRun(60, 5).states[59];
        bytes32 hash = hashOf(JobId.wrap(1));
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 129, 128));
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(JobId.wrap(1), hash, root, state, tooLong, "m");
        vm.expectRevert(abi.encodeWithSelector(IVerificationGame.CidLengthOutOfRange.selector, 0, 128));
        vm.prank(trainer);
        game.commit{value: TRAINER_BOND}(JobId.wrap(1), hash, root, state, "l", "");
    }

    // ----------------------------------------------------------------------------------------------------------- hashes of specs

    function test_specVectorsSharedWithPython_haveTheSameHash() public view {
        string memory json = vm.readFile("tests/vectors/spec.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, string.concat("[", vm.toString(count), "]")); ++count) {
            string memory key = string.concat("[", vm.toString(count), "]");
            vm.assertEq(
                game.hashSpec(readSpec(json, string.concat(key, ".spec"))),
                vm.parseJsonBytes32(json, string.concat(key, ".hash")),
                key
            );
        }
        vm.assertGt(count, 2, "the file holds specs");
    }

    function readSpec(string memory json, string memory key) private pure returns (TrainingSpec memory read) {
        read.steps = uint64(vm.parseJsonUint(json, string.concat(key, ".steps")));
        read.interval = uint64(vm.parseJsonUint(json, string.concat(key, ".interval")));
        read.programRoot = vm.parseJsonBytes32(json, string.concat(key, ".programRoot"));
        read.operatorCount = uint64(vm.parseJsonUint(json, string.concat(key, ".operatorCount")));
        read.initialStateRoot = vm.parseJsonBytes32(json, string.concat(key, ".initialStateRoot"));
        read.stateCount = uint64(vm.parseJsonUint(json, string.concat(key, ".stateCount")));
        read.dataRoot = vm.parseJsonBytes32(json, string.concat(key, ".dataRoot"));
        read.dataRows = uint64(vm.parseJsonUint(json, string.concat(key, ".dataRows")));
        read.batchSize = uint64(vm.parseJsonUint(json, string.concat(key, ".batchSize")));
        read.scheduleRoot = vm.parseJsonBytes32(json, string.concat(key, ".scheduleRoot"));
        read.seed = uint64(vm.parseJsonUint(json, string.concat(key, ".seed")));
        read.chunkSize = uint32(vm.parseJsonUint(json, string.concat(key, ".chunkSize")));
        read.roundingPolicy = uint8(vm.parseJsonUint(json, string.concat(key, ".roundingPolicy")));
        read.roundingBits = uint8(vm.parseJsonUint(json, string.concat(key, ".roundingBits")));
        read.logGuard = uint8(vm.parseJsonUint(json, string.concat(key, ".logGuard")));
        read.logVersion = uint8(vm.parseJsonUint(json, string.concat(key, ".logVersion")));
        read.referee = vm.parseJsonAddress(json, string.concat(key, ".referee"));
        read.adjudicator = IAdjudicator(vm.parseJsonAddress(json, string.concat(key, ".adjudicator")));
    }
}
