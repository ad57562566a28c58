// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Access, Row} from "../../src/adjudication/Access.sol";
import {Decoding} from "../../src/adjudication/Decoding.sol";
import {Descriptor, Descriptors, DType, Family, Fault, Input} from "../../src/adjudication/Descriptor.sol";
import {Merkle, Node} from "../../src/Merkle.sol";
import {Test} from "../support/Test.sol";

contract AccessHarness {
    function decode(bytes calldata encoded) external pure returns (Descriptor memory) {
        return Decoding.decode(encoded);
    }

    /// @dev As the contract reads: rows for the element first, then the term. `chosen` replaces the coordinate of a gather's axis.
    function read(bytes calldata encoded, uint256 number, uint64 element, uint256 term, int256 chosen)
        external
        pure
        returns (int256 flat)
    {
        // Not the adjudicator's own way in: these descriptors make no sense but for their numbers.
        Descriptor memory descriptor = abi.decode(encoded, (Descriptor));
        Descriptors.requireElement(descriptor, element);
        Input memory input = descriptor.inputs[number];
        uint256[] memory place = Access.unravel(descriptor.iteration, element);
        uint256[] memory index = Access.unravel(descriptor.reduction, term);
        (Row[] memory rows, uint256 elements) = Access.rowsAt(descriptor, input, place, index);
        if (descriptor.family == Family.GATHER && number == 0) rows[Descriptors.natural(descriptor, 0)].number = chosen;
        (uint256 flatIndex, bool valid) = Access.read(rows);
        require(!valid || flatIndex < elements, "inside");
        return valid ? int256(flatIndex) : -1;
    }

    function product(uint64[] memory sizes) external pure returns (uint256) {
        return Descriptors.product(sizes);
    }
}

