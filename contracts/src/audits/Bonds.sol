// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IVerificationGame} from "../IVerificationGame.sol";
import {GameId} from "../Types.sol";

/// @notice Amounts that the contract owes to accounts, outside of the escrows.
struct Ledger {
    mapping(address account => uint256 amount) credits;
    /// Taken from losers and owed to nobody.
    uint256 burnt;
}

/// @notice The four shares of a lost bond. Together they are the bond, to the wei.
struct Shares {
    /// To the winner, for the gas of its moves.
    uint256 gas;
    /// To the winning side.
    uint256 half;
    /// To the customer.
    uint256 quarter;
    uint256 burnt;
}

/// @title Bonds and pull payments
/// @notice Nothing is ever sent on anybody's behalf: a verdict credits accounts, and each account withdraws for itself.
library Bonds {
    /// @notice The shares of a lost bond: the winner's measured gas, up to a quarter of the bond; of the rest half to the winning side, a
    ///         quarter to the customer, a quarter to nobody.
    /// @dev Half, because a winner who gets all of it could lose to itself for free. A quarter to nobody, because trainer, challenger and
    ///      customer may all be one: even they lose something by losing. `docs/economics.md` has the numbers.
    /// @param spent wei on the winner's meter
    function split(uint256 bond, uint256 spent) internal pure returns (Shares memory shares) {
        uint256 most = bond / 4;
        shares.gas = spent < most ? spent : most;
        uint256 rest = bond - shares.gas;
        (shares.half, shares.quarter) = (rest / 2, rest / 4);
        shares.burnt = rest - shares.half - shares.quarter;
    }

    /// @notice Takes a bond that nobody has won: half to the customer, half to nobody, so that not even the customer gains by it for sure.
    /// @param game zero: the bond was lost in no game
    function forfeit(Ledger storage self, GameId game, address customer, uint256 bond) internal {
        uint256 burnt = bond / 2;
        credit(self, customer, bond - burnt);
        burn(self, game, burnt);
    }

    function credit(Ledger storage self, address account, uint256 amount) internal {
        self.credits[account] += amount;
        emit IVerificationGame.Credited(account, amount);
    }

    /// @notice Keeps an amount for good.
    function burn(Ledger storage self, GameId game, uint256 amount) internal {
        self.burnt += amount;
        emit IVerificationGame.Burnt(game, amount);
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
