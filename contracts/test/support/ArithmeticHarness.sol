// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Binary32} from "../../src/arithmetic/Binary32.sol";
import {Accumulator, ExactSum, Total} from "../../src/arithmetic/ExactSum.sol";
import {Philox} from "../../src/arithmetic/Philox.sol";
import {Float32, Rounding} from "../../src/arithmetic/Rounding.sol";
import {SwapOrNot} from "../../src/arithmetic/SwapOrNot.sol";

/// @notice The libraries behind an interface, for tests that send transactions; a whole batch of cases at once.
contract ArithmeticHarness {
    using ExactSum for Accumulator;
    using ExactSum for Total;

    enum Operator {
        ADD,
        SUB,
        MUL,
        DIV,
        SQRT,
        FLOOR,
        MAXIMUM,
        MINIMUM,
        EQ,
        LT,
        LE,
        FROM_INT64
    }

    function map(Operator operator, uint64[] calldata a, uint64[] calldata b) external pure returns (uint64[] memory results) {
        results = new uint64[](a.length);
        for (uint256 i = 0; i < a.length; ++i) {
            results[i] = apply_(operator, a[i], b[i]);
        }
    }

    function apply_(Operator operator, uint64 x, uint64 y) private pure returns (uint64) {
        (Float32 a, Float32 b) = (Float32.wrap(uint32(x)), Float32.wrap(uint32(y)));
        if (operator == Operator.ADD) return Float32.unwrap(Binary32.add(a, b, Rounding.FULL_BITS));
        if (operator == Operator.SUB) return Float32.unwrap(Binary32.sub(a, b, Rounding.FULL_BITS));
        if (operator == Operator.MUL) return Float32.unwrap(Binary32.mul(a, b, Rounding.FULL_BITS));
        if (operator == Operator.DIV) return Float32.unwrap(Binary32.div(a, b, Rounding.FULL_BITS));
        if (operator == Operator.SQRT) return Float32.unwrap(Binary32.sqrt(a, Rounding.FULL_BITS));
        if (operator == Operator.FLOOR) return Float32.unwrap(Binary32.floor(a));
        if (operator == Operator.MAXIMUM) return Float32.unwrap(Binary32.maximum(a, b));
        if (operator == Operator.MINIMUM) return Float32.unwrap(Binary32.minimum(a, b));
        if (operator == Operator.EQ) return Binary32.eq(a, b) ? 1 : 0;
        if (operator == Operator.LT) return Binary32.lt(a, b) ? 1 : 0;
        if (operator == Operator.LE) return Binary32.le(a, b) ? 1 : 0;
        return Float32.unwrap(Binary32.fromInt64(int64(x), Rounding.FULL_BITS));
    }

    function sum(uint32[] calldata a, uint32[] calldata b) external pure returns (Total memory total, uint32 rounded) {
        Accumulator memory accumulator;
        for (uint256 i = 0; i < a.length; ++i) {
            accumulator.addProduct(a[i], b[i]);
        }
        total = accumulator.total();
        rounded = Float32.unwrap(total.rounded(32));
    }

    function uniform(uint64 seed, uint32 step, uint32 stream, uint64[] calldata indices)
        external
        pure
        returns (uint32[] memory bits)
    {
        bits = new uint32[](indices.length);
        for (uint256 i = 0; i < indices.length; ++i) {
            bits[i] = Float32.unwrap(Philox.uniform(seed, step, stream, indices[i]));
        }
    }

    function rowOfPosition(uint64 seed, uint256 position, uint64 rows) external pure returns (uint256) {
        return SwapOrNot.rowOfPosition(seed, position, rows);
    }
}
