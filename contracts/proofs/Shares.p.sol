// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bonds, Shares} from "../src/audits/Bonds.sol";

/// @notice Nothing of a fine or of a fee is lost or made.
contract SharesProof {
    /// @param bond what the trainer, and those who attested to its claim, have lost together
    function check_theFourShares_areTheFine(uint192 bond, uint256 spent) external pure {
        Shares memory shares = Bonds.split(bond, spent);
        assert(shares.gas + shares.half + shares.quarter + shares.burnt == bond);
        assert(shares.gas <= spent && shares.gas <= bond / 4);
        // With trainer, winner and customer in one, something is lost: a quarter of what is not gas, or more.
        assert(shares.burnt >= (bond - shares.gas) / 4);
        assert(shares.half <= (bond - shares.gas) / 2);
    }
}
