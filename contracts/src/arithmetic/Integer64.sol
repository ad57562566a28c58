// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @title The operators of int64, modulo 2^64
/// @notice As two's complement does it: nothing overflows, and -(-2^63) is -2^63.
library Integer64 {
    function add(int64 a, int64 b) internal pure returns (int64) {
        unchecked {
            return a + b;
        }
    }

    function sub(int64 a, int64 b) internal pure returns (int64) {
        unchecked {
            return a - b;
        }
    }

    function mul(int64 a, int64 b) internal pure returns (int64) {
        unchecked {
            return a * b;
        }
    }

    function neg(int64 a) internal pure returns (int64) {
        unchecked {
            return -a;
        }
    }

    function abs(int64 a) internal pure returns (int64) {
        return a < 0 ? neg(a) : a;
    }
}
