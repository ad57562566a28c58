"""Methods of a subclass that only wrap the one that they replace: they pass everything on by `super()`, give back what
that gives, and print or log beside. A step is then the one of the method below, and nobody has to call the wrapper."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import logging
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

_READS = frozenset({"item", "detach", "cpu", "float", "mean", "sum", "max", "min", "abs", "norm", "tolist", "size"})
"""Methods of tensors, without an effect."""

_FUNCTIONS = frozenset({"float", "int", "str", "len", "round", "abs"})
"""Functions of Python that call nothing else and take no items from what they are given."""

_PRINTED = frozenset({"sep", "end", "flush"})
_CLOCKS = ("time", "perf_counter", "monotonic")


def only_wraps(method: object, below: Callable[..., Any], contexts: Iterable[str] = ()) -> bool:
    """Whether a method does no more than that. below: the method of the base class that it replaces. contexts:
    attributes of `self` that are context managers without an effect on numbers. False for whatever cannot be told, as
    where there is no source."""
    if not isinstance(method, FunctionType) or method.__name__ != getattr(below, "__name__", None):
        return False
    definition = _definition(method)
    if definition is None or definition.decorator_list or not _same_defaults(method, below):
        return False
    return _Wrapper(method, definition, frozenset(contexts)).holds()


def _definition(method: FunctionType) -> ast.FunctionDef | None:
    """The source of a function, if it still is what the function was compiled from."""
    own = method.__code__
    # All of its file: what is imported there decides about some instructions.
    text = "".join(linecache.getlines(own.co_filename, method.__globals__))
    try:
        tree = ast.parse(text)
        compiled = [one for one in _codes(compile(tree, "", "exec", dont_inherit=True)) if _is_same(one, own)]
    except (SyntaxError, ValueError):
        return None
    found = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.lineno == own.co_firstlineno]
    return found[0] if len(found) == len(compiled) == 1 else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """All functions of a module, at any depth."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _is_same(one: CodeType, two: CodeType) -> bool:
    parts = ("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars", "co_consts")
    return all(getattr(one, part) == getattr(two, part) for part in parts)


