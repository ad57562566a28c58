// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame} from "./IVerificationGame.sol";
import {Time, Timestamp} from "./Time.sol";

/// @title Conditions on a call's payment and instant
library Guards {
    // Payable functions come here through other libraries, where Slither does not follow them.
    // slither-disable-next-line msg-value-in-nonpayable
    function requirePayment(uint256 expected) internal view {
        if (msg.value != expected) revert IVerificationGame.WrongPayment(msg.value, expected);
    }

    /// @dev Deadlines are inclusive.
    function requireNotAfter(Timestamp deadline) internal view {
        Timestamp current = Time.now_();
        if (current > deadline) revert IVerificationGame.TooLate(current, deadline);
    }

    function requireAfter(Timestamp deadline) internal view {
        Timestamp current = Time.now_();
        if (current <= deadline) revert IVerificationGame.TooEarly(current, deadline);
    }
}
