// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Decoding} from "./Decoding.sol";
import {Descriptor, Descriptors, Family, Fault} from "./Descriptor.sol";
import {Elements} from "./Elements.sol";
import {Finding, IAdjudicator, IFunctions, Outline, Partial, Question, Setting} from "./IAdjudicator.sol";
import {Loads} from "./Loads.sol";
import {ChunkOpening, Openings} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";
import {Reductions} from "./Reductions.sol";

/// @title Adjudicator
/// @notice See `IAdjudicator`. Functions of numbers, which take much code, are computed by a contract of their own.
contract Adjudicator is IAdjudicator {
    using Descriptors for Descriptor;
    using Reading for Operands;

    /// @inheritdoc IAdjudicator
    IFunctions public immutable override functions;

    /// @notice The terms of this operator do not fit one opening: they are summed segment by segment.
    error TooManyTerms(uint256 segments);
    /// @notice There is no code at this address.
    error NoCode(address account);

    constructor(IFunctions functions_) {
        if (address(functions_).code.length == 0) revert NoCode(address(functions_));
        functions = functions_;
    }

    /// @inheritdoc IAdjudicator
    function outline(bytes calldata encoded, uint32 chunkSize) external pure override returns (Outline memory result) {
        Descriptor memory descriptor = Decoding.decode(encoded);
        Openings.requireChunkSize(chunkSize);
        (uint256 elements, uint256 width) = (descriptor.elements(), Descriptors.width(descriptor.dtype));
        // forge-lint: disable-start(unsafe-typecast)
        result.width = uint8(width);
        result.elements = uint64(elements);
        result.chunks = Openings.chunkCount(elements * width, chunkSize);
        result.segments = uint64(descriptor.segments());
        // forge-lint: disable-end(unsafe-typecast)
        result.operands = new uint64[](descriptor.inputs.length);
        for (uint256 i = 0; i < result.operands.length; ++i) {
            result.operands[i] = descriptor.inputs[i].value;
        }
    }

    /// @inheritdoc IAdjudicator
    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        view
        override
        returns (Finding, uint64)
    {
        Descriptor memory descriptor = Decoding.decode(question.descriptor);
        if (descriptor.family < Family.COPY) {
            return Loads.compute(setting, descriptor, question.element, openings, functions);
        }
        Operands memory operands = Reading.open(descriptor, question, 0, openings, setting.spec.chunkSize);
        if (descriptor.isReduction()) {
            uint256 segments = descriptor.segments();
            if (segments > 1) revert TooManyTerms(segments);
            Partial memory nothing = Partial([bytes32(0), bytes32(0), bytes32(0)]);
            return Reductions.finish(descriptor, Reductions.reduce(operands, openings, nothing), setting.spec.roundingBits);
        }
        return Elements.compute(operands, openings, functions, setting.spec.roundingBits);
    }

    /// @inheritdoc IAdjudicator
    function reduceSegment(
        Setting calldata setting,
        Question calldata question,
        uint64 segment,
        Partial calldata before,
        ChunkOpening[] calldata openings
    ) external pure override returns (Finding, Partial memory) {
        Descriptor memory descriptor = Decoding.decode(question.descriptor);
        // INVARIANT: what is no reduction has no segment, and so no running results.
        if (!descriptor.isReduction()) revert Descriptors.MalformedDescriptor(Fault.FAMILY);
        Operands memory operands = Reading.open(descriptor, question, segment, openings, setting.spec.chunkSize);
        return (Finding.VALUE, Reductions.reduce(operands, openings, before));
    }

    /// @inheritdoc IAdjudicator
    function finish(bytes calldata encoded, Partial calldata whole, uint8 roundingBits)
        external
        pure
        override
        returns (Finding, uint64)
    {
        return Reductions.finish(Decoding.decode(encoded), whole, roundingBits);
    }
}
