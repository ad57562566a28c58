// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Adjudicator} from "../../src/adjudication/Adjudicator.sol";
import {Descriptor, Family} from "../../src/adjudication/Descriptor.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {Finding, Question, Setting} from "../../src/adjudication/IAdjudicator.sol";
import {Loads} from "../../src/adjudication/Loads.sol";
import {ChunkOpening} from "../../src/adjudication/Openings.sol";
import {Test} from "../support/Test.sol";
import {Trees} from "../support/Trees.sol";

/// @notice Loads are held against the engine's, operator by operator, where the engine is; this is the limit of a row.
contract LoadsTest is Test {
    uint256 private constant MAX_ROW = 65_536;

    Adjudicator private _adjudicator;

    function setUp() public {
        _adjudicator = new Adjudicator(new Functions());
    }

    /// @notice The last number of the only row of a data set, which has so many bytes.
    function ask(bytes memory row) private pure returns (Setting memory setting, Question memory question) {
        setting.spec.dataRows = 1;
        setting.spec.batchSize = 1;
        setting.spec.chunkSize = 1024;
        setting.spec.dataRoot = Trees.hashLeaf(row);
        Descriptor memory d;
        d.family = Family.DATA;
        d.iteration = new uint64[](1);
        d.iteration[0] = 1;
        d.parameters = new int64[](3);
        (d.parameters[0], d.parameters[1], d.parameters[2]) = (int64(uint64(row.length)) - 4, int64(uint64(row.length)), 1);
        question.descriptor = abi.encode(d);
    }

    function test_theLargestRow_isReadFromItsBytes() public {
        bytes memory row = new bytes(MAX_ROW);
        row[MAX_ROW - 1] = 0x3f;
        (Setting memory setting, Question memory question) = ask(row);
        ChunkOpening[] memory openings = new ChunkOpening[](1);
        openings[0].data = row;
        (Finding finding, uint64 bits) = _adjudicator.compute(setting, question, openings);
        vm.assertTrue(finding == Finding.VALUE && bits == 0x3f000000, "its last number");
        vm.expectRevert(abi.encodeWithSelector(Loads.WrongNumberOfOpenings.selector, 0, 1));
        _adjudicator.compute(setting, question, new ChunkOpening[](0));
    }

    function test_aLongerRow_isTheReferees_withoutBeingOpened() public view {
        (Setting memory setting, Question memory question) = ask(new bytes(MAX_ROW + 1));
        (Finding finding,) = _adjudicator.compute(setting, question, new ChunkOpening[](0));
        vm.assertTrue(finding == Finding.UNDECIDED, "whether it fits a transaction");
    }
}
