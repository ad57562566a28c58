"""Texts of numbers that go nowhere but into a print or a log.

The text of a number that steps change is another at every step. Where the whole statement is a `print(...)`, or a call
of a logger, and the text can only be one of its arguments, or a part of one, no step depends on it."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import logging
from collections import Counter
from types import FrameType
from typing import Any

_LEVELS = ("debug", "info", "warning", "error", "critical")


def is_only_printed(frame: FrameType) -> bool:
    """Whether what is made a text where a frame stands is printed, and nothing else."""
    call = _calls(frame.f_code.co_filename).get(frame.f_lineno)
    if call is None:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "print" and _variable(frame, "print") is builtins.print
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        owner = _variable(frame, call.func.value.id)
        return call.func.attr in _LEVELS and (owner is logging or type(owner) is logging.Logger)
    return False


def _variable(frame: FrameType, name: str) -> Any:
    if name in frame.f_locals:
        return frame.f_locals[name]
    return frame.f_globals.get(name, getattr(builtins, name, None))


@functools.lru_cache(maxsize=256)
def _calls(path: str) -> dict[int, ast.Call]:
    """Line -> the call that is the only statement on it, and whose arguments are texts and numbers."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    starts = Counter(node.lineno for node in statements)
    found = {}
    for node in statements:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or starts[node.lineno] != 1:
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if all(map(_is_text, node.value.args)) and not node.value.keywords and not any(starts[n] for n in lines[1:]):
            found.update(dict.fromkeys(lines, node.value))
    return found


def _is_text(node: ast.expr) -> bool:
    """Whether it is an f-string of numbers, or a number."""
    if not isinstance(node, ast.JoinedStr):
        return _is_number(node)
    parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    constant = (part.format_spec is None or all(map(_is_constant, ast.walk(part.format_spec))) for part in parts)
    return all(_is_number(part.value) for part in parts) and all(constant)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.Constant))


def _is_number(node: ast.expr) -> bool:
    """Whether a text that an expression makes on the way cannot decide about anything: it makes none."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return True
    if isinstance(node, ast.Attribute):
        return _is_number(node.value)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.Mod) and _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Call) and not node.args and not node.keywords and _is_number(node.func)