/// @notice Python's descriptors and reads (scripts/make_descriptor_vectors.py), and descriptors that nobody should have written.
contract AccessTest is Test {
    AccessHarness private _harness;

    function setUp() public {
        _harness = new AccessHarness();
    }

    function key(string memory list, uint256 i, string memory field) private pure returns (string memory) {
        return string.concat(list, "[", vm.toString(i), "]", field);
    }

    function test_descriptors_areAbiEncodedStructs_inBothLanguages() public view {
        string memory json = vm.readFile("tests/vectors/descriptors.json");
        uint256 count = 0;
        for (; vm.keyExistsJson(json, key(".operators", count, "")); ++count) {
            bytes memory encoded = vm.parseJsonBytes(json, key(".operators", count, ".encoded"));
            Descriptor memory descriptor = _harness.decode(encoded);
            vm.assertEq(keccak256(abi.encode(descriptor)), keccak256(encoded), "canonical");
            vm.assertEq(uint8(descriptor.family), vm.parseJsonUint(json, key(".operators", count, ".family")), "family");
            vm.assertEq(descriptor.segment, vm.parseJsonUint(json, key(".operators", count, ".segment")), "segment");
            vm.assertEq(descriptor.root, vm.parseJsonBytes32(json, key(".operators", count, ".root")), "root");
            vm.assertEq(
                Node.unwrap(Merkle.leafOfBytes(encoded)), vm.parseJsonBytes32(json, key(".operators", count, ".leaf")), "leaf"
            );
        }
        vm.assertGt(count, 80, "every operator is there");
    }

    function test_reads_areThoseOfPython() public view {
        string memory json = vm.readFile("tests/vectors/access.json");
        string memory descriptors = vm.readFile("tests/vectors/descriptors.json");
        uint256 count = 0;
        bytes memory encoded;
        uint256 current = type(uint256).max;
        for (; vm.keyExistsJson(json, key("", count, "")); ++count) {
            uint256 operator = vm.parseJsonUint(json, key("", count, ".operator"));
            if (operator != current) encoded = vm.parseJsonBytes(descriptors, key(".operators", operator, ".encoded"));
            current = operator;
            checkReads(json, count, encoded);
        }
        vm.assertGt(count, 100, "every input of every operator is there");
    }

    function checkReads(string memory json, uint256 i, bytes memory encoded) private view {
        uint256 input = vm.parseJsonUint(json, key("", i, ".input"));
        uint256[] memory elements = vm.parseJsonUintArray(json, key("", i, ".element"));
        uint256[] memory terms = vm.parseJsonUintArray(json, key("", i, ".term"));
        int256[] memory chosen = vm.parseJsonIntArray(json, key("", i, ".index"));
        int256[] memory expected = vm.parseJsonIntArray(json, key("", i, ".read"));
        for (uint256 k = 0; k < elements.length; ++k) {
            int256 found = _harness.read(encoded, input, uint64(elements[k]), terms[k], chosen[k]);
            vm.assertTrue(found == expected[k], key("a read of vector ", i, key("", k, "")));
        }
    }

    // ------------------------------------------------------------------------------------------------------------------------ attacks

    /// @dev A descriptor with one input of which every number is as hostile as its type allows.
    function hostile(uint256 seed) private pure returns (Descriptor memory descriptor) {
        descriptor.family = Family(8 + seed % 8);
        descriptor.iteration = sizes(seed, 1);
        descriptor.reduction = sizes(seed, 2);
        descriptor.inputs = new Input[](1);
        Input memory input = descriptor.inputs[0];
        input.shape = sizes(seed, 3);
        uint256 stride = 2 + descriptor.iteration.length + descriptor.reduction.length;
        input.affine = new int64[](input.shape.length * stride);
        for (uint256 i = 0; i < input.affine.length; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            int64 number = random % 3 == 0 ? type(int64).max : random % 3 == 1 ? type(int64).min : int64(int256(random >> 32));
            // Half of the descriptors have small numbers, so that reads inside occur.
            if (seed % 2 == 0) number = int64(int256(random % 5)) - 2;
            if (i % stride == 1 && number < 1) number = 1 - number % 3;
            input.affine[i] = number;
        }
    }

    function sizes(uint256 seed, uint256 which) private pure returns (uint64[] memory result) {
        result = new uint64[](uint256(keccak256(abi.encode(seed, which))) % 4);
        for (uint256 i = 0; i < result.length; ++i) {
            result[i] = uint64(uint256(keccak256(abi.encode(seed, which, i))) % (1 << 13));
        }
    }

    /// @dev A slow second reading of the definition: no base, no early end.
    function slowRead(Descriptor memory d, uint256[] memory place, uint256[] memory term) private pure returns (int256 flat) {
        uint256 stride = 2 + place.length + term.length;
        for (uint256 i = 0; i < d.inputs[0].shape.length; ++i) {
            int256 number = d.inputs[0].affine[i * stride];
            for (uint256 m = 0; m < place.length + term.length; ++m) {
                int256 index = int256(m < place.length ? place[m] : term[m - place.length]);
                number += d.inputs[0].affine[i * stride + 2 + m] * index;
            }
            int256 divisor = d.inputs[0].affine[i * stride + 1];
            if (number % divisor != 0 || number < 0 || number / divisor >= int256(uint256(d.inputs[0].shape[i]))) return -1;
            flat = flat * int256(uint256(d.inputs[0].shape[i])) + number / divisor;
        }
    }

    function testFuzz_numbersAtTheEndsOfTheirRange_neitherOverflowNorReadOutside(uint256 seed, uint64 element, uint256 term)
        public
        view
    {
        Descriptor memory descriptor = hostile(seed);
        uint256 elements = Descriptors.elements(descriptor);
        uint256 terms = Descriptors.terms(descriptor);
        vm.assume(elements > 0 && terms > 0);
        (element, term) = (uint64(element % elements), term % terms);
        int256 found = _harness.read(abi.encode(descriptor), 0, element, term, 0);
        uint256[] memory place = Access.unravel(descriptor.iteration, element);
        vm.assertTrue(found == slowRead(descriptor, place, Access.unravel(descriptor.reduction, term)), "the definition");
    }

    function testFuzz_unravel_isTheInverseOfTheRowMajorIndex(uint256 seed, uint256 flat) public pure {
        uint64[] memory shape = sizes(seed, 0);
        uint256 count = Descriptors.product(shape);
        vm.assume(count > 0);
        flat %= count;
        uint256[] memory index = Access.unravel(shape, flat);
        uint256 back = 0;
        for (uint256 i = 0; i < shape.length; ++i) {
            vm.assertTrue(index[i] < shape[i], "inside its axis");
            back = back * shape[i] + index[i];
        }
        vm.assertEq(back, flat, "the same element");
    }

    function malformed(Fault what) private {
        vm.expectRevert(abi.encodeWithSelector(Descriptors.MalformedDescriptor.selector, what));
    }

    function triple(uint64 a, uint64 b, uint64 c) private pure returns (uint64[] memory result) {
        result = new uint64[](3);
        (result[0], result[1], result[2]) = (a, b, c);
    }

    function test_shapesThatAreTooLarge_revert_evenBehindAZero() public {
        vm.assertEq(_harness.product(triple(1 << 20, 1 << 20, 1)), 1 << 40, "2^40 is the limit");
        vm.assertEq(_harness.product(triple(5, 0, 7)), 0, "nothing");
        malformed(Fault.SIZE);
        _harness.product(triple(1 << 20, 1 << 20, 2));
        malformed(Fault.SIZE);
        _harness.product(triple(type(uint64).max, type(uint64).max, type(uint64).max));
        malformed(Fault.SIZE);
        _harness.product(triple(0, 1 << 40, 2));
        malformed(Fault.AXES);
        _harness.product(new uint64[](17));
    }

    function test_descriptorsWithMissingNumbers_orWithoutADivisor_revert() public {
        Descriptor memory descriptor = hostile(7);
        descriptor.iteration = new uint64[](0);
        descriptor.reduction = new uint64[](0);
        descriptor.inputs[0].shape = triple(3, 3, 3);
        descriptor.inputs[0].affine = new int64[](5);
        malformed(Fault.AFFINE);
        _harness.read(abi.encode(descriptor), 0, 0, 0, 0);
        descriptor.inputs[0].affine = new int64[](6);
        malformed(Fault.DIVISOR);
        _harness.read(abi.encode(descriptor), 0, 0, 0, 0);
        descriptor.inputs[0].affine[1] = type(int64).min;
        malformed(Fault.DIVISOR);
        _harness.read(abi.encode(descriptor), 0, 0, 0, 0);
    }

    function test_anElementBeyondTheOutput_reverts() public {
        Descriptor memory descriptor = hostile(7);
        descriptor.iteration = triple(2, 3, 1);
        vm.expectRevert(abi.encodeWithSelector(Descriptors.NoSuchElement.selector, uint64(6), 6));
        _harness.read(abi.encode(descriptor), 0, 6, 0, 0);
    }

    function testFuzz_bytesThatAreNoDescriptor_revert_orDecodeToOne(bytes memory junk, uint256 place, uint8 byteThere) public view {
        bytes memory encoded = abi.encode(hostile(3));
        if (junk.length % 2 == 0) {
            encoded[place % encoded.length] = bytes1(byteThere);
            junk = encoded;
        }
        try _harness.decode(junk) returns (Descriptor memory descriptor) {
            vm.assertTrue(uint8(descriptor.family) < 16 && uint8(descriptor.dtype) < 3, "known");
        } catch {}
    }
}
