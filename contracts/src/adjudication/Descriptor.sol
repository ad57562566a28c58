// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice Family of an operator: the way in which an element of its output is computed. The numbers are part of the encoding.
enum Family {
    /// The tensor of a state slot before the step.
    STATE,
    /// A field of the step's batch.
    DATA,
    /// One number of the schedule.
    SCHEDULE,
    /// Literals, or a tensor root.
    CONSTANT,
    /// start + i * step.
    IOTA,
    /// Philox.
    UNIFORM,
    /// The first of the inputs that is read validly.
    COPY,
    /// An element of input 0 at a coordinate that input 1 gives.
    GATHER,
    /// An exact function of one element of every input (`Scalars`).
    MAP,
    /// An elementary function of one number, correctly rounded.
    FUNCTION,
    /// The sum of one input, or of the products of two, correctly rounded.
    SUM,
    /// The sum of the elements of input 0 at which input 1 is the element's label.
    SELECTED_SUM,
    /// The largest or smallest of the terms; a zero is +0.
    EXTREME,
    /// The label of the first largest term.
    ARGMAX,
    /// The sum of int64 modulo 2^64.
    INTEGER_SUM,
    /// Whether a term is true.
    ANY,
    /// The products of two inputs, added group by group as tensor cores do (docs/arithmetic.md).
    CHAIN
}

/// @notice Type of an element. Its bits are the pattern of an F32, BF16 or F16 (binary16), the two's complement of an I64, 0 or 1 of a BOOL.
enum DType {
    F32,
    I64,
    BOOL,
    BF16,
    F16
}

/// @notice One operand, and which of its elements is read.
struct Input {
    /// The number of the operator whose output is read.
    uint64 value;
    DType dtype;
    /// A factorisation of the operand's flat index into axes.
    uint64[] shape;
    /// For every one of these axes the numbers offset, divisor and a coefficient for each iteration and reduction axis: the coordinate is
    /// (offset + sum of coefficient * index) / divisor, and exists if that leaves no rest.
    int64[] affine;
}

/// @notice One operator: all that is needed to compute any element of its output. "Operator descriptors" in docs/protocol.md.
struct Descriptor {
    Family family;
    uint8 code;
    DType dtype;
    /// Terms that one opening covers; 0 outside of the reductions.
    uint32 segment;
    /// A factorisation of the output's flat index.
    uint64[] iteration;
    /// A factorisation of the reduction index.
    uint64[] reduction;
    Input[] inputs;
    int64[] parameters;
    bytes32 root;
}

/// @notice Fault of a malformed descriptor.
enum Fault {
    /// More than 16 iteration and reduction axes, or view axes.
    AXES,
    /// More than 64 inputs.
    TOO_MANY_INPUTS,
    /// Another number of parameters than the family has.
    PARAMETERS,
    /// A parameter that counts something is negative.
    NEGATIVE,
    /// Another number of inputs than the family or code has.
    INPUTS,
    /// An input of another dtype than the family or code has.
    DTYPE,
    /// Segments of no terms, or of more than 4096; of CHAIN, of another number than a power of two from a group's to 2048.
    SEGMENT,
    /// More than 2^40 elements or terms.
    SIZE,
    /// Not offset, divisor and a coefficient an axis, for every view axis.
    AFFINE,
    /// A divisor below 1.
    DIVISOR,
    /// Reduction axes where the family has none.
    REDUCTION,
    /// A gather along an axis that input 0 has not.
    GATHER_AXIS,
    /// The family has no such code.
    CODE,
    /// The family cannot do this.
    FAMILY,
    /// A batch of samples without items.
    EMPTY,
    /// A label that is no int64.
    LABEL,
    /// A number beyond int64 or the dtype, a stream beyond 32 bits, a field of data of too many elements, a column outside of the schedule.
    RANGE,
    /// One value as two operands of different dtype or size.
    ALIAS
}

