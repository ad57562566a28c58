// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Side} from "./Bisection.sol";
import {Transitions} from "./Transitions.sol";
import {GameId} from "./IVerificationGame.sol";
import {Level} from "./Level.sol";
import {Node} from "./Merkle.sol";
import {Game, Job} from "./Records.sol";

/// @notice The earliest and the latest game with one root that is not lost; zero: none.
struct Ends {
    GameId first;
    GameId last;
}

/// @title The games of a job, first in, first out
/// @notice `job.games` holds all games in the order of their challenges, and the first `job.started` of them have started. Besides, the
///         games with one root that are not lost are a list, so that the earliest of them is known.
/// @dev INVARIANT: while a game waits, `terms.concurrentGames` others are live. Every operation takes a bounded number of steps.
library Queue {
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

    /// @notice Starts the game whose turn it is, if there is one and a place for it.
    function startNext(Job storage job, mapping(GameId => Game) storage games) internal {
        uint64 started = job.started;
        if (started == job.games.length || job.liveGames >= job.terms.concurrentGames) return;
        GameId id = job.games[started];
        job.started = started + 1;
        ++job.liveGames;
        job.start(games[id], id);
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

    /// @notice The earliest game with a game's root that is live or waits.
    function earliest(Job storage job, Game storage game) internal view returns (GameId) {
        return ends(job, game).first;
    }

    function ends(Job storage job, Game storage game) private view returns (Ends storage) {
        Node root = game.roots[Level.CHECKPOINT][uint8(Side.CHALLENGER)];
        return job.withRoot[root];
    }

    function isNone(GameId id) private pure returns (bool) {
        return GameId.unwrap(id) == 0;
    }
}
