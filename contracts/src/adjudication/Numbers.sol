// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Binary32} from "../arithmetic/Binary32.sol";
import {Float32, Rounding} from "../arithmetic/Rounding.sol";
import {DType} from "./Descriptor.sol";

/// @title Numbers of every dtype as FP32 numbers
/// @notice Every number of BF16 and FP16 is one of FP32, so that is what arithmetic works with.
library Numbers {
    uint256 private constant SHORT_SIGN = 1 << 15;
    /// @dev What FP16 has fewer of: fraction bits, and a bias of exponents.
    uint256 private constant HALF_DROPPED = 13;
    uint256 private constant HALF_REBIAS = (127 - 15) << Rounding.FRACTION_BITS;
    uint256 private constant HALF_LEAST_NORMAL = HALF_REBIAS + (1 << Rounding.FRACTION_BITS);
    uint256 private constant HALF_FRACTION_BITS = 10;
    uint256 private constant HALF_INFINITY = 0x7C00;
    uint256 private constant HALF_NAN = 0x7E00;
    int256 private constant HALF_MIN_EXPONENT = -24;
    /// @dev One less than the exponent field of 2^-24, and the place of the highest set bit of every number below 32, a digit each.
    uint256 private constant HALF_BELOW_MIN = (127 - 24 - 1) << Rounding.FRACTION_BITS;
    uint256 private constant TOP_BITS = 0x44444444444444443333333322221100;

    /// @notice Whether a dtype has numbers that are rounded: neither integers nor bool.
    function isNumber(DType dtype) internal pure returns (bool) {
        return dtype == DType.F32 || dtype > DType.BOOL;
    }

    /// @notice The dtype if it has numbers; else one that has, which differs from what was claimed.
    function orF32(DType dtype) internal pure returns (DType) {
        return isNumber(dtype) ? dtype : DType.F32;
    }

    /// @notice The format that numbers of a dtype are rounded to (`Rounding.nearestOf`).
    /// @param roundingBits that of F32
    function formatOf(DType dtype, uint256 roundingBits) internal pure returns (uint256) {
        if (dtype == DType.F32) return roundingBits;
        return isBfloat16(dtype) ? Rounding.BFLOAT16 : Rounding.FLOAT16;
    }

    /// @dev Whether it is BF16, and not FP16. INVARIANT: no other dtype comes here, since descriptors have numbers wherever one is
    ///      rounded or read as FP32 (`Decoding.requireTypes`).
    function isBfloat16(DType dtype) private pure returns (bool) {
        if (dtype == DType.BF16) return true;
        assert(dtype == DType.F16);
        return false;
    }

    /// @notice The FP32 number that an element is; of a NaN some NaN.
    function toFloat32(DType dtype, uint256 bits) internal pure returns (Float32) {
        if (dtype == DType.F32) return Rounding.wrap(bits);
        return Rounding.wrap(isBfloat16(dtype) ? bits << 16 : ofHalf(bits));
    }

    /// @notice The pattern of the FP32 number that one of FP16 is.
    function ofHalf(uint256 bits) internal pure returns (uint256) {
        unchecked {
            uint256 sign = (bits & SHORT_SIGN) << 16;
            uint256 magnitude = bits & (SHORT_SIGN - 1);
            uint256 pattern = sign | ((magnitude << HALF_DROPPED) + HALF_REBIAS);
            if (magnitude >= HALF_INFINITY) return pattern | Rounding.INFINITY;
            if (magnitude >> HALF_FRACTION_BITS != 0) return pattern;
            if (magnitude == 0) return sign;
            uint256 low = magnitude > 31 ? 5 : 0;
            uint256 top = low + ((TOP_BITS >> (magnitude >> low << 2)) & 0xF);
            // The highest bit, at the place of FP32's implicit one, carries into the exponent.
            return sign | (HALF_BELOW_MIN + (top << Rounding.FRACTION_BITS) + (magnitude << (Rounding.FRACTION_BITS - top)));
        }
    }

    /// @notice The element that an FP32 number is, which has to be a number of the dtype's format.
    function ofFloat32(DType dtype, Float32 number) internal pure returns (uint64) {
        uint256 x = Float32.unwrap(number);
        if (dtype != DType.F32) x = isBfloat16(dtype) ? x >> 16 : toHalf(x);
        // forge-lint: disable-next-line(unsafe-typecast)
        return uint64(x);
    }

    function toHalf(uint256 x) private pure returns (uint256) {
        unchecked {
            uint256 sign = (x & Rounding.SIGN) >> 16;
            uint256 magnitude = x & (Rounding.SIGN - 1);
            if (magnitude >= Rounding.INFINITY) return magnitude > Rounding.INFINITY ? HALF_NAN : sign | HALF_INFINITY;
            if (magnitude >= HALF_LEAST_NORMAL) return sign | ((magnitude - HALF_REBIAS) >> HALF_DROPPED);
            (uint256 mantissa, uint256 exponent) = Binary32.split(magnitude);
            return sign | (mantissa >> uint256(HALF_MIN_EXPONENT - Rounding.MIN_EXPONENT - int256(exponent)));
        }
    }

    /// @notice Whether an element of a dtype of numbers is neither an infinity nor NaN.
    function isFinite(DType dtype, uint64 bits) internal pure returns (bool) {
        return Binary32.isFinite(Float32.unwrap(toFloat32(dtype, bits)));
    }
}
