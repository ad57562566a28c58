// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Descriptor, Descriptors, DType, Family, Fault} from "../../src/adjudication/Descriptor.sol";
import {Finding, Partial, Question, Setting} from "../../src/adjudication/IAdjudicator.sol";
import {Loads} from "../../src/adjudication/Loads.sol";
import {ChunkOpening, Openings} from "../../src/adjudication/Openings.sol";
import {Reading} from "../../src/adjudication/Operands.sol";
import {Reducer} from "../../src/adjudication/Reducer.sol";
import {Scalar} from "../../src/adjudication/Scalars.sol";
import {Merkle} from "../../src/Merkle.sol";
import {AdjudicationTest} from "../support/AdjudicationTest.sol";
import {Tree, Trees} from "../support/Trees.sol";

/// @notice Right descriptors, and everything else wrong. What is opened is what the roots say, or nothing.
contract HostileOpeningsTest is AdjudicationTest {
    using Trees for Tree;

    uint64 private constant COUNT = 10; // chunks of 16, 16 and 8 bytes, and one leaf of padding

    function copy() private pure returns (Descriptor memory) {
        return elementwise(Family.COPY, 0, DType.F32, COUNT, dtypes(DType.F32));
    }

    function double_() private pure returns (Descriptor memory d) {
        d = elementwise(Family.MAP, uint8(Scalar.FLOAT_ADD), DType.F32, COUNT, dtypes(DType.F32, DType.F32));
        (d.inputs[0].value, d.inputs[1].value) = (7, 7);
    }

    function data() private pure returns (bytes memory) {
        return counting(COUNT);
    }

    function reverts(ChunkOpening[] memory openings, uint64 element, bytes memory reason) private {
        Question memory question = ask(copy(), roots(list(data())), element);
        vm.expectRevert(reason);
        adjudicator.compute(setting(), question, openings);
    }

    // ------------------------------------------------------------------------------------------------------------------------- order

    function test_chunksTwiceOrOutOfOrder_areRefused() public {
        bytes memory reason = abi.encodeWithSelector(Openings.OpeningsNotSorted.selector, 1);
        reverts(list(opening(0, 1, data()), opening(0, 1, data())), 4, reason);
        reverts(list(opening(0, 1, data()), opening(0, 0, data())), 0, reason);
    }

    function test_anInputThatTheOperatorHasNot_isRefused() public {
        ChunkOpening memory o = opening(0, 0, data());
        o.input = 1;
        reverts(list(o), 0, abi.encodeWithSelector(Openings.NoSuchInput.selector, uint8(1)));
        o.input = 255;
        reverts(list(o), 0, abi.encodeWithSelector(Openings.NoSuchInput.selector, uint8(255)));
    }

    function test_aChunkThatIsNeeded_hasToBeOpened() public {
        for (uint64 element = 0; element < COUNT; ++element) {
            for (uint64 chunk = 0; chunk < 3; ++chunk) {
                if (element / 4 == chunk) continue;
                bytes memory reason = abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, element / 4);
                reverts(list(opening(0, chunk, data())), element, reason);
            }
            reverts(new ChunkOpening[](0), element, abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, element / 4));
        }
    }

    function test_furtherOpenings_changeNothing() public view {
        for (uint64 element = 0; element < COUNT; ++element) {
            (Finding finding, uint64 bits) = compute(copy(), list(data()), element);
            Question memory question = ask(copy(), roots(list(data())), element);
            (Finding same, uint64 sameBits) = adjudicator.compute(setting(), question, list(opening(0, element / 4, data())));
            assertAnswer(finding, bits, same, sameBits, "as without");
        }
    }

    // ------------------------------------------------------------------------------------------------------------------- one opening

    function test_aChunkBehindTheTensor_isRefused_evenIfItIsPadding() public {
        ChunkOpening memory o = opening(0, 2, data());
        uint64[4] memory places = [uint64(3), 4, 1 << 40, type(uint64).max];
        for (uint256 i = 0; i < places.length; ++i) {
            o.chunk = places[i];
            reverts(list(o), 0, abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, places[i], uint64(3)));
        }
        // PAD = H(02) is no leaf of any payload.
        o = ChunkOpening(0, 3, hex"02", tensor(data(), CHUNK).proof(3));
        reverts(list(o), 0, abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, uint64(3), uint64(3)));
    }

    function test_aChunkOfAnotherLength_isRefused() public {
        uint8[5] memory lengths = [0, 1, 7, 9, 16];
        for (uint256 i = 0; i < lengths.length; ++i) {
            ChunkOpening memory o = opening(0, 2, data());
            o.data = new bytes(lengths[i]);
            reverts(list(o), 8, abi.encodeWithSelector(Openings.WrongChunkLength.selector, lengths[i], 8));
        }
        ChunkOpening memory full = opening(0, 1, data());
        full.data = slice(full.data, 0, 8);
        reverts(list(full), 4, abi.encodeWithSelector(Openings.WrongChunkLength.selector, 8, 16));
    }

    function test_aProofOfAnotherLength_isRefused() public {
        for (uint256 length = 0; length < 70; ++length) {
            if (length == 2) continue;
            ChunkOpening memory o = opening(0, 0, data());
            o.proof = new bytes32[](length);
            reverts(list(o), 0, abi.encodeWithSelector(Merkle.WrongProofLength.selector, length, 2));
        }
    }

    /// @dev An inner node is 0x01 and two hashes: with that as data a leaf would be H(00 01 ...), which is no node of the tree.
    function test_anInnerNode_isNoChunk() public {
        Tree memory tree = tensor(counting(8), CHUNK);
        Descriptor memory d = elementwise(Family.COPY, 0, DType.F32, 16, dtypes(DType.F32));
        ChunkOpening memory o = ChunkOpening(0, 0, bytes.concat(tree.rows[0][0], tree.rows[0][1]), new bytes32[](0));
        Setting memory wide = setting();
        wide.spec.chunkSize = 64;
        bytes32[] memory one = new bytes32[](1);
        one[0] = tree.root();
        Question memory question = ask(d, one, 0);
        bytes32 computed = Trees.hashLeaf(o.data);
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProof.selector, computed, tree.root()));
        adjudicator.compute(wide, question, list(o));
    }

    function testFuzz_whateverOpens_givesTheOneAnswer(uint64 element, uint256 where, bytes32 junk, uint8 kind) public view {
        element %= COUNT;
        ChunkOpening memory o = opening(0, element / 4, data());
        if (kind % 4 == 0) o.data[where % o.data.length] = bytes1(junk);
        if (kind % 4 == 1) o.proof[where % o.proof.length] = junk;
        if (kind % 4 == 2) o.chunk = uint64(where % 5);
        if (kind % 4 == 3) o.proof[where % 2] = o.proof[1 - where % 2];
        try adjudicator.compute(setting(), ask(copy(), roots(list(data())), element), list(o)) returns (Finding f, uint64 bits) {
            (Finding finding, uint64 expected) = compute(copy(), list(data()), element);
            assertAnswer(f, bits, finding, expected, "the same");
        } catch {}
    }

    /// @dev Bits above a uint8 or uint64 are not cut off.
    function test_dirtyBitsInAnOpening_areRefused() public view {
        Question memory question = ask(copy(), roots(list(data())), 0);
        ChunkOpening[] memory openings = list(opening(0, 0, data()));
        bytes memory sent = abi.encodeCall(adjudicator.compute, (setting(), question, openings));
        // The opening stands last: input, chunk, two offsets, data (length and one word), proof (length and two words).
        uint256 input = sent.length - 32 * 9;
        for (uint256 i = 0; i < 2; ++i) {
            bytes memory dirty = bytes.concat(sent);
            dirty[input + 32 * i] = 0x01;
            (bool ok, bytes memory answer) = address(adjudicator).staticcall(dirty);
            vm.assertTrue(!ok && answer.length == 0, "refused without data");
        }
        (bool right,) = address(adjudicator).staticcall(sent);
        vm.assertTrue(right, "and as it was it goes through");
    }

    /// @dev Offsets in the call itself that point behind its end, or far away.
    function testFuzz_callsWithOneWordChanged_giveTheOneAnswerOrRevert(uint64 element, uint256 place, uint256 word) public view {
        element %= COUNT;
        ChunkOpening[] memory openings = list(opening(0, element / 4, data()));
        bytes memory sent = abi.encodeCall(adjudicator.compute, (setting(), ask(copy(), roots(list(data())), element), openings));
        // Behind the setting (step, state and eighteen words of spec), of which COPY reads nothing but the size of a chunk, and around the
        // descriptor, which is part of what is asked: behind two offsets, the question's three words and the length.
        uint256 start = 4 + 32 * 20;
        uint256 length = abi.encode(copy()).length;
        place = start + place % ((sent.length - start - length) / 32) * 32;
        if (place >= start + 32 * 6) place += length;
        assembly ("memory-safe") {
            mstore(add(add(sent, 32), place), word)
        }
        uint256 gas = gasleft();
        (bool ok, bytes memory answer) = address(adjudicator).staticcall(sent);
        vm.assertLe(gas - gasleft(), 1_000_000, "gas");
        if (!ok) return;
        (Finding finding, uint64 bits) = abi.decode(answer, (Finding, uint64));
        for (uint64 other = 0; other < COUNT; ++other) {
            (, uint64 value) = compute(copy(), list(data()), other);
            // The element that is asked for may have been changed itself, to another one of the chunk.
            if (finding == Finding.VALUE && bits == value && other / 4 == element / 4) return;
        }
        vm.assertTrue(false, "an answer that no element of the chunk has");
    }

    // ------------------------------------------------------------------------------------------------------------------------ inputs

    function test_aValueThatIsReadTwice_isOpenedAsTheFirst() public {
        bytes32[] memory both = new bytes32[](2);
        both[0] = tensor(data(), CHUNK).root();
        Question memory question = ask(double_(), both, 2);
        // The second root is not even looked at.
        (Finding finding, uint64 bits) = adjudicator.compute(setting(), question, list(opening(0, 0, data())));
        assertAnswer(finding, bits, Finding.VALUE, 0x40C00000, "3 + 3");
        both[1] = both[0];
        question = ask(double_(), both, 2);
        ChunkOpening[] memory second = list(opening(1, 0, data()));
        vm.expectRevert(abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, 0));
        adjudicator.compute(setting(), question, second);
    }

    function test_oneValueOfTwoSizesOrDTypes_isNoOperand() public {
        Descriptor memory d = double_();
        d.inputs[1].shape = sizes(COUNT + 1);
        aliasing(d);
        d = elementwise(Family.GATHER, 0, DType.F32, COUNT, dtypes(DType.F32, DType.I64));
        d.parameters = new int64[](1);
        d.inputs[1].value = 0;
        aliasing(d);
    }

    function aliasing(Descriptor memory d) private {
        Question memory question = ask(d, new bytes32[](2), 2);
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, Fault.ALIAS));
        adjudicator.compute(setting(), question, new ChunkOpening[](0));
    }

    function test_aChunkOfAnotherInput_isRefused() public {
        Descriptor memory d = elementwise(Family.MAP, uint8(Scalar.FLOAT_SUB), DType.F32, 4, dtypes(DType.F32, DType.F32));
        bytes memory other = slice(data(), 16, 16);
        bytes32[] memory both = roots(list(slice(data(), 0, 16), other));
        Question memory question = ask(d, both, 0);
        ChunkOpening[] memory swapped = list(opening(0, 0, other), opening(1, 0, slice(data(), 0, 16)));
        vm.expectRevert(abi.encodeWithSelector(Merkle.WrongProof.selector, both[1], both[0]));
        adjudicator.compute(setting(), question, swapped);
    }

    function test_anotherNumberOfRoots_isRefused() public {
        for (uint256 count = 0; count < 66; ++count) {
            if (count == 1) continue;
            Question memory question = ask(copy(), new bytes32[](count), 0);
            vm.expectRevert(abi.encodeWithSelector(Reading.WrongNumberOfRoots.selector, count, 1));
            adjudicator.compute(setting(), question, new ChunkOpening[](0));
        }
    }

    // --------------------------------------------------------------------------------------------------------------------- questions

    function test_anElementOutside_isRefused() public {
        uint64[3] memory elements = [COUNT, COUNT + 1, type(uint64).max];
        for (uint256 i = 0; i < elements.length; ++i) {
            bytes memory reason = abi.encodeWithSelector(Descriptors.NoSuchElement.selector, elements[i], COUNT);
            reverts(new ChunkOpening[](0), elements[i], reason);
        }
        Descriptor memory d = copy();
        d.iteration = sizes(0);
        Question memory question = ask(d, new bytes32[](1), 0);
        vm.expectRevert(abi.encodeWithSelector(Descriptors.NoSuchElement.selector, 0, 0));
        adjudicator.compute(setting(), question, new ChunkOpening[](0));
        (d.family, d.inputs) = (Family.UNIFORM, new Descriptor[](1)[0].inputs);
        d.parameters = new int64[](1);
        question = ask(d, new bytes32[](0), 0);
        vm.expectRevert(abi.encodeWithSelector(Descriptors.NoSuchElement.selector, 0, 0));
        adjudicator.compute(setting(), question, new ChunkOpening[](0));
    }

    function test_chunksThatSplitElements_areRefused() public {
        uint32[4] memory chunkSizes = [uint32(0), 1, 4, 12];
        for (uint256 i = 0; i < chunkSizes.length; ++i) {
            Setting memory odd = setting();
            odd.spec.chunkSize = chunkSizes[i];
            Question memory question = ask(copy(), new bytes32[](1), 0);
            vm.expectRevert(abi.encodeWithSelector(Openings.ChunkSizeSplitsElements.selector, chunkSizes[i]));
            adjudicator.compute(odd, question, new ChunkOpening[](0));
            vm.expectRevert(abi.encodeWithSelector(Openings.ChunkSizeSplitsElements.selector, chunkSizes[i]));
            adjudicator.outline(question.descriptor, chunkSizes[i]);
        }
    }

    function test_moreSegmentsThanOne_areRefused() public {
        Question memory question = ask(reduction(Family.SUM, DType.F32, 10, 4, dtypes(DType.F32)), roots(list(data())), 0);
        ChunkOpening[] memory all = openAll(list(data()));
        vm.expectRevert(abi.encodeWithSelector(Reducer.TooManyTerms.selector, 3));
        adjudicator.compute(setting(), question, all);
    }

    // ------------------------------------------------------------------------------------------------------------------------- loads

    function loads(Descriptor memory d, Setting memory s, ChunkOpening[] memory openings, bytes memory reason) private {
        Question memory question = ask(d, new bytes32[](0), 1);
        vm.expectRevert(reason);
        adjudicator.compute(s, question, openings);
    }

    function test_loads_takeExactlyTheirOpenings() public {
        Descriptor memory d;
        d.iteration = sizes(2);
        uint8[6] memory expected = [2, 2, 1, 1, 0, 0];
        uint8[6] memory parameters = [1, 4, 2, 0, 2, 1];
        for (uint8 family = 0; family < 6; ++family) {
            (d.family, d.dtype) = (Family(family), Family(family) == Family.IOTA ? DType.I64 : DType.F32);
            d.parameters = new int64[](parameters[family]);
            if (Family(family) == Family.DATA) d.parameters = numbers(0, 1, 1, 1);
            for (uint256 count = 0; count < 4; ++count) {
                if (count == expected[family]) continue;
                bytes memory reason = abi.encodeWithSelector(Loads.WrongNumberOfOpenings.selector, count, expected[family]);
                loads(d, setting(), new ChunkOpening[](count), reason);
            }
        }
    }

    function test_state_opensTheSlotOfTheAgreedState_andNoOther() public {
        bytes32[] memory slots = new bytes32[](2);
        (slots[0], slots[1]) = (tensor(data(), CHUNK).root(), keccak256("another"));
        Tree memory state = Trees.build(slots);
        Setting memory s = setting();
        s.agreedState = state.root();
        Descriptor memory d;
        (d.family, d.dtype, d.iteration, d.parameters) = (Family.STATE, DType.F32, sizes(COUNT), new int64[](1));
        ChunkOpening memory slot = ChunkOpening(0, 0, bytes.concat(slots[0]), state.proof(0));
        ChunkOpening memory chunk = opening(1, 0, data());
        (Finding finding, uint64 bits) = adjudicator.compute(s, ask(d, new bytes32[](0), 1), list(slot, chunk));
        assertAnswer(finding, bits, Finding.VALUE, 0x40000000, "2");

        ChunkOpening memory other = ChunkOpening(0, 1, bytes.concat(slots[1]), state.proof(1));
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, 0));
        other.chunk = 0;
        bytes32 computed = Trees.hashPair(Trees.hashLeaf(other.data), other.proof[0]);
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Merkle.WrongProof.selector, computed, state.root()));
        other = ChunkOpening(0, 0, bytes.concat(slots[0], hex"00"), state.proof(0));
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Openings.WrongChunkLength.selector, 33, 32));
        other = ChunkOpening(1, 0, bytes.concat(slots[0]), state.proof(0));
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, 0));
        other = opening(0, 0, data());
        loads(d, s, list(slot, other), abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 1, 0));
        other = opening(1, 1, data());
        loads(d, s, list(slot, other), abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 1, 0));
        // A slot behind the state.
        d.parameters[0] = 2;
        other = ChunkOpening(0, 2, bytes.concat(slots[0]), state.proof(0));
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Merkle.LeafIndexOutOfRange.selector, uint64(2), uint64(2)));
        d.parameters[0] = type(int64).max;
        loads(d, s, list(other, chunk), abi.encodeWithSelector(Openings.ChunkNotOpened.selector, 0, uint64(type(int64).max)));
    }

    function test_aStepBeyond32Bits_hasNoRandomness() public {
        Descriptor memory d;
        (d.family, d.dtype, d.iteration, d.parameters) = (Family.UNIFORM, DType.F32, sizes(2), new int64[](1));
        Setting memory s = setting();
        s.step = 1 << 32;
        loads(d, s, new ChunkOpening[](0), abi.encodeWithSelector(Loads.StepOutOfRange.selector, s.step));
    }
}
