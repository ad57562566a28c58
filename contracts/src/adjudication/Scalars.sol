// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Integer64} from "../arithmetic/Integer64.sol";
import {Float32, Rounding} from "../arithmetic/Rounding.sol";
import {DType} from "./Descriptor.sol";
import {Numbers} from "./Numbers.sol";

/// @notice The codes of `Family.MAP`. The numbers are part of the encoding.
enum Scalar {
    FLOAT_ADD,
    FLOAT_SUB,
    FLOAT_MUL,
    FLOAT_DIV,
    FLOAT_SQRT,
    FLOAT_NEG,
    FLOAT_ABS,
    FLOAT_FLOOR,
    FLOAT_MAXIMUM,
    FLOAT_MINIMUM,
    FLOAT_EQ,
    FLOAT_LT,
    FLOAT_LE,
    I64_ADD,
    I64_SUB,
    I64_MUL,
    I64_NEG,
    I64_ABS,
    I64_MAXIMUM,
    I64_MINIMUM,
    I64_EQ,
    I64_LT,
    I64_LE,
    BOOL_EQ,
    BOOL_AND,
    BOOL_OR,
    BOOL_NOT,
    WHERE,
    I64_TO_FLOAT,
    BOOL_TO_FLOAT,
    BOOL_TO_I64,
    FLOAT_TO_FLOAT
}

