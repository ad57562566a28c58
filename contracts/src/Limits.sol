// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisections} from "./game/Bisection.sol";
import {IVerificationGame} from "./IVerificationGame.sol";
import {Terms} from "./Types.sol";
import {Merkle} from "./Merkle.sol";
import {Duration} from "./Time.sol";
import {TrainingSpec} from "./TrainingSpec.sol";

/// @title Limits of a job's spec and terms
/// @notice They are checked once, when the job is posted; everything after relies on them.
library Limits {
    /// @notice Longest content address, in bytes: a CIDv1 with a 64-byte digest in base32 has 111.
    uint256 internal constant MAX_CID_LENGTH = 128;
    /// @notice Training may take long; nobody's bond is locked meanwhile.
    uint256 internal constant MAX_COMMIT_WINDOW = 365 days;
    /// @notice An audit takes time, and a trainer waits for its money.
    uint256 internal constant MIN_CHALLENGE_WINDOW = 1 hours;
    uint256 internal constant MAX_CHALLENGE_WINDOW = 90 days;
    /// @notice A game lasts two clocks and a referee's verdict, so no reward is held up by one game for longer than six weeks.
    uint256 internal constant MAX_CLOCK = 14 days;
    uint256 internal constant MIN_REFEREE = 10 minutes;
    uint256 internal constant MAX_REFEREE = 14 days;
    /// @notice Holding up a claim, and the gas of answering, cost something.
    uint256 internal constant MIN_AMOUNT = 0.001 ether;
    /// @notice A trainer risks at least a tenth of the reward.
    uint256 internal constant REWARD_PER_BOND = 10;
    /// @notice Half of a trainer's bond pays for the audits that its trainer has made useless, or makes good what the customer pays for them.
    uint256 internal constant BOND_PER_FEE = 2;
    /// @notice A challenger risks at least a quarter of what the trainer does, and never more.
    uint256 internal constant BOND_RATIO = 4;
    uint256 internal constant MAX_CONCURRENT_GAMES = 1024;
    /// @notice More attestations than this no job needs. There is no limit on how many it may get.
    uint256 internal constant MAX_ATTESTATIONS_NEEDED = 32;
    /// @notice A blind audit repeats the whole run.
    uint256 internal constant MIN_AUDIT_WINDOW = 1 hours;
    uint256 internal constant MAX_AUDIT_WINDOW = 90 days;
    /// @notice A party that opens too late loses its bond.
    uint256 internal constant MIN_OPENING_WINDOW = 1 hours;
    /// @notice Seconds between two blocks of Ethereum, and blocks until a transaction that was just too late for one stands in the next.
    uint256 internal constant BLOCK_TIME = 12;
    uint256 internal constant BLOCKS_PER_MOVE = 2;
    /// @notice Moves for different games that one block takes for sure, in a batch: dear ones, of a million gas.
    uint256 internal constant MOVES_PER_BLOCK = 16;
    /// @notice Elements of an operator's output, and terms of an element, that a descriptor allows: 2^40 (`Decoding`).
    uint8 internal constant DEEPEST = 40;
    /// @notice Other moves of a side: openings at four levels; and for the trainer a chunk, for the challenger an element and its proof.
    uint256 internal constant SINGLE_MOVES = 4 + 2;
    /// @notice Bounds the depth of every tree, and thereby moves and proofs, to 40.
    uint256 internal constant MAX_LEAVES = 1 << 40;
    /// @notice A trainer has to be able to post a chunk in one transaction, at up to 40 gas a byte.
    uint256 internal constant MAX_CHUNK_SIZE = 1 << 16;
    /// @notice Elements have 1, 4 or 8 bytes, and none lies in two chunks.
    uint256 internal constant LARGEST_ELEMENT = 8;
    /// @notice The contract computes the correct rounding; the threshold policy has no one right answer.
    uint256 internal constant CERTIFIED_ROUNDING = 0;
    uint256 internal constant MIN_ROUNDING_BITS = 23;
    uint256 internal constant MAX_ROUNDING_BITS = 32;
    /// @notice Two values within d of the exact one can differ by 2d, so a log that holds less than 3d misses ambiguous elements.
    uint256 internal constant MIN_LOG_GUARD = 3;

    function check(TrainingSpec calldata spec, Terms calldata terms, string calldata jobCid) internal view {
        checkSpec(spec);
        checkTerms(spec, terms);
        checkCid(jobCid);
    }

    function checkSpec(TrainingSpec calldata spec) private view {
        within("steps", spec.steps, 1, MAX_LEAVES);
        within("interval", spec.interval, 1, spec.steps);
        if (spec.steps % spec.interval != 0) revert IVerificationGame.IntervalDoesNotDivideSteps(spec.interval, spec.steps);
        nonZero("programRoot", spec.programRoot);
        within("stateCount", spec.stateCount, 1, MAX_LEAVES);
        // A program ends with a store operator for every state slot.
        within("operatorCount", spec.operatorCount, spec.stateCount, MAX_LEAVES);
        nonZero("initialStateRoot", spec.initialStateRoot);
        nonZero("dataRoot", spec.dataRoot);
        within("dataRows", spec.dataRows, 1, MAX_LEAVES);
        // Every sample has a position step * batchSize + j, which has to fit 64 bits.
        within("batchSize", spec.batchSize, 1, type(uint64).max / spec.steps);
        nonZero("scheduleRoot", spec.scheduleRoot);
        within("chunkSize", spec.chunkSize, 1, MAX_CHUNK_SIZE);
        if (spec.chunkSize % LARGEST_ELEMENT != 0) revert IVerificationGame.ChunkSizeSplitsElements(spec.chunkSize);
        within("roundingPolicy", spec.roundingPolicy, CERTIFIED_ROUNDING, CERTIFIED_ROUNDING);
        within("roundingBits", spec.roundingBits, MIN_ROUNDING_BITS, MAX_ROUNDING_BITS);
        within("logGuard", spec.logGuard, MIN_LOG_GUARD, type(uint8).max);
        within("logVersion", spec.logVersion, 1, type(uint8).max);
        within("referee", uint160(spec.referee), 1, type(uint160).max);
        if (address(spec.adjudicator).code.length == 0) revert IVerificationGame.NoAdjudicator(address(spec.adjudicator));
    }

    function checkTerms(TrainingSpec calldata spec, Terms calldata terms) private pure {
        within("reward", terms.reward, MIN_AMOUNT, type(uint128).max);
        // INVARIANT: nobody plays for nothing; a free challenge would let anyone hold up a claim and make the trainer pay gas.
        // A trainer in league with auditors could have the fee besides the reward.
        uint256 paid = uint256(terms.reward) + terms.auditFee;
        uint256 least = atLeast(divideUp(paid, REWARD_PER_BOND));
        uint256 feeMadeGood = uint256(terms.auditFee) * BOND_PER_FEE;
        within("trainerBond", terms.trainerBond, least < feeMadeGood ? feeMadeGood : least, type(uint128).max);
        within("challengerBond", terms.challengerBond, atLeast(divideUp(terms.trainerBond, BOND_RATIO)), terms.trainerBond);
        within("concurrentGames", terms.concurrentGames, 1, MAX_CONCURRENT_GAMES);
        window("commitWindow", terms.commitWindow, 1, MAX_COMMIT_WINDOW);
        window("challengeWindow", terms.challengeWindow, MIN_CHALLENGE_WINDOW, MAX_CHALLENGE_WINDOW);
        window("clockAllowance", terms.clockAllowance, leastClock(spec, terms.concurrentGames), MAX_CLOCK);
        window("refereeAllowance", terms.refereeAllowance, MIN_REFEREE, MAX_REFEREE);
        checkAudits(terms);
    }

    function checkAudits(Terms calldata terms) private pure {
        within("attestationsNeeded", terms.attestationsNeeded, 0, MAX_ATTESTATIONS_NEEDED);
        if (terms.attestationsNeeded == 0) {
            within("auditFee", terms.auditFee, 0, 0);
            within("attestationBond", terms.attestationBond, 0, 0);
            window("auditWindow", terms.auditWindow, 0, 0);
            window("openingWindow", terms.openingWindow, 0, 0);
        } else if (terms.auditWindow.isZero() && terms.openingWindow.isZero()) {
            within("attestationBond", terms.attestationBond, MIN_AMOUNT, type(uint128).max);
        } else {
            // INVARIANT: a sealed audit may turn out to be a challenge, so it comes with a challenger's bond.
            within("attestationBond", terms.attestationBond, terms.challengerBond, terms.challengerBond);
            window("auditWindow", terms.auditWindow, MIN_AUDIT_WINDOW, MAX_AUDIT_WINDOW);
            // INVARIANT: challenges are possible when all audits are open.
            window("openingWindow", terms.openingWindow, MIN_OPENING_WINDOW, Duration.unwrap(terms.challengeWindow) - 1);
        }
    }

    /// @notice The least clock of a side, in seconds: with less, one that answers every move in the very next block could lose by time. It is
    ///         the moves of one side on the longest path of the job, at two blocks each (a transaction that just misses a block stands in the
    ///         next), and for the games that are played at the same time their share of a block, because their moves may all be due at once.
    /// @dev Time to execute an interval again is not known here. Clients measure it, and ask for more.
    function leastClock(TrainingSpec calldata spec, uint256 concurrentGames) internal pure returns (uint256) {
        uint256 moves = SINGLE_MOVES + movesIn(Merkle.depth(spec.steps / spec.interval)) + movesIn(Merkle.depth(spec.interval))
            + movesIn(Merkle.depth(spec.operatorCount) + 1) + movesIn(deepestChunk(spec.chunkSize)) + movesIn(DEEPEST);
        return moves * BLOCK_TIME * (BLOCKS_PER_MOVE * MOVES_PER_BLOCK + concurrentGames) / MOVES_PER_BLOCK;
    }

    /// @dev Moves of one side in a search of this depth: every other one, from the first on.
    function movesIn(uint8 depth) private pure returns (uint256) {
        return divideUp(Bisections.movesIn(depth), 2);
    }

    /// @dev Depth of a tree over the chunks of the largest output there is.
    function deepestChunk(uint256 chunkSize) private pure returns (uint8) {
        return Merkle.depth(uint64(divideUp((uint256(1) << DEEPEST) * LARGEST_ELEMENT, chunkSize)));
    }

    function atLeast(uint256 minimum) private pure returns (uint256) {
        return minimum < MIN_AMOUNT ? MIN_AMOUNT : minimum;
    }

    function divideUp(uint256 value, uint256 divisor) private pure returns (uint256) {
        return (value + divisor - 1) / divisor;
    }

    function checkCid(string calldata cid) internal pure {
        if (bytes(cid).length == 0) revert IVerificationGame.CidLengthOutOfRange(0, MAX_CID_LENGTH);
        checkOptionalCid(cid);
    }

    /// @notice A content address that may be empty.
    function checkOptionalCid(string calldata cid) internal pure {
        uint256 length = bytes(cid).length;
        if (length > MAX_CID_LENGTH) revert IVerificationGame.CidLengthOutOfRange(length, MAX_CID_LENGTH);
    }

    function window(string memory field, Duration value, uint256 minimum, uint256 maximum) private pure {
        within(field, Duration.unwrap(value), minimum, maximum);
    }

    function nonZero(string memory field, bytes32 value) private pure {
        within(field, uint256(value), 1, type(uint256).max);
    }

    function within(string memory field, uint256 value, uint256 minimum, uint256 maximum) private pure {
        if (value < minimum || value > maximum) revert IVerificationGame.FieldOutOfRange(field, value, minimum, maximum);
    }
}
