// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame} from "./IVerificationGame.sol";

/// @notice What the contract owes to whom, outside of the escrows.
struct Ledger {
    mapping(address account => uint256 amount) credits;
}

/// @title Bonds and pull payments
/// @notice Nothing is ever sent on anybody's behalf: a verdict credits accounts, and each account withdraws for itself.
library Bonds {
    /// @notice How a lost bond is divided: at most half to the winner, the rest to the customer.
    /// @dev Half, because a winner who gets all of it could lose to itself for free and so delay a claim at no cost, or reject its own.
    function split(uint128 bond) internal pure returns (uint256 toWinner, uint256 toCustomer) {
        toWinner = bond / 2;
        toCustomer = bond - toWinner;
    }

    function credit(Ledger storage self, address account, uint256 amount) internal {
        self.credits[account] += amount;
        emit IVerificationGame.Credited(account, amount);
    }

    /// @notice Sends everything credited to `account` to it.
    function payOut(Ledger storage self, address account) internal returns (uint256 amount) {
        amount = self.credits[account];
        if (amount == 0) revert IVerificationGame.NothingToWithdraw(account);
        // INVARIANT: the credit is gone before the money moves, so that a receiver that calls back finds nothing to take again.
        self.credits[account] = 0;
        emit IVerificationGame.Withdrawn(account, amount);
        // A call and not `transfer`, whose 2,300 gas shut out smart accounts; the result is checked, and a failure takes the credit back.
        // slither-disable-next-line low-level-calls
        (bool sent,) = account.call{value: amount}("");
        if (!sent) revert IVerificationGame.WithdrawalFailed(account, amount);
    }
}
