"""Checks that a step makes of its own values: asserts, and branches that do nothing but raise.

`assert torch.isfinite(y).all()` and `if torch.isnan(loss): raise ...` stop a training or change nothing, so a program,
which has no errors to raise, goes on as a step does that passes them. Where Python asks a traced tensor whether it is
true, the code that follows shows what the answer decides: if one of the two answers always ends in an error that nobody
catches, the other one is given."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.lines import is_captures, is_internal, place_of_call
from roundlog.capture.tracing.decisions import decided


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
