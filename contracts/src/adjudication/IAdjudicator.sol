// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Float32} from "../arithmetic/Rounding.sol";
import {TrainingSpec} from "../TrainingSpec.sol";
import {DType} from "./Descriptor.sol";
import {ChunkOpening} from "./Openings.sol";

/// @notice Finding of a computation.
enum Finding {
    /// The bits are those of the element.
    VALUE,
    /// An honest run stops here (an index out of range; NaN or an infinity as the loss or in the next state), so a claim of any value is
    /// wrong.
    STOPS,
    /// The contract cannot tell, because its precision does not decide the rounding of a function: the referee does. The bits are those of
    /// the argument.
    UNDECIDED
}

/// @notice Setting of a disputed operator, which the game vouches for.
struct Setting {
    TrainingSpec spec;
    /// Counted from 0.
    uint64 step;
    /// The agreed state root before the step.
    bytes32 agreedState;
}

/// @notice The element that is asked for.
struct Question {
    /// The operator's descriptor, a leaf under the program root.
    bytes descriptor;
    /// The agreed tensor root of each operand.
    bytes32[] roots;
    uint64 element;
}

/// @notice Sizes of a dispute's trees, from a descriptor.
struct Outline {
    /// Bytes of an element of the output.
    uint8 width;
    /// Elements of the output.
    uint64 elements;
    /// Leaves of the output's tensor root.
    uint64 chunks;
    /// Segments that the terms of one element make: 0 for operators without a sum, 1 if one opening does.
    uint64 segments;
    /// For each operand, the number of the operator whose output it is.
    uint64[] operands;
}

/// @notice The exact partial result of a reduction after some of its terms, in its one canonical form: "Exact partial sums" in
///         docs/protocol.md. All zero before the first term.
struct Partial {
    bytes32[3] words;
}

/// @title Functions of numbers
interface IFunctions {
    /// @notice An exact function of one to three elements: IEEE 754-2019 for numbers, modulo 2^64 for int64.
    /// @param code of `Family.MAP`, which says how many elements there are, and their dtypes (not checked)
    /// @param from dtype of the first element
    /// @param to dtype of the result
    function map(uint8 code, uint64[] calldata x, DType from, DType to) external pure returns (uint64 bits);

    /// @notice An elementary function's value, correctly rounded; every zero is +0. If UNDECIDED, its argument.
    /// @param code of `Family.FUNCTION`
    /// @param dtype of the argument and the value
    /// @param roundingBits of F32: 23 to 32
    function evaluate(uint8 code, uint64 x, DType dtype, uint8 roundingBits) external pure returns (Finding finding, uint64 bits);

    /// @notice An FP32 number of a random stream (`Philox`).
    function uniform(uint64 seed, uint32 step, uint32 stream, uint64 element) external pure returns (Float32);

    /// @notice The row of the data at a position of their endless order (`SwapOrNot`).
    function rowOfPosition(uint64 seed, uint256 position, uint64 rows) external pure returns (uint256);
}

/// @title Reductions
/// @notice The part of `IAdjudicator` that a contract of their own computes for families of reductions. It refuses all others.
interface IReducer {
    /// @notice The bits of an element of any operator whose terms, if it has some, make at most one segment.
    /// @param openings what is read of the operands, ascending by (input, chunk). Operators that load something open that instead: see
    ///        `Loads`.
    function compute(Setting calldata setting, Question calldata question, ChunkOpening[] calldata openings)
        external
        view
        returns (Finding finding, uint64 bits);

    /// @notice Goes on with an element's reduction over one segment of its terms.
    /// @param before the partial result after all segments before this one
    function reduceSegment(
        Setting calldata setting,
        Question calldata question,
        uint64 segment,
        Partial calldata before,
        ChunkOpening[] calldata openings
    ) external view returns (Finding finding, Partial memory afterwards);

    /// @notice The bits of an element whose partial result after all terms is given.
    /// @param roundingBits of the spec
    function finish(bytes calldata descriptor, Partial calldata whole, uint8 roundingBits)
        external
        view
        returns (Finding finding, uint64 bits);
}

/// @title Adjudicator of disputed elements
/// @notice One element of one operator's output, from the operator's descriptor and opened chunks of its operands. Stateless: the caller vouches
///         for the descriptor (a leaf under the program root), for the operands' roots (agreed leaves of the trace) and for the setting; all
///         else is checked, or forced by hashes. A malformed descriptor or opening reverts.
interface IAdjudicator is IReducer {
    /// @notice The contract that computes MAP, FUNCTION and random numbers.
    function functions() external view returns (IFunctions);

    /// @notice Leaves and segments, for a game that has to know how deep its trees are.
    function outline(bytes calldata descriptor, uint32 chunkSize) external view returns (Outline memory);
}
