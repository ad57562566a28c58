// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Decoding} from "./Decoding.sol";
import {Descriptor, Descriptors, Family, Fault} from "./Descriptor.sol";
import {Elements} from "./Elements.sol";
import {Finding, IAdjudicator, IFunctions, IReducer, Outline, Partial, Question, Setting} from "./IAdjudicator.sol";
import {Loads} from "./Loads.sol";
import {ChunkOpening, Openings} from "./Openings.sol";
import {Operands, Reading} from "./Operands.sol";

/// @title Adjudicator
/// @notice See `IAdjudicator`. Functions of numbers and reductions, which take much code, are computed by contracts of their own.
contract Adjudicator is IAdjudicator {
    using Descriptors for Descriptor;
    using Reading for Operands;

    /// @inheritdoc IAdjudicator
    IFunctions public immutable override functions;

    /// @notice The contract that computes reductions.
    IReducer public immutable reducer;

    /// @dev The family is the second word of a descriptor.
    uint256 private constant FAMILY = 32;

    /// @notice There is no code at this address.
    error NoCode(address account);

    constructor(IFunctions functions_, IReducer reducer_) {
        if (address(functions_).code.length == 0) revert NoCode(address(functions_));
        if (address(reducer_).code.length == 0) revert NoCode(address(reducer_));
        (functions, reducer) = (functions_, reducer_);
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

    /// @inheritdoc IReducer
    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        view
        override
        returns (Finding, uint64)
    {
        if (isOfReduction(question.descriptor)) forward();
        Descriptor memory descriptor = Decoding.decode(question.descriptor);
        if (descriptor.family < Family.COPY) {
            return Loads.compute(setting, descriptor, question.element, openings, functions);
        }
        Operands memory operands = Reading.open(descriptor, question, 0, openings, setting.spec.chunkSize);
        return Elements.compute(operands, openings, functions, setting.spec.roundingBits);
    }

    /// @inheritdoc IReducer
    function reduceSegment(Setting calldata, Question calldata, uint64, Partial calldata, ChunkOpening[] calldata)
        external
        view
        override
        returns (Finding, Partial memory)
    {
        forward();
    }

    /// @inheritdoc IReducer
    function finish(bytes calldata, Partial calldata, uint8) external view override returns (Finding, uint64) {
        forward();
    }

    /// @dev Read without a look at the rest, which the reducer decodes: what is malformed is refused there as here.
    function isOfReduction(bytes calldata encoded) private pure returns (bool) {
        return encoded.length >= FAMILY + 32 && uint256(bytes32(encoded[FAMILY:])) >= uint256(Family.SUM);
    }

    /// @dev Ends the call with what the reducer says to the same call: the return from within is meant.
    // slither-disable-next-line incorrect-return
    function forward() private view {
        address to = address(reducer);
        // slither-disable-next-line assembly
        assembly ("memory-safe") {
            // INVARIANT: nothing is read from memory afterwards, so that it may be overwritten from the free part on.
            let data := mload(0x40)
            calldatacopy(data, 0, calldatasize())
            let succeeded := staticcall(gas(), to, data, calldatasize(), 0, 0)
            returndatacopy(data, 0, returndatasize())
            if iszero(succeeded) { revert(data, returndatasize()) }
            return(data, returndatasize())
        }
    }
}
