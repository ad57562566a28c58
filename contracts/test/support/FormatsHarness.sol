// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {DType} from "../../src/adjudication/Descriptor.sol";
import {Functions} from "../../src/adjudication/Functions.sol";
import {Finding} from "../../src/adjudication/IAdjudicator.sol";

/// @notice Functions of numbers, a whole batch of cases at once. Operands and results are eight bytes each, one behind the other.
contract FormatsHarness {
    Functions private immutable _functions = new Functions();

    /// @param b the second operands; none for codes of one
    function map(uint8 code, DType from, DType to, bytes calldata a, bytes calldata b)
        external
        view
        returns (bytes memory results)
    {
        results = new bytes(a.length);
        uint64[] memory x = new uint64[](b.length == 0 ? 1 : 2);
        for (uint256 i = 0; i < a.length; i += 8) {
            x[0] = uint64(bytes8(a[i:]));
            if (b.length > 0) x[1] = uint64(bytes8(b[i:]));
            put(results, i, _functions.map(code, x, from, to));
        }
    }

    function evaluate(uint8 code, DType dtype, bytes calldata a) external view returns (bytes memory results, uint256 undecided) {
        results = new bytes(a.length);
        for (uint256 i = 0; i < a.length; i += 8) {
            (Finding finding, uint64 bits) = _functions.evaluate(code, uint64(bytes8(a[i:])), dtype, 32);
            put(results, i, bits);
            if (finding != Finding.VALUE) ++undecided;
        }
    }

    function put(bytes memory data, uint256 position, uint64 number) private pure {
        for (uint256 i = 0; i < 8; ++i) {
            data[position + i] = bytes1(uint8(number >> (56 - 8 * i)));
        }
    }
}
