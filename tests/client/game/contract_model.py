"""A second implementation of the game's rules, from `IVerificationGame.sol`, sharing no code with the client.

It knows one game only, keeps time by hand, and refuses with `Refused` what the contract refuses.
"""

from __future__ import annotations

from hashlib import sha256

from tiebreak.chain.records import (
    Children,
    Clock,
    Game,
    LeafOpening,
    Level,
    LevelState,
    NextRoot,
    Outcome,
    Phase,
    Reason,
    Side,
)

NONE = bytes(32)
PAD = sha256(b"\x02").digest()
TRAINER, CHALLENGER = "0x" + "11" * 20, "0x" + "22" * 20


class Refused(Exception):
    pass


def leaf(payload: bytes) -> bytes:
    return sha256(b"\x00" + payload).digest()


def join(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def depth(count: int) -> int:
    height = 0
    while 2**height < count:
        height += 1
    return height


def root_of(payloads: list[bytes]) -> bytes:
    row = [leaf(payload) for payload in payloads]
    row += [PAD] * (2 ** depth(len(row)) - len(row))
    while len(row) > 1:
        row = [join(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def climb(node: bytes, index: int, count: int, proof: tuple[bytes, ...]) -> tuple[bytes, Children]:
    if index >= count or len(proof) != depth(count):
        raise Refused("proof")
    children = Children(left=NONE, right=NONE)
    for bit, sibling in enumerate(proof):
        children = Children(left=sibling, right=node) if index >> bit & 1 else Children(left=node, right=sibling)
        node = join(children.left, children.right)
    return node, children


class _Level:
    def __init__(self, level: Level, count: int, agreed_before: bytes) -> None:
        self.level, self.count, self.agreed_before = level, count, agreed_before
        self.roots = [NONE, NONE]
        self.nodes = [NONE, NONE]
        self.revealed = Children(left=NONE, right=NONE)
        self.index, self.height, self.turn = 0, 0, Side.CHALLENGER
        self.opened = [False, False]
        self.payloads = [NONE, NONE]


class ContractModel:
    """`counts`: leaves of the trees, checkpoint level first. `trainer_last`: the trainer's payload of the last leaf and
    its proof, as in `commit`."""

    def __init__(
        self,
        counts: tuple[int, int],
        initial: bytes,
        roots: tuple[bytes, bytes],
        trainer_last: tuple[bytes, tuple[bytes, ...]],
        *,
        allowance: int = 100,
        referee_allowance: int = 50,
    ) -> None:
        assert roots[0] != roots[1]
        self.counts, self.now, self.referee_allowance = counts, 1000, referee_allowance
        self.remaining, self.running = [allowance, allowance], [0, 0]
        self.phase, self.outcome, self.reason = Phase.BISECTION, Outcome.NONE, Reason.NONE
        self.agreed, self.referee_deadline, self.moves = initial, 0, 0
        first = _Level(Level.CHECKPOINT, counts[0], initial)
        payload, proof = trainer_last
        computed, first.revealed = climb(leaf(payload), counts[0] - 1, counts[0], proof)
        assert computed == roots[0]
        first.roots = list(roots)
        self.levels = [first]
        self._begin(first)

    def _begin(self, level: _Level) -> None:
        level.nodes, level.height = list(level.roots), depth(level.count)
        if level.height == 0:
            self._leaf_found(level)
        else:
            self.phase = Phase.BISECTION
            self.running[Side.CHALLENGER] = self.now

    def _leaf_found(self, level: _Level) -> None:
        if level.index >= level.count:
            right = [node == PAD for node in level.nodes]
            self._end(Outcome.TRAINER_WON if right[0] else Outcome.CHALLENGER_WON if right[1] else Outcome.BOTH_LOST)
            self.reason = Reason.PADDING
            return
        self.phase = Phase.OPENING
        self.running = [self.now, self.now]

    def _stop(self, side: Side) -> None:
        if not self.running[side] or self.now > self.running[side] + self.remaining[side]:
            raise Refused("clock")
        self.remaining[side] -= self.now - self.running[side]
        self.running[side] = 0

    def bisect(self, opened: Children, next: Children) -> None:
        level = self.levels[-1]
        if self.phase is not Phase.BISECTION:
            raise Refused("phase")
        mover = level.turn
        if join(opened.left, opened.right) != level.nodes[mover]:
            raise Refused("children")
        left = opened.left != level.revealed.left
        mine, theirs = (opened.left, level.revealed.left) if left else (opened.right, level.revealed.right)
        if level.height > 1 and join(next.left, next.right) != mine:
            raise Refused("children")
        if level.height == 1 and (next.left, next.right) != (NONE, NONE):
            raise Refused("leaf")
        self._stop(mover)
        level.height -= 1
        level.index += 0 if left else 2**level.height
        level.nodes[mover], level.nodes[1 - mover] = mine, theirs
        level.revealed, level.turn = next, Side(1 - mover)
        self.moves += 1
        if level.height == 0:
            self._leaf_found(level)
        else:
            self.running[level.turn] = self.now

    def _open(self, side: Side, opening: LeafOpening) -> None:
        level = self.levels[-1]
        if self.phase is not Phase.OPENING or level.opened[side]:
            raise Refused("phase")
        if leaf(opening.payload) != level.nodes[side]:
            raise Refused("payload")
        if level.index == 0:
            if opening.agreed != level.agreed_before or opening.agreed_proof:
                raise Refused("agreed")
        elif climb(leaf(opening.agreed), level.index - 1, level.count, opening.agreed_proof)[0] != level.roots[side]:
            raise Refused("agreed")
        self._stop(side)
        level.opened[side], level.payloads[side] = True, opening.payload
        self.agreed = opening.agreed

    def open_level(self, side: Side, opening: LeafOpening, next: NextRoot) -> None:
        level = self.levels[-1]
        if level.level is not Level.CHECKPOINT:
            raise Refused("level")
        computed, children = climb(leaf(opening.payload), self.counts[1] - 1, self.counts[1], next.last_leaf_proof)
        if computed != next.root:
            raise Refused("next root")
        self._open(side, opening)
        self.moves += 1
        below = getattr(self, "_below", None) or _Level(Level.STEP, self.counts[1], NONE)
        self._below = below
        below.roots[side] = next.root
        if side is Side.TRAINER:
            below.revealed = children
        if all(level.opened):
            below.agreed_before = self.agreed
            self.levels.append(below)
            self._begin(below)

    def reveal_leaf(self, side: Side, opening: LeafOpening) -> None:
        if self.levels[-1].level is not Level.STEP:
            raise Refused("level")
        self._open(side, opening)
        self.moves += 1
        if all(self.levels[-1].opened):
            self.phase, self.referee_deadline = Phase.REFEREE, self.now + self.referee_allowance

    def adjudicate(self, state_root: bytes) -> None:
        if self.phase is not Phase.REFEREE or self.now > self.referee_deadline:
            raise Refused("phase")
        payloads = self.levels[-1].payloads
        self._end(
            Outcome.TRAINER_WON
            if state_root == payloads[0]
            else Outcome.CHALLENGER_WON
            if state_root == payloads[1]
            else Outcome.BOTH_LOST
        )
        self.reason = Reason.VERDICT

    def claim_timeout(self) -> None:
        if self.phase is Phase.REFEREE:
            if self.now <= self.referee_deadline:
                raise Refused("early")
            self._end(Outcome.UNDECIDED)
        elif self.phase in (Phase.BISECTION, Phase.OPENING):
            if any(self.running[s] and self.now <= self.running[s] + self.remaining[s] for s in Side):
                raise Refused("early")
            waiting = [not self.running[s] for s in Side]
            self._end(
                Outcome.TRAINER_WON if waiting[0] else Outcome.CHALLENGER_WON if waiting[1] else Outcome.BOTH_LOST
            )
        else:
            raise Refused("phase")
        self.reason = Reason.TIMEOUT

    def _end(self, outcome: Outcome) -> None:
        self.phase, self.outcome, self.running = Phase.OVER, outcome, [0, 0]

    def view(self) -> Game:
        deadlines = [self.running[s] + self.remaining[s] if self.running[s] else 0 for s in Side]
        return Game(
            job=1,
            trainer=TRAINER,  # type: ignore[arg-type]
            challenger=CHALLENGER,  # type: ignore[arg-type]
            phase=self.phase,
            outcome=self.outcome,
            reason=self.reason,
            trainer_bond=1,
            challenger_bond=1,
            bond_held=self.phase is not Phase.OVER,
            clocks=(
                Clock(remaining=self.remaining[0], started_at=self.running[0]),
                Clock(remaining=self.remaining[1], started_at=self.running[1]),
            ),
            deadlines=(deadlines[0], deadlines[1]),
            referee_deadline=self.referee_deadline,
            started_at=1000,
            agreed=self.agreed,
            levels=tuple(
                LevelState(
                    level=level.level,
                    leaf_count=level.count,
                    roots=(level.roots[0], level.roots[1]),
                    nodes=(level.nodes[0], level.nodes[1]),
                    revealed=level.revealed,
                    index=level.index,
                    height=level.height,
                    turn=level.turn,
                    opened=(level.opened[0], level.opened[1]),
                    payloads=(level.payloads[0], level.payloads[1]),
                    agreed_before=level.agreed_before,
                )
                for level in self.levels
            ),
        )
