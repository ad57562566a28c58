// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Bisections, Search, Side} from "./Bisection.sol";
import {Clock, ClockPair, Clocks} from "./Clock.sol";
import {IVerificationGame} from "../IVerificationGame.sol";
import {GameId, Outcome, Phase} from "../Types.sol";
import {Level} from "./Level.sol";
import {Merkle, Node} from "../Merkle.sol";
import {Meter} from "./Meter.sol";
import {Game, Job, Records} from "../Records.sol";
import {Time, Timestamp} from "../Time.sol";
import {Trace} from "./Trace.sol";

/// @title Transitions of a game
/// @notice They lead from one phase and level to the next, and start and stop the clocks.
library Transitions {
    using Bisections for Search;
    using Bisections for Side;
    using Clocks for Clock;
    using Clocks for ClockPair;
    using Meter for ClockPair;
    using Records for Game;
    using Records for Job;

    /// @notice Starts a game that has waited for it.
    function start(Job storage job, Game storage game, GameId gameId) internal {
        game.startedAt = Time.now_();
        emit IVerificationGame.GameStarted(game.job, gameId);
        // INVARIANT: it is not over at once, because a tree of one leaf has no padding.
        begin(job, game, gameId, Level.CHECKPOINT, Side.CHALLENGER);
    }

    /// @notice Starts the search of a level, whose roots stand there already, and in the place of the other side's leaf what it has shown.
    /// @param first the side that moves first: below CHECKPOINT the one that has opened its root last, so that it can do both at once
    /// @return the outcome if the game is over already, else NONE
    function begin(Job storage job, Game storage game, GameId gameId, Level level, Side first) internal returns (Outcome) {
        if (level > Level.CHECKPOINT && level < Level.PARTIAL) game.path[uint8(level) - 1] = game.search.index;
        game.level = level;
        Node[2] memory roots = game.roots[level];
        uint64 count = game.leafCount(job.spec, level);
        uint8 height = Merkle.depth(count);
        // At CHECKPOINT the search stands there already, too.
        if (level != Level.CHECKPOINT) {
            game.search.begin(first, roots[uint8(first)], Node.unwrap(game.search.leafOf(first.other())), height);
        }
        emit IVerificationGame.LevelStarted(gameId, level, roots[uint8(Side.TRAINER)], roots[uint8(Side.CHALLENGER)], first, count);
        if (height == 0) return leafFound(job, game, gameId, level);
        game.phase = Phase.BISECTION;
        startClock(game, first);
        return Outcome.NONE;
    }

    /// @notice Goes on from the leaf that the search of a level has found.
    /// @return the outcome if the leaf lies in the padding, else NONE
    function leafFound(Job storage job, Game storage game, GameId gameId, Level level) internal returns (Outcome) {
        uint64 index = game.search.index;
        (Node trainerLeaf, Node challengerLeaf) = (game.search.leafOf(Side.TRAINER), game.search.leafOf(Side.CHALLENGER));
        emit IVerificationGame.LeafFound(gameId, level, index, trainerLeaf, challengerLeaf);
        if (isPadding(job, game, level, index)) {
            // INVARIANT: behind the last leaf only PAD is right. The two differ, so at most one of them is.
            if (trainerLeaf == Merkle.PAD) return Outcome.TRAINER_WON;
            return challengerLeaf == Merkle.PAD ? Outcome.CHALLENGER_WON : Outcome.BOTH_LOST;
        }
        if (level == Level.CHUNK) {
            game.phase = Phase.POSTING;
            startClock(game, Side.TRAINER);
        } else if (level == Level.PARTIAL || (level == Level.OPERATOR && index >= job.spec.operatorCount)) {
            startProving(game);
        } else {
            startOpening(game);
        }
        return Outcome.NONE;
    }

    function isPadding(Job storage job, Game storage game, Level level, uint64 index) private view returns (bool) {
        if (level == Level.OPERATOR) return Trace.isPadding(job.spec, index);
        return index >= game.leafCount(job.spec, level);
    }

    function startOpening(Game storage game) internal {
        game.phase = Phase.OPENING;
        startClock(game, Side.TRAINER);
        startClock(game, Side.CHALLENGER);
    }

    function startProving(Game storage game) internal {
        game.phase = Phase.PROVING;
        startClock(game, Side.CHALLENGER);
    }

    /// @notice Counts the gas of a move, on the meter of the side for which it was made.
    /// @param gasAtStart what was left when the move began
    function charge(Game storage game, Side side, uint256 gasAtStart) internal {
        game.clocks = game.clocks.add(side, Meter.cost(gasAtStart - gasleft(), tx.gasprice, block.basefee));
    }

    function startClock(Game storage game, Side side) internal {
        game.clocks = game.clocks.set(side, game.clocks.get(side).start(Time.now_()));
    }

    function stopClock(Game storage game, GameId gameId, Side side) internal {
        Clock memory clock = game.clocks.get(side);
        Timestamp current = Time.now_();
        // INVARIANT: a side that is out of time cannot move any more, so a late move can never race a timeout claim.
        if (clock.isOut(current)) revert IVerificationGame.ClockRanOut(gameId, side, clock.deadline());
        game.clocks = game.clocks.set(side, clock.stop(current));
    }

    /// @notice In phase OPENING the clock of a side runs until it has opened.
    function stopOpening(Game storage game, GameId gameId, Side side) internal {
        if (hasOpened(game, side)) revert IVerificationGame.AlreadyOpened(gameId, side);
        stopClock(game, gameId, side);
    }

    function hasOpened(Game storage game, Side side) internal view returns (bool) {
        return !game.clocks.get(side).isRunning();
    }

    function requireLevel(Game storage game, GameId gameId, Level expected) internal view {
        Level level = game.level;
        if (level != expected) revert IVerificationGame.WrongLevel(gameId, level);
    }

    function requireDescriptor(Game storage game, bytes calldata descriptor) internal view {
        (bytes32 given, bytes32 expected) = (keccak256(descriptor), game.operator.descriptorHash);
        if (given != expected) revert IVerificationGame.WrongDescriptor(given, expected);
    }

    function requireParty(Job storage job, Game storage game, Side side) internal view {
        address party = job.party(game, side);
        if (msg.sender != party) revert IVerificationGame.NotTheParty(msg.sender, side, party);
    }
}