/// @title The exact operators of one element of each operand
/// @notice Operands and results are bits (`DType`).
library Scalars {
    /// @notice The greatest code.
    uint256 internal constant LAST_CODE = uint256(type(Scalar).max);

    /// @notice The result.
    /// @param x the operands, as many and of such dtypes as `inputsOf` and `inputOf` say
    /// @param from dtype of the first one
    /// @param to dtype of the result
    function map(Scalar code, uint64[] memory x, DType from, DType to) internal pure returns (uint64) {
        if (code == Scalar.WHERE) return x[0] != 0 ? x[1] : x[2];
        uint64 second = x.length > 1 ? x[1] : 0;
        if (code <= Scalar.FLOAT_LE) {
            (Float32 a, Float32 b) = (Numbers.toFloat32(from, x[0]), Numbers.toFloat32(from, second));
            if (code > Scalar.FLOAT_MINIMUM) return bit(compare(code, a, b));
            return Numbers.ofFloat32(to, number(code, a, b, formatOf(to)));
        }
        // forge-lint: disable-next-line(unsafe-typecast)
        if (code <= Scalar.I64_MINIMUM) return uint64(integer(code, int64(x[0]), int64(second)));
        // forge-lint: disable-next-line(unsafe-typecast)
        if (code <= Scalar.I64_LE) return bit(compareIntegers(code, int64(x[0]), int64(second)));
        if (code <= Scalar.BOOL_NOT) return bit(logic(code, x[0] != 0, second != 0));
        return code == Scalar.BOOL_TO_I64 ? bit(x[0] != 0) : Numbers.ofFloat32(to, convert(code, x[0], from, formatOf(to)));
    }

    function isUnary(Scalar code) private pure returns (bool) {
        return (code >= Scalar.FLOAT_SQRT && code <= Scalar.FLOAT_FLOOR) || code == Scalar.I64_NEG || code == Scalar.I64_ABS
            || code == Scalar.BOOL_NOT || code > Scalar.WHERE;
    }

    /// @dev Exact operators round to FP32, whatever the spec's rounding bits.
    function formatOf(DType dtype) private pure returns (uint256) {
        return Numbers.formatOf(dtype, Rounding.FULL_BITS);
    }

    function number(Scalar code, Float32 a, Float32 b, uint256 bits) private pure returns (Float32) {
        return isUnary(code) ? unary(code, a, bits) : binary(code, a, b, bits);
    }

    function unary(Scalar code, Float32 a, uint256 bits) private pure returns (Float32) {
        if (code == Scalar.FLOAT_SQRT) return Binary32.sqrt(a, bits);
        if (code == Scalar.FLOAT_NEG) return Binary32.neg(a);
        return code == Scalar.FLOAT_ABS ? Binary32.abs(a) : Binary32.floor(a);
    }

    function binary(Scalar code, Float32 a, Float32 b, uint256 bits) private pure returns (Float32) {
        if (code == Scalar.FLOAT_ADD) return Binary32.add(a, b, bits);
        if (code == Scalar.FLOAT_SUB) return Binary32.sub(a, b, bits);
        if (code == Scalar.FLOAT_MUL) return Binary32.mul(a, b, bits);
        if (code == Scalar.FLOAT_DIV) return Binary32.div(a, b, bits);
        return code == Scalar.FLOAT_MAXIMUM ? Binary32.maximum(a, b) : Binary32.minimum(a, b);
    }

    function compare(Scalar code, Float32 a, Float32 b) private pure returns (bool) {
        if (code == Scalar.FLOAT_EQ) return Binary32.eq(a, b);
        return code == Scalar.FLOAT_LT ? Binary32.lt(a, b) : Binary32.le(a, b);
    }

    function integer(Scalar code, int64 a, int64 b) private pure returns (int64) {
        if (code == Scalar.I64_ADD) return Integer64.add(a, b);
        if (code == Scalar.I64_SUB) return Integer64.sub(a, b);
        if (code == Scalar.I64_MUL) return Integer64.mul(a, b);
        if (code == Scalar.I64_NEG) return Integer64.neg(a);
        if (code == Scalar.I64_ABS) return Integer64.abs(a);
        return (a > b) == (code == Scalar.I64_MAXIMUM) ? a : b;
    }

    function compareIntegers(Scalar code, int64 a, int64 b) private pure returns (bool) {
        if (code == Scalar.I64_EQ) return a == b;
        return code == Scalar.I64_LT ? a < b : a <= b;
    }

    function logic(Scalar code, bool a, bool b) private pure returns (bool) {
        if (code == Scalar.BOOL_EQ) return a == b;
        if (code == Scalar.BOOL_AND) return a && b;
        return code == Scalar.BOOL_OR ? a || b : !a;
    }

    function convert(Scalar code, uint64 x, DType from, uint256 bits) private pure returns (Float32) {
        if (code == Scalar.FLOAT_TO_FLOAT) return Binary32.convert(Numbers.toFloat32(from, x), bits);
        // forge-lint: disable-next-line(unsafe-typecast)
        return Binary32.fromInt64(code == Scalar.I64_TO_FLOAT ? int64(x) : x != 0 ? int64(1) : int64(0), bits);
    }

    function bit(bool value) private pure returns (uint64) {
        return value ? 1 : 0;
    }

    // ------------------------------------------------------------------------------------------------------------------------ dtypes

    /// @notice Number of operands of a code.
    function inputsOf(uint8 code) internal pure returns (uint256) {
        if (Scalar(code) == Scalar.WHERE) return 3;
        return isUnary(Scalar(code)) ? 1 : 2;
    }

    /// @notice Dtype of operand `i`.
    /// @param output dtype of the result
    /// @param first dtype of operand 0, where that is one of several
    function inputOf(uint8 code, DType output, DType first, uint256 i) internal pure returns (DType) {
        Scalar scalar = Scalar(code);
        if (scalar <= Scalar.FLOAT_MINIMUM || (scalar == Scalar.WHERE && i > 0)) return output;
        if (scalar <= Scalar.FLOAT_LE || scalar == Scalar.FLOAT_TO_FLOAT) return Numbers.orF32(first);
        return scalar <= Scalar.I64_LE || scalar == Scalar.I64_TO_FLOAT ? DType.I64 : DType.BOOL;
    }

    /// @notice Dtype of the result: `claimed`, where it is one of several.
    function outputOf(uint8 code, DType claimed) internal pure returns (DType) {
        Scalar scalar = Scalar(code);
        if (scalar == Scalar.WHERE) return claimed;
        bool isNumber = scalar <= Scalar.FLOAT_MINIMUM || scalar == Scalar.I64_TO_FLOAT || scalar == Scalar.BOOL_TO_FLOAT;
        if (isNumber || scalar == Scalar.FLOAT_TO_FLOAT) return Numbers.orF32(claimed);
        if (scalar == Scalar.BOOL_TO_I64 || (scalar >= Scalar.I64_ADD && scalar <= Scalar.I64_MINIMUM)) return DType.I64;
        return DType.BOOL;
    }
}
