// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Elementary} from "../arithmetic/Elementary.sol";
import {Rounding} from "../arithmetic/Rounding.sol";
import {Finding, IFunctions} from "./IAdjudicator.sol";
import {Scalar, Scalars} from "./Scalars.sol";

/// @title MAP and FUNCTION
/// @notice `Scalars` and `Elementary` as a contract of its own, for the sake of the limit on code.
contract Functions is IFunctions {
    /// @inheritdoc IFunctions
    function map(uint8 code, uint64[] calldata x) external pure override returns (uint64) {
        return Scalars.map(Scalar(code), x);
    }

    /// @inheritdoc IFunctions
    function evaluate(uint8 code, uint32 x, uint8 roundingBits) external pure override returns (Finding, uint64) {
        Rounding.requireFormat(roundingBits);
        (uint32 bits, bool decided) = Elementary.evaluate(code, x, roundingBits);
        return decided ? (Finding.VALUE, bits) : (Finding.UNDECIDED, x);
    }
}
