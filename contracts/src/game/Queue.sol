// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {Transitions} from "./Transitions.sol";
import {GameId} from "../Types.sol";
import {Level} from "./Level.sol";
import {Node} from "../Merkle.sol";
import {Game, Job, Records} from "../Records.sol";
import {Time} from "../Time.sol";

/// @notice The earliest and the latest game with one root that is not lost; zero: none.
struct Ends {
    GameId first;
    GameId last;
}

/// @title The games of a job, first in, first out
/// @notice `job.games` holds all games in the order of their challenges, and the first `job.started` of them have started. Besides, the
///         games with one root that are not lost are a list, so that the earliest of them is known.
/// @dev INVARIANT: while a game waits, `terms.concurrentGames` others are live, but for blind audits: there no game starts before the
///      audits are open, and anybody may start them one by one. Every operation takes a bounded number of steps.
library Queue {
    using Records for Job;
    using Transitions for Job;

    /// @notice Puts a game at the end of the queue. Its roots stand there already.
    function enter(Job storage job, mapping(GameId => Game) storage games, GameId id) internal {
        Game storage game = games[id];
        game.place = uint64(job.games.length);
        job.games.push(id);
        Ends storage same = ends(job, game);
        GameId last = same.last;
        if (isNone(last)) same.first = id;
        else (game.previous, games[last].next) = (last, id);
        same.last = id;
    }

    /// @notice Puts an appeal at the end of the queue.
    /// @dev INVARIANT: an appeal is none of the challenges with a root, so it never has a share in what they win.
    function enterAppeal(Job storage job, Game storage game, GameId id) internal {
        game.place = uint64(job.games.length);
        job.games.push(id);
    }

    /// @notice Starts the game whose turn it is, if there is one and a place for it.
    /// @return whether one was started
    function startNext(Job storage job, mapping(GameId => Game) storage games) internal returns (bool) {
        uint64 started = job.started;
        if (started == job.games.length || job.liveGames >= job.terms.concurrentGames) return false;
        // INVARIANT: no verdict comes before the audits that were sealed are open. So a party that sealed one finds the claim as it was, and no
        // challenge that somebody makes upon the opening is decided before it.
        if (job.isBlind() && Time.now_() <= job.auditOpeningDeadline()) return false;
        GameId id = job.games[started];
        job.started = started + 1;
        ++job.liveGames;
        job.start(games[id], id);
        return true;
    }

    /// @notice Games that wait for their turn.
    function waiting(Job storage job) internal view returns (uint64) {
        return uint64(job.games.length) - job.started;
    }

    /// @notice Takes a game that its challenger has lost out of the live ones and out of those with its root.
    function remove(Job storage job, mapping(GameId => Game) storage games, Game storage game) internal {
        --job.liveGames;
        Ends storage same = ends(job, game);
        (GameId previous, GameId next) = (game.previous, game.next);
        if (isNone(previous)) same.first = next;
        else games[previous].next = next;
        if (isNone(next)) same.last = previous;
        else games[next].previous = previous;
    }

    /// @notice The earliest game with a game's root that is live or waits. One that was sealed before the claim was opened is earlier than
    ///         any that was not.
    function earliest(Job storage job, Game storage game) internal view returns (GameId first) {
        Node root = rootOf(game);
        first = job.sealedWithRoot[root].first;
        if (isNone(first)) first = job.withRoot[root].first;
    }

    function ends(Job storage job, Game storage game) private view returns (Ends storage) {
        Node root = rootOf(game);
        return game.wasSealed ? job.sealedWithRoot[root] : job.withRoot[root];
    }

    function rootOf(Game storage game) private view returns (Node) {
        return game.roots[Level.CHECKPOINT][uint8(Side.CHALLENGER)];
    }

    function isNone(GameId id) private pure returns (bool) {
        return GameId.unwrap(id) == 0;
    }
}
