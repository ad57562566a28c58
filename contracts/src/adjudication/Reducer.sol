// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Decoding} from "./Decoding.sol";
import {Descriptor, Descriptors, Fault} from "./Descriptor.sol";
import {Finding, IReducer, Partial, Question, Setting} from "./IAdjudicator.sol";
import {ChunkOpening} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";
import {Reductions} from "./Reductions.sol";

/// @title Reducer
/// @notice See `IReducer`. It has no state, and checks all that it is given, as the adjudicator does.
contract Reducer is IReducer {
    using Descriptors for Descriptor;

    /// @notice The terms of this operator do not fit one opening: they are summed segment by segment.
    error TooManyTerms(uint256 segments);

    /// @inheritdoc IReducer
    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        pure
        override
        returns (Finding, uint64)
    {
        Descriptor memory descriptor = decode(question.descriptor);
        Operands memory operands = Reading.open(descriptor, question, 0, openings, setting.spec.chunkSize);
        uint256 segments = descriptor.segments();
        if (segments > 1) revert TooManyTerms(segments);
        Partial memory nothing = Partial([bytes32(0), bytes32(0), bytes32(0)]);
        return Reductions.finish(descriptor, Reductions.reduce(operands, openings, nothing), setting.spec.roundingBits);
    }

    /// @inheritdoc IReducer
    function reduceSegment(
        Setting calldata setting,
        Question calldata question,
        uint64 segment,
        Partial calldata before,
        ChunkOpening[] calldata openings
    ) external pure override returns (Finding, Partial memory) {
        Descriptor memory descriptor = decode(question.descriptor);
        Operands memory operands = Reading.open(descriptor, question, segment, openings, setting.spec.chunkSize);
        return (Finding.VALUE, Reductions.reduce(operands, openings, before));
    }

    /// @inheritdoc IReducer
    function finish(bytes calldata encoded, Partial calldata whole, uint8 roundingBits)
        external
        pure
        override
        returns (Finding, uint64)
    {
        return Reductions.finish(decode(encoded), whole, roundingBits);
    }

    /// @dev INVARIANT: what is no reduction has no segment, and so no running results.
    function decode(bytes calldata encoded) private pure returns (Descriptor memory descriptor) {
        descriptor = Decoding.decode(encoded);
        if (!descriptor.isReduction()) revert Descriptors.MalformedDescriptor(Fault.FAMILY);
    }
}
