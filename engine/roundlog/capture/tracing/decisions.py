"""Decisions that a step makes by values which it computes: `if torch.rand(1) < 0.5`, `while x.norm() > 1`.

A traced tensor has no value. So a step that asks one for its truth is traced once for every answer: a path through the
step is known by its answers, which are tried in order, true first, until none is left.

Checks are decisions without a choice. `assert torch.isfinite(y).all()` and `if torch.isnan(loss): raise ...` stop a
training or change nothing, so a program, which has no errors to raise, goes on as a step does that passes them. The
code that follows shows what the answer decides: if one of the two answers always ends in an error that nobody catches,
the other one is given."""

from __future__ import annotations

import dis
import functools
import hashlib
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode

from roundlog.capture.constants import known, node_of, written, written_by
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, UnknownValueError, is_captures, is_internal, place_of_call
from roundlog.capture.rules.numbers import OF_NUMBERS

MOST_PATHS = 16
"""Largest number of paths through a step."""

TOO_MANY = f" (by ifs, a step may have {MOST_PATHS} paths at most)"
"""End of the refusal of a step that has more."""

_KNOWN = frozenset((*OF_NUMBERS, operator.getitem))

_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)

Condition = torch.Tensor | torch.SymBool


@dataclass(frozen=True, slots=True)
class PathDecision:
    """A question that a step asks of its values, and the answer that one path gets."""

    condition: Condition
    """bool[], as it was when it was asked."""
    question: str
    """Description of what is asked. The same question has the same answer."""
    answer: bool


class Decisions:
    """The decisions of one path."""

    def __init__(self, before: Sequence[PathDecision] = (), *, allowed: bool = True, is_last: bool = False) -> None:
        """before: the decisions that the path begins with. allowed: whether there may be any. is_last: whether too many
        paths have been followed, so that the last of these is refused."""
        self._before = list(before)
        self._allowed = allowed
        self._is_last = is_last
        self.taken: list[PathDecision] = []
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
        self.taken.append(PathDecision(_kept(value), question, answer))
        return answer

    def following(self) -> list[PathDecision] | None:
        """The beginning of the path after this one; None if it is the last."""
        taken = list(self.taken)
        while taken and not taken[-1].answer:
            taken.pop()
        if not taken:
            return None
        last = taken.pop()
        return [*taken, PathDecision(last.condition, last.question, False)]


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


class PassedChecks(TorchFunctionMode):
    """While this is active, a traced tensor that is asked for its truth by a check has the value that passes it."""

    def __init__(self) -> None:
        super().__init__()
        _noted.clear()
        self.refused = _noted
        """Error that was raised, whether or not the user's code has caught it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.__bool__:
            answer = passing(sys._getframe(1))
            answer = decided(args[0]) if answer is None else answer
            if answer is not None:
                return answer
            with noted():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


_noted: list[CaptureError] = []


@contextmanager
def noted() -> Iterator[None]:
    """While Python asks a traced tensor for its value: the error that this is counts even if the user's code catches
    it."""
    try:
        yield
    except CaptureError as error:
        _noted.append(error)
        raise
    except Exception as error:
        refused = UnknownValueError(
            f"the step asks for a value that it computes{place_of_call()}, and catches the error that this is while it "
            "is traced: decide by torch.where, or do not catch"
        )
        refused.__cause__ = error
        _noted.append(refused)
        raise


def passing(frame: FrameType) -> bool | None:
    """The truth with which a frame goes on from the jump that it stands at; None if it does so with both."""
    if frame.f_code.co_name in _ASKED_BY_PYTHON:
        return None
    answer = _Flow.of(frame.f_code).passing(frame.f_lasti)
    caller: FrameType | None = frame
    while answer is not None and caller is not None and not is_captures(caller.f_code.co_filename):
        users = not is_internal(caller.f_code.co_filename)
        if users and not _PLAIN_CONTEXTS.issuperset(_contexts(caller.f_code)):
            return None
        if users and caller.f_code.co_name in _ASKED_BY_PYTHON:
            return None
        if caller is not frame and not _Flow.of(caller.f_code).lets_through(caller.f_lasti):
            return None
        caller = caller.f_back
    return answer


_ASKED_BY_PYTHON = ("__next__", "__getitem__", "__getattr__", "__getattribute__", "__iter__", "__exit__", "__len__")
"""Methods whose errors Python itself catches, in loops and in getattr."""

_PLAIN_CONTEXTS = frozenset(
    ["no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "record_function", "device", "profile"]
)
"""Context managers that may stand around a check: they let every error through."""


@functools.lru_cache(maxsize=1024)
def _contexts(code: CodeType) -> tuple[str, ...]:
    """The names of what is called, or looked up, last before each `with` of a function; "?" for anything else."""
    found, name = [], "?"
    for instruction in dis.Bytecode(code):
        if instruction.opname.startswith("BEFORE_WITH"):
            found.append(name)
        elif instruction.opname.startswith("LOAD") and isinstance(instruction.argval, str):
            name = instruction.argval
    return tuple(found)


class _Flow:
    """Control flow of a function: the successors of every instruction."""

    def __init__(self, code: CodeType) -> None:
        bytecode = dis.Bytecode(code)
        self._instructions = list(bytecode)
        self._number = {instruction.offset: number for number, instruction in enumerate(self._instructions)}
        self._handlers = bytecode.exception_entries  # type: ignore[attr-defined]

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def of(code: CodeType) -> _Flow:
        return _Flow(code)

    def passing(self, offset: int) -> bool | None:
        number = self._number.get(offset, 0)
        if self._instructions[number].opname in ("TO_BOOL", "COMPARE_OP"):  # before the jump, from Python 3.13 on
            number += 1
        jump = self._instructions[number]
        if not jump.opname.startswith("POP_JUMP") or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
            return None
        truth = jump.opname.endswith("IF_TRUE")
        here, there = self._raises(number + 1), self._raises(self._number[jump.argval])
        return None if here == there else truth if here else not truth

    def lets_through(self, offset: int) -> bool:
        """Whether an error that comes from an instruction leaves the function, whatever handlers there are."""
        handler = self._handler(offset)
        return handler is None or self._raises(handler)

    def _raises(self, number: int) -> bool:
        """Whether every way on from an instruction ends in an error that leaves the function."""
        seen, todo = set(), [number]
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if self._instructions[number].opname.startswith(("RETURN", "YIELD")):
                return False
            todo.extend(self._following(number))
        return True

    def _following(self, number: int) -> list[int]:
        """The instructions that may come next."""
        instruction = self._instructions[number]
        name = instruction.opname
        if name in ("RAISE_VARARGS", "RERAISE"):
            handler = self._handler(instruction.offset)
            return [] if handler is None else [handler]
        if name == "WITH_EXCEPT_START":  # what stands in a `with` goes on to raise: `suppress` is looked for by name
            while not self._instructions[number].opname.startswith("POP_JUMP"):
                number += 1
            return [number + 1]
        jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
        always = name.startswith("JUMP") and "IF" not in name
        return [*([self._number[instruction.argval]] if jumps else []), *([] if always else [number + 1])]

    def _handler(self, offset: int) -> int | None:
        """Handler of an error that comes from an instruction; None if there is none."""
        found = next((entry for entry in self._handlers if entry.start <= offset < entry.end), None)
        return None if found is None else self._number[found.target]
