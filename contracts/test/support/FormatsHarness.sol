// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {DType} from "../../src/adjudication/Descriptor.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {Finding} from "../../src/adjudication/IAdjudicator.sol";

/// @notice Functions of numbers, a whole batch of cases at once.
contract FormatsHarness {
    Functions private immutable _functions = new Functions();

    /// @param b the second operands; none for codes of one
    function map(uint8 code, DType from, DType to, uint64[] calldata a, uint64[] calldata b)
        external
        view
        returns (uint64[] memory results)
    {
        results = new uint64[](a.length);
        uint64[] memory x = new uint64[](b.length == 0 ? 1 : 2);
        for (uint256 i = 0; i < a.length; ++i) {
            x[0] = a[i];
            if (b.length > 0) x[1] = b[i];
            results[i] = _functions.map(code, x, from, to);
        }
    }

    function evaluate(uint8 code, DType dtype, uint64[] calldata a)
        external
        view
        returns (uint64[] memory results, uint256 undecided)
    {
        results = new uint64[](a.length);
        for (uint256 i = 0; i < a.length; ++i) {
            Finding finding;
            (finding, results[i]) = _functions.evaluate(code, a[i], dtype, 32);
            if (finding != Finding.VALUE) ++undecided;
        }
    }
}
