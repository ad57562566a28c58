"""Decisions that a step makes by values which it computes: `if torch.rand(1) < 0.5`, `while x.norm() > 1`.

A traced tensor has no value. So a step that asks one for its truth is traced once for every answer: a path through the
step is known by its answers, which are tried in order, true first, until none is left."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from roundlog.capture.constants import known, node_of, written, written_by
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.numbers import OF_NUMBERS

MOST_PATHS = 16
"""Largest number of paths through a step."""

TOO_MANY = f" (by ifs, a step may have {MOST_PATHS} paths at most)"
"""End of the refusal of a step that has more."""

_KNOWN = frozenset((*OF_NUMBERS, operator.getitem))

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)

Condition = torch.Tensor | torch.SymBool


@dataclass(frozen=True, slots=True)
class Decision:
    """A question that a step asks of its values, and the answer that one path gets."""

    condition: Condition
    """bool[], as it was when it was asked."""
    question: str
    """Description of what is asked. The same question has the same answer."""
    answer: bool


class Decisions:
    """The decisions of one path."""

    def __init__(self, before: Sequence[Decision] = (), *, allowed: bool = True, is_last: bool = False) -> None:
        """before: the decisions that the path begins with. allowed: whether there may be any. is_last: whether too many
        paths have been followed, so that the last of these is refused."""
        self._before = list(before)
        self._allowed = allowed
        self._is_last = is_last
        self.taken: list[Decision] = []
        self.refused: list[CaptureError] = []
        """Error that was raised, whether or not the user's code has caught it."""
        self.are_too_many = False
        """Whether a question was refused because of the number of paths."""

    def answer(self, value: Condition) -> bool | None:
        """The answer of this path to whether a traced value is true; None if the value is known, or the question is
        refused."""
        node = _node(value)
        if not self._allowed or node is None or (isinstance(value, torch.Tensor) and value.numel() != 1):
            return None
        question = _question(node)
        if question is None:
            return None
        for decision in self.taken:
            if decision.question == question:
                return decision.answer
        number = len(self.taken)
        if number == MOST_PATHS - 1 or (self._is_last and number == len(self._before) - 1):
            self.are_too_many = True
            return None
        before = self._before[number] if number < len(self._before) else None
        if before is not None and before.question != question:
            self.refused.append(
                CaptureError(
                    "the step asks other questions of its values from one time to the next: make what it computes "
                    "depend on its tensors alone"
                )
            )
            raise self.refused[-1]
        answer = True if before is None else before.answer
        self.taken.append(Decision(_kept(value), question, answer))
        return answer

    def following(self) -> list[Decision] | None:
        """The beginning of the path after this one; None if it is the last."""
        taken = list(self.taken)
        while taken and not taken[-1].answer:
            taken.pop()
        if not taken:
            return None
        last = taken.pop()
        return [*taken, Decision(last.condition, last.question, False)]


_current: list[Decisions] = []


@contextmanager
def deciding(decisions: Decisions) -> Iterator[None]:
    """While a path is traced: `decided` asks these."""
    _current.append(decisions)
    try:
        yield
    finally:
        _current.pop()


def decided(value: Condition) -> bool | None:
    """The truth of a traced value on the path that is being traced; None if it has none."""
    return _current[-1].answer(value) if _current else None


def _node(value: Condition) -> fx.Node | None:
    """The graph node of a value that is not known."""
    if isinstance(value, torch.Tensor):
        return node_of(value) if isinstance(value, FakeTensor) and known(value) is None else None
    mode: Any = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(value, mode.tracer, None)
    return None if slot is None else slot.force().node


def _kept(value: Condition) -> Condition:
    """A truth that later writes do not change."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return (value.detach() != 0).reshape(())


def _question(node: fx.Node) -> str | None:
    """Key of what a node computes, told from anything else that the graph computes; None for what no program computes
    with numbers of Python."""
    changing = written(node.graph)
    writes = sum(1 for other in node.graph.nodes if written_by(other))
    names: dict[fx.Node, str] = {}
    todo = [node]
    while todo:
        current = todo[-1]
        missing = [source for source in current.all_input_nodes if source not in names]
        if missing:
            todo.extend(missing)
            continue
        todo.pop()
        if current.op == "call_function" and not hasattr(current.target, "_schema") and current.target not in _KNOWN:
            return None
        if current in changing or any(names[source].startswith("!") for source in current.all_input_nodes):
            names[current] = f"!{current.name} after {writes} writes"
        elif current.op != "call_function":
            names[current] = current.name
        elif current.target in _SAME:
            names[current] = names[current.all_input_nodes[0]]
        else:
            # Numbers drawn again from the same state are the same, as where a checkpoint computes again.
            drawn = draw_of(current)
            arguments = fx.node.map_arg((current.args, dict(current.kwargs)), lambda source: names[source])
            text = f"{current.target}{arguments}{drawn.state if drawn else ''}"
            names[current] = hashlib.sha256(text.encode()).hexdigest()
    return names[node]
