// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Elementary} from "../arithmetic/Elementary.sol";
import {Philox} from "../arithmetic/Philox.sol";
import {Float32, Rounding} from "../arithmetic/Rounding.sol";
import {SwapOrNot} from "../arithmetic/SwapOrNot.sol";
import {DType} from "./Descriptor.sol";
import {Finding, IFunctions} from "./IAdjudicator.sol";
import {Numbers} from "./Numbers.sol";
import {Scalar, Scalars} from "./Scalars.sol";

/// @title Functions of numbers
/// @notice `Scalars`, `Elementary`, `Philox` and `SwapOrNot` as a contract of their own, for the sake of the limit on code.
contract Functions is IFunctions {
    /// @inheritdoc IFunctions
    function map(uint8 code, uint64[] calldata x, DType from, DType to) external pure override returns (uint64) {
        return Scalars.map(Scalar(code), x, from, to);
    }

    /// @inheritdoc IFunctions
    function evaluate(uint8 code, uint64 x, DType dtype, uint8 roundingBits) external pure override returns (Finding, uint64) {
        Rounding.requireFormat(roundingBits);
        uint32 argument = Float32.unwrap(Numbers.toFloat32(dtype, x));
        (uint32 pattern, bool decided) = Elementary.evaluate(code, argument, Numbers.formatOf(dtype, roundingBits));
        if (!decided) return (Finding.UNDECIDED, x);
        return (Finding.VALUE, Numbers.ofFloat32(dtype, Rounding.wrap(pattern)));
    }

    /// @inheritdoc IFunctions
    function uniform(uint64 seed, uint32 step, uint32 stream, uint64 element) external pure override returns (Float32) {
        return Philox.uniform(seed, step, stream, element);
    }

    /// @inheritdoc IFunctions
    function rowOfPosition(uint64 seed, uint256 position, uint64 rows) external pure override returns (uint256) {
        return SwapOrNot.rowOfPosition(seed, position, rows);
    }
}
