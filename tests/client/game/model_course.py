"""The course of a game, written a second time: its levels, searches, clocks and outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from eth_utils.crypto import keccak
from roundlog.spec import TrainingSpec
from tiebreak.contract.enums import Level, Outcome, Phase, Reason, Side
from tiebreak.contract.structs import Bisection, Clock, Descent, ElementView, GameView, LevelView, OperatorView

from tests.client.game.model_trees import NONE, PAD, Refused, climb, depth, leaf, parts, require_row

TRAINER, CHALLENGER = "0x" + "11" * 20, "0x" + "22" * 20


class Transitions:
    """The whole state of a game.

    `roots` of level CHECKPOINT, by side. `trainer_last`: the trainer's payload of the last leaf, its proof, and the row
    of its root, as in `commit`. `undecided`: functions are never decided."""

    def __init__(
        self,
        spec: TrainingSpec,
        roots: tuple[bytes, bytes],
        trainer_last: tuple[bytes, Sequence[bytes], Sequence[bytes]],
        *,
        allowance: int = 100,
        referee_allowance: int = 50,
        undecided: bool = False,
    ) -> None:
        assert roots[0] != roots[1]
        self.spec, self.now, self.referee_allowance, self.undecided = spec, 1000, referee_allowance, undecided
        self.remaining, self.running = [allowance, allowance], [0, 0]
        self.phase, self.outcome, self.reason = Phase.NONE, Outcome.NONE, Reason.NONE
        self.agreed, self.referee_deadline, self.moves = spec.initial_state_root, 0, 0
        self.half = 2 ** max(depth(spec.operator_count), depth(spec.state_count))
        self.level = Level.CHECKPOINT
        self.path: list[int] = []
        self.roots: dict[Level, list[bytes]] = {level: [NONE, NONE] for level in Level}
        self.payloads = [NONE, NONE]
        self.operator = OperatorView(descriptor_hash=NONE, width=0, elements=0, chunks=0, segments=0)
        self.descriptor = b""
        self.disputed = ElementView(known=False, element=0, claimed=0)
        self.posted: bytes | None = None
        payload, proof, row = trainer_last
        count = self.count(Level.CHECKPOINT)
        assert climb(leaf(payload), count - 1, count, proof) == roots[0]
        self.rows: list[tuple[bytes, ...]] = []
        self.show(roots[0], depth(count), row)
        self.roots[Level.CHECKPOINT] = list(roots)
        self._begin(Level.CHECKPOINT, Side.CHALLENGER)

    def show(self, node: bytes, height: int, row: Sequence[bytes]) -> None:
        """A side shows the row of its node. `rows`: all that were shown so far."""
        require_row(node, height, row)
        self.rows.append(tuple(row))

    def count(self, level: Level) -> int:
        spec = self.spec
        counts = (spec.steps // spec.interval, spec.interval, self.half + spec.state_count)
        return (*counts, self.operator.chunks, self.operator.segments)[level]

    def _begin(self, level: Level, first: Side) -> None:
        if level > self.level and level is not Level.PARTIAL:
            self.path.append(self.index)
        self.level = level
        self.nodes, self.height, self.index = list(self.roots[level]), depth(self.count(level)), 0
        self.turn = first
        if self.height == 0:
            self._leaf_found()
        else:
            self.phase = Phase.BISECTION
            self.running[first] = self.now

    def _leaf_found(self) -> None:
        gap = self.level is Level.OPERATOR and self.spec.operator_count <= self.index < self.half
        if gap or self.index >= self.count(self.level):
            right = [node == PAD for node in self.nodes]
            self._end(
                Outcome.TRAINER_WON if right[0] else Outcome.CHALLENGER_WON if right[1] else Outcome.BOTH_LOST,
                Reason.PADDING,
            )
        elif self.level is Level.CHUNK:
            self.phase = Phase.POSTING
            self.running[Side.TRAINER] = self.now
        elif self.level is Level.PARTIAL or (self.level is Level.OPERATOR and self.index >= self.half):
            self._prove()
        else:
            self._open()

    def _open(self) -> None:
        self.phase = Phase.OPENING
        self.running = [self.now, self.now]

    def _prove(self) -> None:
        self.phase = Phase.PROVING
        self.running[Side.CHALLENGER] = self.now

    def _stop(self, side: Side) -> None:
        if not self.running[side] or self.now > self.running[side] + self.remaining[side]:
            raise Refused("clock")
        self.remaining[side] -= self.now - self.running[side]
        self.running[side] = 0
        self.moves += 1

    def _due(self, phase: Phase, *levels: Level) -> None:
        if self.phase is not phase or (levels and self.level not in levels):
            raise Refused("phase")

    def bisect(self, move: Descent) -> None:
        self._due(Phase.BISECTION)
        mover = self.turn
        require_row(self.nodes[mover], self.height, move.mine)
        if move.theirs != self.rows[-1]:
            raise Refused("the other row")
        below = self.height - parts(self.height)[0]
        place = [a == b for a, b in zip(move.mine, move.theirs, strict=True)].index(False)
        require_row(move.mine[place], below, move.next)
        self._stop(mover)
        self.rows.append(move.next)
        self.height = below
        self.index += place * 2**below
        self.nodes[mover], self.nodes[1 - mover] = move.mine[place], move.theirs[place]
        self.turn = Side(1 - mover)
        if self.height == 0:
            self._leaf_found()
        else:
            self.running[self.turn] = self.now

    def adjudicate(self, bits: int) -> None:
        if self.phase is not Phase.REFEREE or self.now > self.referee_deadline:
            raise Refused("phase")
        right = bits == self.disputed.claimed
        self._end(Outcome.TRAINER_WON if right else Outcome.CHALLENGER_WON, Reason.VERDICT)

    def claim_timeout(self) -> None:
        if self.phase is Phase.REFEREE:
            if self.now <= self.referee_deadline:
                raise Refused("early")
            self._end(Outcome.UNDECIDED, Reason.TIMEOUT)
        elif self.phase is Phase.OVER:
            raise Refused("phase")
        else:
            if any(self.running[s] and self.now <= self.running[s] + self.remaining[s] for s in Side):
                raise Refused("early")
            waiting = [not self.running[s] for s in Side]
            self._end(
                Outcome.TRAINER_WON if waiting[0] else Outcome.CHALLENGER_WON if waiting[1] else Outcome.BOTH_LOST,
                Reason.TIMEOUT,
            )

    def _end(self, outcome: Outcome, reason: Reason) -> None:
        self.phase, self.outcome, self.reason, self.running = Phase.OVER, outcome, reason, [0, 0]

    def view(self) -> GameView:
        deadlines = [self.running[s] + self.remaining[s] if self.running[s] else 0 for s in Side]
        nodes = [NONE, NONE]
        due = NONE
        if self.phase is Phase.BISECTION:
            due = keccak(self.nodes[self.turn] + keccak(b"".join(self.rows[-1])))
        else:
            opened = [self.phase is Phase.OPENING and not self.running[side] for side in Side]
            hidden = self.phase is Phase.OPENING and self.level is Level.PARTIAL
            for side in Side:
                nodes[side] = NONE if hidden else self.nodes[side]
                if opened[side]:
                    below = self.level if hidden else Level(self.level + 1)
                    nodes[side] = keccak(b"".join(self.rows[-1])) if self.rows[-1] else self.roots[below][side]
        search = Bisection(
            nodes=(nodes[0], nodes[1]),
            due=due,
            index=0 if self.level is Level.PARTIAL and self.phase is Phase.OPENING else self.index,
            height=self.height,
            turn=self.turn,
            shown_in=1,
        )
        return GameView(
            job=1,
            trainer=TRAINER,  # type: ignore[arg-type]
            challenger=CHALLENGER,  # type: ignore[arg-type]
            is_appeal=False,
            phase=self.phase,
            outcome=self.outcome,
            reason=self.reason,
            ahead=0,
            trainer_bond=1,
            challenger_bond=1,
            bond_held=self.phase is not Phase.OVER,
            clocks=(
                Clock(remaining=self.remaining[0], started_at=self.running[0]),
                Clock(remaining=self.remaining[1], started_at=self.running[1]),
            ),
            deadlines=(deadlines[0], deadlines[1]),
            spent=(0, 0),
            referee_deadline=self.referee_deadline,
            started_at=1000,
            agreed=self.agreed,
            search=search,
            levels=tuple(
                LevelView(
                    level=level,
                    leaf_count=self.count(level),
                    roots=(self.roots[level][0], self.roots[level][1]),
                    index=search.index if level is self.level else self.path[level],
                )
                for level in Level
                if level <= self.level
            ),
            operator=self.operator,
            disputed=self.disputed,
        )