/// @title Sizes that follow from a descriptor
/// @notice A descriptor is the payload of a leaf under the spec's program root. Nobody vouches for it: whatever it says, its evaluation ends
///         soon, does not overflow, and reads nothing that is not there.
library Descriptors {
    /// @notice Iteration and reduction axes together, and view axes of an input.
    uint256 internal constant MAX_AXES = 16;
    uint256 internal constant MAX_INPUTS = 64;
    /// @notice Literals of a constant in its descriptor.
    uint256 internal constant MAX_LITERALS = 32;
    /// @notice Elements of a tensor, terms of a reduction.
    uint256 internal constant MAX_SIZE = 1 << 40;
    /// @notice Terms of a segment, which one transaction adds up.
    uint256 internal constant MAX_SEGMENT = 4096;

    error MalformedDescriptor(Fault what);
    /// @notice The output has no such element.
    error NoSuchElement(uint64 element, uint256 elements);

    /// @notice The number of elements of the output.
    function elements(Descriptor memory self) internal pure returns (uint256) {
        return product(self.iteration);
    }

    /// @notice The number of terms of each.
    function terms(Descriptor memory self) internal pure returns (uint256) {
        return product(self.reduction);
    }

    function isReduction(Descriptor memory self) internal pure returns (bool) {
        return self.family >= Family.SUM;
    }

    /// @notice Openings that the terms of one element need: at least 1 for a reduction, 0 for all else.
    function segments(Descriptor memory self) internal pure returns (uint256) {
        if (!isReduction(self)) return 0;
        uint256 length = self.segment;
        if (length == 0 || length > MAX_SEGMENT) revert MalformedDescriptor(Fault.SEGMENT);
        uint256 count = terms(self);
        return count == 0 ? 1 : (count - 1) / length + 1;
    }

    function requireElement(Descriptor memory self, uint64 element) internal pure {
        uint256 count = elements(self);
        if (element >= count) revert NoSuchElement(element, count);
    }

    function parameter(Descriptor memory self, uint256 position) internal pure returns (int64) {
        if (position >= self.parameters.length) revert MalformedDescriptor(Fault.PARAMETERS);
        return self.parameters[position];
    }

    /// @notice The value of a parameter that must not be negative.
    function natural(Descriptor memory self, uint256 position) internal pure returns (uint256) {
        int64 number = parameter(self, position);
        if (number < 0) revert MalformedDescriptor(Fault.NEGATIVE);
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint64(number);
    }

    /// @notice Bytes of an element.
    function width(DType dtype) internal pure returns (uint256) {
        if (dtype == DType.F32) return 4;
        if (dtype > DType.BOOL) return 2;
        return dtype == DType.I64 ? 8 : 1;
    }

    /// @notice Bytes of an element of a field of data. Its code says how it is stored: 0 as it is read, else as a smaller integer
    ///         (1 uint8, 2 int8, 3 int16, 4 uint16, 5 int32), which is read as int64.
    function storedWidth(Descriptor memory self) internal pure returns (uint256) {
        uint8 code = self.code;
        if (code == 0) return width(self.dtype);
        return code < 3 ? 1 : code < 5 ? 2 : 4;
    }

    /// @notice The product of sizes, at most 2^40.
    function product(uint64[] memory sizes) internal pure returns (uint256 result) {
        if (sizes.length > MAX_AXES) revert MalformedDescriptor(Fault.AXES);
        result = 1;
        bool isEmpty = false;
        for (uint256 axis = 0; axis < sizes.length; ++axis) {
            uint256 size = sizes[axis];
            // INVARIANT: every factor and every partial product is at most 2^40, so nothing overflows. A size of 0 must not hide one that
            // is too large, so it is only counted.
            if (size == 0) isEmpty = true;
            else result *= size;
            if (size > MAX_SIZE || result > MAX_SIZE) revert MalformedDescriptor(Fault.SIZE);
        }
        if (isEmpty) result = 0;
    }
}
