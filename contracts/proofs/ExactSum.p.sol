// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Accumulator, ExactSum, Total} from "../src/arithmetic/ExactSum.sol";

/// @notice An exact accumulation is the mathematical sum, in three steps: a term moves one window by the product, the windows are joined
///         without loss, and a sum that was cut goes on from where it was.
contract ExactSumProof {
    using ExactSum for Accumulator;

    /// @dev No term and no opened sum brings a window out of these (`ExactSum`'s own argument).
    int256 private constant WIDE = int256(1) << 216;

    /// @dev halmos cannot write to a window whose place it does not know, so exponents are a list (both ends of every window, subnormals,
    ///      the smallest and the largest); fractions, signs and windows are whatever they may be.
    function check_aTermMovesOneWindowByTheProduct(int256[4] calldata windows, uint24 a, uint24 b) external pure {
        if (!narrow(windows)) return;
        uint8[8] memory exponents = [0, 1, 2, 63, 128, 129, 130, 254];
        for (uint256 i = 0; i < 8; ++i) {
            for (uint256 j = 0; j < 8; ++j) {
                checkTerm(windows, exponents[i], a, exponents[j], b);
            }
        }
    }

    function checkTerm(int256[4] calldata windows, uint256 ea, uint24 a, uint256 eb, uint24 b) private pure {
        Accumulator memory sum = accumulator(windows);
        sum.addProduct(pattern(ea, a), pattern(eb, b));
        assert(sum.special == 0);

        // IEEE 754-2019, 3.4: a subnormal has no hidden bit and the exponent of the smallest normal number.
        uint256 ma = (a & 0x7FFFFF) | (ea == 0 ? 0 : 1 << 23);
        uint256 mb = (b & 0x7FFFFF) | (eb == 0 ? 0 : 1 << 23);
        uint256 shift = (ea == 0 ? 0 : ea - 1) + (eb == 0 ? 0 : eb - 1);
        int256 term = int256((ma * mb) << (shift % 128));
        if ((a ^ b) >> 23 == 1) term = -term;
        assert(sum.window0 == windows[0] + (shift / 128 == 0 ? term : int256(0)));
        assert(sum.window1 == windows[1] + (shift / 128 == 1 ? term : int256(0)));
        assert(sum.window2 == windows[2] + (shift / 128 == 2 ? term : int256(0)));
        assert(sum.window3 == windows[3] + (shift / 128 == 3 ? term : int256(0)));
    }

    /// @dev The sign is bit 23 of `x`, the rest its fraction.
    function pattern(uint256 exponent, uint24 x) private pure returns (uint256) {
        return (uint256(x >> 23) << 31) | (exponent << 23) | (x & 0x7FFFFF);
    }

    function check_anInfiniteOrUndefinedTermIsNoticedForGood(uint24 a, uint24 b, bool before) external pure {
        uint8[4] memory exponents = [0, 100, 254, 255];
        for (uint256 i = 0; i < 4; ++i) {
            for (uint256 j = 0; j < 4; ++j) {
                Accumulator memory sum;
                if (before) sum.special = 0x7F800000;
                sum.addProduct(pattern(exponents[i], a), pattern(exponents[j], b));
                assert((sum.special == 0) == (i < 3 && j < 3 && !before));
            }
        }
    }

    function check_theWindowsAreJoinedWithoutLoss(int256[4] calldata windows) external pure {
        if (!narrow(windows)) return;
        Total memory total = accumulator(windows).total();
        // School addition of the four windows, each sign extended to three words.
        (uint256 low, uint256 middle, uint256 high) = (0, 0, 0);
        for (uint256 i = 0; i < 4; ++i) {
            (uint256 l, uint256 m, uint256 h) = place(windows[i], i);
            unchecked {
                uint256 carry = low + l < low ? 1 : 0;
                low += l;
                uint256 sum = middle + m;
                uint256 second = sum < middle ? 1 : 0;
                middle = sum + carry;
                if (middle < sum) ++second;
                high = high + h + second;
            }
        }
        assert(total.low == low);
        assert(total.middle == middle);
        assert(uint256(total.high) == high);
    }

    function check_aCutSumGoesOnFromWhereItWas(int256 high, uint256 middle, uint256 low) external pure {
        if (high >= ExactSum.MAX_HIGH || high < -ExactSum.MAX_HIGH) return;
        Accumulator memory resumed = ExactSum.resume(Total(high, middle, low));
        assert(narrow([resumed.window0, resumed.window1, resumed.window2, resumed.window3]));
        Total memory again = resumed.total();
        assert(again.high == high && again.middle == middle && again.low == low);
    }

    function place(int256 window, uint256 i) private pure returns (uint256 low, uint256 middle, uint256 high) {
        uint256 x = uint256(window);
        uint256 sign = window < 0 ? type(uint256).max : 0;
        if (i == 0) return (x, sign, sign);
        if (i == 1) return (x << 128, uint256(window >> 128), sign);
        if (i == 2) return (0, x, sign);
        return (0, x << 128, uint256(window >> 128));
    }

    function accumulator(int256[4] calldata windows) private pure returns (Accumulator memory) {
        return Accumulator(windows[0], windows[1], windows[2], windows[3], 0);
    }

    function narrow(int256[4] memory windows) private pure returns (bool) {
        for (uint256 i = 0; i < 4; ++i) {
            if (windows[i] >= WIDE || windows[i] <= -WIDE) return false;
        }
        return true;
    }
}
