// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Chains} from "./Chains.sol";
import {Descriptor, Descriptors, DType, Family, Fault} from "./Descriptor.sol";
import {Numbers} from "./Numbers.sol";
import {Scalar, Scalars} from "./Scalars.sol";

/// @title Decoding of descriptors
/// @notice Every call begins here, so that a malformed descriptor is refused everywhere, and by the same error.
library Decoding {
    using Descriptors for Descriptor;

    /// @notice Longest encoding. Nothing in memory is larger, because every word of it is read once.
    uint256 internal constant MAX_BYTES = 1 << 16;
    /// @dev Words of the struct's head, and those that point to its lists.
    uint256 private constant HEAD = 9;
    uint256 private constant ITERATION = 4;
    uint256 private constant REDUCTION = 5;
    uint256 private constant INPUTS = 6;
    uint256 private constant PARAMETERS = 7;
    /// @dev Words of an input's head, and those that point to its lists.
    uint256 private constant INPUT_HEAD = 4;
    uint256 private constant SHAPE = 2;
    uint256 private constant AFFINE = 3;
    /// @dev A digit for each family, the lowest for STATE. Of MAP none counts.
    uint256 private constant PARAMETER_COUNTS = 0x0000_0000_1012_0241;
    /// @dev The greatest code of each family, a digit for each as above.
    uint256 private constant CODES = 0x0002_0001_0070_0100_0050;

    /// @notice The encoding is not the one of `abi.encode`: at this position stands a wrong number, or the end.
    error NotCanonical(uint256 position);

    /// @notice The descriptor. Reverts for anything else (without data if a number leaves its type).
    function decode(bytes calldata encoded) internal pure returns (Descriptor memory descriptor) {
        requireCanonical(encoded);
        descriptor = abi.decode(encoded, (Descriptor));
        requireSound(descriptor);
    }

    // ------------------------------------------------------------------------------------------------------------------ the encoding

    /// @dev INVARIANT: lists stand one after another in the order of the fields and end with the bytes. So none is read twice, and a few bytes
    ///      cannot become a large struct.
    function requireCanonical(bytes calldata encoded) private pure {
        if (encoded.length > MAX_BYTES) revert NotCanonical(MAX_BYTES);
        requireWord(encoded, 0, 32);
        uint256 place = skip(encoded, 32, ITERATION, 32 + 32 * HEAD);
        place = skip(encoded, 32, REDUCTION, place);
        requireWord(encoded, 32 + 32 * INPUTS, place - 32);
        uint256 base = place + 32;
        uint256 inputs = count(encoded, place);
        if (inputs > Descriptors.MAX_INPUTS) revert Descriptors.MalformedDescriptor(Fault.TOO_MANY_INPUTS);
        place = base + 32 * inputs;
        for (uint256 i = 0; i < inputs; ++i) {
            requireWord(encoded, base + 32 * i, place - base);
            uint256 start = place;
            place = skip(encoded, start, SHAPE, start + 32 * INPUT_HEAD);
            place = skip(encoded, start, AFFINE, place);
        }
        place = skip(encoded, 32, PARAMETERS, place);
        if (place != encoded.length) revert NotCanonical(place);
    }

    /// @dev The end of the list of words to which a slot of the struct at `base` points: it has to stand at `place`.
    function skip(bytes calldata encoded, uint256 base, uint256 slot, uint256 place) private pure returns (uint256) {
        requireWord(encoded, base + 32 * slot, place - base);
        return place + 32 + 32 * count(encoded, place);
    }

    function count(bytes calldata encoded, uint256 place) private pure returns (uint256 length) {
        length = wordAt(encoded, place);
        if (length > MAX_BYTES) revert NotCanonical(place);
    }

    function requireWord(bytes calldata encoded, uint256 place, uint256 expected) private pure {
        if (wordAt(encoded, place) != expected) revert NotCanonical(place);
    }

    function wordAt(bytes calldata encoded, uint256 place) private pure returns (uint256) {
        if (place + 32 > encoded.length) revert NotCanonical(place);
        return uint256(bytes32(encoded[place:]));
    }

    // ------------------------------------------------------------------------------------------------------------------- what it says

    /// @dev Rows and what parameters mean are checked where they are read.
    function requireSound(Descriptor memory self) private pure {
        if (self.iteration.length + self.reduction.length > Descriptors.MAX_AXES) fail(Fault.AXES);
        // For what they refuse, and not for what they count.
        // slither-disable-start unused-return
        self.elements();
        self.terms();
        // slither-disable-end unused-return
        Family family = self.family;
        if (self.code > (family == Family.MAP ? Scalars.LAST_CODE : digit(CODES, family))) fail(Fault.CODE);
        // slither-disable-next-line unused-return
        if (self.isReduction()) self.segments();
        else if (self.segment != 0 || self.reduction.length != 0) fail(Fault.REDUCTION);
        requireTypes(self);
        requireParameters(self);
        if (family == Family.CHAIN && !Chains.isSegment(self)) fail(Fault.SEGMENT);
    }

    function requireTypes(Descriptor memory self) private pure {
        Family family = self.family;
        if (family > Family.COPY && self.dtype != outputOf(self)) fail(Fault.DTYPE);
        if (family == Family.IOTA && self.dtype != DType.I64) fail(Fault.DTYPE);
        // What is stored as a smaller integer is read as int64.
        if (family == Family.DATA && self.code != 0 && self.dtype != DType.I64) fail(Fault.DTYPE);
        // A store has to be finite, if it can be anything else.
        if (family == Family.COPY && self.code == 1 && !Numbers.isNumber(self.dtype)) fail(Fault.DTYPE);
        if ((family == Family.SCHEDULE || family == Family.UNIFORM) && self.dtype != DType.F32) fail(Fault.DTYPE);
        uint256 given = self.inputs.length;
        uint256 expected = inputsOf(self);
        if (family == Family.COPY ? given == 0 : given != expected && !(family == Family.SUM && given == 2)) fail(Fault.INPUTS);
        for (uint256 i = 0; i < given; ++i) {
            if (self.inputs[i].dtype != inputOf(self, i)) fail(Fault.DTYPE);
        }
        // A conversion goes from one format to another.
        bool converts = family == Family.MAP && Scalar(self.code) == Scalar.FLOAT_TO_FLOAT;
        if (converts && self.inputs[0].dtype == self.dtype) fail(Fault.DTYPE);
    }

    function outputOf(Descriptor memory self) private pure returns (DType) {
        Family family = self.family;
        if (family == Family.GATHER) return self.dtype;
        if (family == Family.MAP) return Scalars.outputOf(self.code, self.dtype);
        if (family == Family.ARGMAX || family == Family.INTEGER_SUM) return DType.I64;
        if (family == Family.CHAIN) return Chains.dtypeOf(self);
        return family == Family.ANY ? DType.BOOL : Numbers.orF32(self.dtype);
    }

    function inputsOf(Descriptor memory self) private pure returns (uint256) {
        Family family = self.family;
        if (family < Family.COPY) return 0;
        if (family == Family.MAP) return Scalars.inputsOf(self.code);
        return family == Family.GATHER || family == Family.SELECTED_SUM || family == Family.CHAIN ? 2 : 1;
    }

    function inputOf(Descriptor memory self, uint256 i) private pure returns (DType) {
        Family family = self.family;
        if (family == Family.MAP) return Scalars.inputOf(self.code, self.dtype, self.inputs[0].dtype, i);
        if (family == Family.ARGMAX) return Numbers.orF32(self.inputs[0].dtype);
        if (i == 1 && (family == Family.GATHER || family == Family.SELECTED_SUM)) return DType.I64;
        return self.dtype;
    }

    function requireParameters(Descriptor memory self) private pure {
        uint256 given = self.parameters.length;
        if (self.family == Family.CONSTANT) {
            // None: they stand under a root. One is all of them.
            if (given > 1 && (given > Descriptors.MAX_LITERALS || given != self.elements())) fail(Fault.PARAMETERS);
            return;
        }
        uint256 expected = digit(PARAMETER_COUNTS, self.family);
        if (self.family == Family.SELECTED_SUM || self.family == Family.ARGMAX) {
            expected = 2 + self.iteration.length + self.reduction.length;
        }
        if (given != expected) fail(Fault.PARAMETERS);
    }

    function digit(uint256 table, Family family) private pure returns (uint256) {
        return (table >> (4 * uint256(family))) & 0xF;
    }

    function fail(Fault what) private pure {
        revert Descriptors.MalformedDescriptor(what);
    }
}
