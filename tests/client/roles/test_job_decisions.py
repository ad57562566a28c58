"""Decisions of a role's parts: what the role does with them, and that none is dropped on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import tiebreak.roles
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import Level, Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.fetched_content import Refused
from tiebreak.roles.job_on_chain import Action, Decisions, JobOnChain, Leave, MakeCall, Tell, WholeLook
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import HEAD_START, end_overdue, start_waiting

ROLES = Path(tiebreak.roles.__file__).parent
CALL = cast(ContractCall, object())
NOW, BLOCK, ME = 1000, 12.0, "me"


class Recording(JobRole):
    """A role that keeps what it is to do. It takes calls only as it is told, and leaves at once."""

    name = "trainer"

    def __init__(self, takes: bool = True) -> None:
        self.job, self.did, self._takes = 7, list[str](), takes

    def consider(self, posted: JobView) -> Progress:
        raise NotImplementedError

    def refusal(self, why: str) -> str:
        return why

    def notify_job(self, what: What, text: str, *, game: int | None = None) -> None:
        self.did.append(f"tell {text}")

    def order(self, text: str, call: ContractCall, *, job: int | None = None, game: int | None = None) -> bool:
        self.did.append(f"order {text} for job {job}, game {game}")
        return self._takes

    def leave(self, why: str) -> Progress:
        self.did.append("leave")
        return Progress(state=why, finished=True)


def test_a_part_that_has_come_to_an_end_makes_the_role_leave() -> None:
    def part() -> WholeLook:
        yield Tell(What.WARNING, "too late")
        return Leave("the job is over")

    role = Recording()
    assert role.progress_of(part()) == Progress(state="the job is over", finished=True)
    assert role.did == ["tell too late", "leave"]


@pytest.mark.parametrize("error", [Refused("no memory"), OSError("no disk")])
def test_an_error_takes_no_earlier_decision_back(error: Exception) -> None:
    def part() -> Decisions[Progress]:
        yield MakeCall("claim the timeout", CALL)
        raise error

    role = Recording()
    with pytest.raises(type(error)):
        role.carry_out(part())
    assert role.did == ["order claim the timeout for job 7, game None"]


def chain(now: int = NOW) -> JobOnChain:
    calls = SimpleNamespace(
        claim_timeout=lambda game: f"claimTimeout {game}", start_game=lambda job: f"startGame {job}"
    )
    shown = SimpleNamespace(job=7, address=ME, calls=calls, now=lambda: now, block_seconds=lambda: BLOCK)
    return cast(JobOnChain, shown)


def game(trainer: str, challenger: str, *deadlines: int, phase: Phase = Phase.BISECTION) -> GameView:
    parties = {Side.TRAINER: trainer, Side.CHALLENGER: challenger}
    place = {"current": SimpleNamespace(level=Level.CHECKPOINT), "search": SimpleNamespace(index=0, height=0)}
    shown = SimpleNamespace(phase=phase, deadlines=deadlines, party=parties.get, referee_deadline=0, **place)
    return cast(GameView, shown)


def ended(found: Decisions[None]) -> list[int | None]:
    return [cast(MakeCall, action).game for action in found]


def test_own_timeouts_are_claimed_at_once_and_those_of_others_after_a_head_start() -> None:
    late = NOW - int(HEAD_START * BLOCK)
    games = {
        1: game(ME, "other", 0, NOW - 1),  # the other's clock ran out
        2: game(ME, "other", 0, NOW),  # it has this second
        3: game(ME, "other", NOW - 1, 0),  # the own clock ran out
        4: game("a", "b", 0, NOW - 1),  # others', just now
        5: game("a", "b", 0, late - 1),  # others', a head start ago
        6: game("a", "b", 0, late),
        7: game("a", "b", 0, 0, phase=Phase.QUEUED),
    }
    assert ended(end_overdue(chain(), games)) == [1, 5]
    calls: list[Action] = list(end_overdue(chain(), {5: games[5]}))
    assert calls == [MakeCall("end a game of others whose clock ran out", cast(ContractCall, "claimTimeout 5"), game=5)]


def test_a_waiting_game_is_started_once_the_audits_are_open_and_there_is_room() -> None:
    audits, terms = SimpleNamespace(audit_opening_deadline=NOW - 1), SimpleNamespace(concurrent_games=2)
    waits = SimpleNamespace(audits=audits, terms=terms, queued_games=1, live_games=1)

    def calls(**changed: object) -> int:
        return len(list(start_waiting(chain(), cast(JobView, SimpleNamespace(**{**vars(waits), **changed})))))

    assert calls() == 1
    assert calls(queued_games=0) == calls(live_games=2) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=NOW)) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=0)) == 0, "games start by themselves"


def is_deciding(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return False
    return ast.unparse(node.returns).startswith(("Decisions[", "WholeLook"))


def dropped(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Calls of functions that decide, in whose place nobody takes the decisions. Such a call does nothing at all."""
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    methods = {name: {one.name for one in owner.body if is_deciding(one)} for name, owner in classes.items()}
    functions = {one.name for tree in trees.values() for one in tree.body if is_deciding(one)}
    kinds = {"chain": "JobOnChain", "_chain": "JobOnChain"}
    """Names of attributes -> their classes."""
    for node in nodes:
        match node:
            case ast.Assign([ast.Attribute(attr=name)], ast.Call(ast.Name(id=kind))) if kind in classes:
                kinds[name] = kind
    own = {id(call): name for name, owner in classes.items() for call in ast.walk(owner) if isinstance(call, ast.Call)}
    taken: set[int] = set()
    for node in nodes:
        match node:
            case ast.YieldFrom(value=value):
                taken.add(id(value))
            case ast.Call(ast.Attribute(attr="carry_out" | "progress_of"), arguments):
                taken.update(map(id, arguments))
    for name, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Name(id=called)):
                    decides = called in functions
                case ast.Call(ast.Attribute(ast.Name(id="self"), called)):
                    decides = called in methods.get(own.get(id(node), ""), ())
                case ast.Call(ast.Attribute(ast.Name(id=of) | ast.Attribute(attr=of), called)):
                    decides = called in methods.get(kinds.get(of, ""), ())
                case _:
                    continue
            if decides and id(node) not in taken:
                yield f"{name}:{node.lineno}: {ast.unparse(node.func)}"


def test_no_decision_is_dropped() -> None:
    trees = {path.name: ast.parse(path.read_text()) for path in ROLES.glob("*.py")}
    assert sum(is_deciding(node) for tree in trees.values() for node in ast.walk(tree)) > 30
    assert list(dropped(trees)) == []


@pytest.mark.parametrize("call", ["start(1)", "self._part.seal()", "self._chain.funds()", "0 if self.tell() else 1"])
def test_a_dropped_decision_is_found(call: str) -> None:
    source = f"""
def start(job) -> Decisions[None]: ...
class JobOnChain:
    def funds(self) -> Decisions[int]: ...
class Part:
    def seal(self) -> WholeLook: ...
    def tell(self) -> Decisions[bool]: ...
    def look(self):
        self._part = Part()
        yield from start(0)
        missing = yield from self._chain.funds()
        self._chain.now()
        self.carry_out(self._part.seal())
        {call}
"""
    assert len(list(dropped({"part.py": ast.parse(source)}))) == 1