def _same_defaults(method: FunctionType, below: Callable[..., Any]) -> bool:
    """Whether every parameter of its own has the default that it has below."""
    own, under = (inspect.signature(one).parameters for one in (method, below))
    named = [one for one in own.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return all(one.name in under and under[one.name].default is one.default for one in named)


class _Wrapper:
    """The source of one method."""

    def __init__(self, method: FunctionType, definition: ast.FunctionDef, contexts: frozenset[str]) -> None:
        self._method, self._definition, self._contexts = method, definition, contexts
        self._result: str | None = None
        """Name of what the method below has given."""
        self._called = self._returned = False

    def holds(self) -> bool:
        """Whether it calls the method below once, with all that it was given, and gives back what that gives."""
        return all(self._statement(one) for one in self._definition.body) and self._called and self._returned

    def _statement(self, node: ast.stmt) -> bool:
        if self._returned:  # nothing follows
            return False
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return True
        if isinstance(node, ast.Return):
            given = node.value
            self._returned = (isinstance(given, ast.Name) and given.id == self._result) or self._is_call_below(given)
            return self._returned
        if isinstance(node, ast.With):
            return all(self._is_context(one) for one in node.items) and all(self._statement(one) for one in node.body)
        if isinstance(node, ast.Assign):
            return self._assignment(node)
        return self._reports(node)

    def _assignment(self, node: ast.Assign) -> bool:
        """A new local name: of what the method below gives, or of something to report."""
        [target, *more] = node.targets
        if more or not isinstance(target, ast.Name) or target.id in (*self._parameters(), self._result):
            return False
        if target.id in self._method.__globals__ or hasattr(builtins, target.id):  # another print, or logger
            return False
        if self._is_call_below(node.value):
            self._result = target.id
            return True
        return self._is_harmless(node.value)

    def _reports(self, node: ast.stmt) -> bool:
        """Whether a statement prints or logs."""
        if isinstance(node, ast.If):
            return self._is_harmless(node.test) and all(self._reports(one) for one in (*node.body, *node.orelse))
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            return False
        call = node.value
        told = [*call.args, *(one.value for one in call.keywords)]
        return self._is_reporter(call.func, {one.arg for one in call.keywords}) and all(
            self._is_harmless(one) for one in told
        )

    def _is_reporter(self, function: ast.expr, options: set[str | None]) -> bool:
        if isinstance(function, ast.Name):
            return function.id == "print" and self._is_builtin("print") and options <= _PRINTED
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return False
        if function.value.id == self._own():
            return function.attr == "log"  # which may be replaced, as it is not followed
        owner = self._method.__globals__.get(function.value.id)
        return owner is logging or isinstance(owner, (logging.Logger, logging.LoggerAdapter))

    def _is_context(self, item: ast.withitem) -> bool:
        expression = item.context_expr
        if not isinstance(expression, ast.Attribute) or not isinstance(expression.value, ast.Name):
            return False
        known = expression.value.id == self._own() and expression.attr in self._contexts
        return known and item.optional_vars is None

    def _is_call_below(self, node: ast.expr | None) -> bool:
        """Whether it is the one call of the method below, with the method's own parameters as they are."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or self._called:
            return False
        owner = node.func.value
        is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
        if not is_super or owner.args or owner.keywords or not self._is_builtin("super"):  # type: ignore[attr-defined]
            return False
        self._called = node.func.attr == self._definition.name and self._passes_everything(node)
        return self._called

    def _passes_everything(self, call: ast.Call) -> bool:
        given, own = [ast.unparse(one) for one in call.args], self._definition.args
        named = {one.arg: ast.unparse(one.value) for one in call.keywords}
        by_place = [one.arg for one in (*own.posonlyargs, *own.args)][1:]
        wanted: dict[str | None, str] = {one: one for one in (*by_place, *(one.arg for one in own.kwonlyargs))}
        if own.kwarg is not None:
            wanted[None] = own.kwarg.arg
        places = [*by_place, *([f"*{own.vararg.arg}"] if own.vararg is not None else [])]
        if own.vararg is not None and given != places:
            return False
        passed: dict[str | None, str] = {name: name for name in given if not name.startswith("*")}
        return given == places[: len(given)] and not passed.keys() & named.keys() and {**passed, **named} == wanted

    def _is_harmless(self, node: ast.expr) -> bool:
        """Whether an expression only reads."""
        if isinstance(node, ast.Call):
            told = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            told += [*node.args, *(one.value for one in node.keywords)]
            return self._is_pure(node.func) and all(self._is_harmless(one) for one in told)
        if not isinstance(node, _EXPRESSIONS):
            return False
        return all(self._is_harmless(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))

    def _is_pure(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id in _FUNCTIONS and self._is_builtin(function.id)
        if not isinstance(function, ast.Attribute):
            return False
        clock = isinstance(function.value, ast.Name) and self._method.__globals__.get(function.value.id)
        if inspect.ismodule(clock):
            return clock.__name__ == "time" and function.attr in _CLOCKS
        receiver = function.value
        while isinstance(receiver, (ast.Attribute, ast.Subscript, ast.Call)):
            receiver = receiver.func if isinstance(receiver, ast.Call) else receiver.value
        # Only methods of the result of `super()`, a tensor: those of another object may do anything.
        return function.attr in _READS and isinstance(receiver, ast.Name) and receiver.id == self._result

    def _parameters(self) -> list[str]:
        own = self._definition.args
        every = [*own.posonlyargs, *own.args, *own.kwonlyargs, *filter(None, (own.vararg, own.kwarg))]
        return [one.arg for one in every]

    def _own(self) -> str:
        return self._parameters()[0]

    def _is_builtin(self, name: str) -> bool:
        return name not in self._method.__globals__ and hasattr(builtins, name)


_EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.JoinedStr, ast.FormattedValue, ast.Dict, ast.List),
    *(ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Slice),
)
"""Expressions that only read, if their parts do."""
