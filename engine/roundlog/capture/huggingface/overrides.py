"""Changes of a `Trainer` beside its arguments: methods that a subclass replaces, as the trainers of `trl` do that a job
follows, and callbacks.

Methods that only wrap the one that they replace pass everything on by `super()`, give back what that gives, and print
or log beside. A step is then the one of the method below, and nobody has to call the wrapper."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import linecache
import logging
import sys
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


PACKAGE = "trl"

_VERSIONS = ("1.16",)
"""Versions, without the last number, whose code has been read for this module and is held against `train()`."""

_TRAINERS = {"trl.trainer.sft_trainer.SFTTrainer", "trl.trainer.base_trainer._BaseTrainer"}

CONTEXTS = ("maybe_activation_offload_context",)
"""Attributes in whose context a step is taken: where its activations are kept, or nothing."""


def kinds_of_trl(trainer: Any) -> list[type]:
    """Classes of trl's that a trainer is made of."""
    return [kind for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] == PACKAGE]


def trl_refusals(trainer: Any) -> Iterator[str]:
    """The reasons, as sentences, why a job does not follow what is trl's of a trainer."""
    kinds = kinds_of_trl(trainer)
    if not kinds:
        return
    version = str(getattr(sys.modules[PACKAGE], "__version__", "of no version"))
    if version.rpartition(".")[0] not in _VERSIONS:
        yield (
            f"trl is {version}, which nobody has held a job against: install trl {' or '.join(_VERSIONS)}.*, "
            "or train by transformers.Trainer"
        )
    for kind in kinds:
        if f"{kind.__module__}.{kind.__qualname__}" not in _TRAINERS:
            yield (
                f"trl's {kind.__name__} is none of the trainers whose steps a job follows (SFTTrainer): train by a "
                "transformers.Trainer with its loss in compute_loss"
            )
            return


def without_metrics(trainer: Any) -> None:
    """Has a trainer count nothing for its log when its loss is computed. It and its accelerator are copies by then."""
    if not kinds_of_trl(trainer):
        return
    trainer.accelerator = copy.copy(trainer.accelerator)
    trainer.accelerator.gather_for_metrics = _Gather(trainer.accelerator.gather_for_metrics)
    trainer._metrics, trainer._total_train_tokens = _NoLog(), _METRIC


class _Metric:
    """A number for the log. It has no value, and goes into no tensor: whatever else it meets raises TypeError."""

    def sum(self) -> _Metric:
        return self

    mean = item = sum

    def __truediv__(self, other: object) -> _Metric:
        return self if isinstance(other, _Metric) else NotImplemented

    def __floordiv__(self, other: object) -> _Metric:
        return self if isinstance(other, int) else NotImplemented

    def __add__(self, other: object) -> _Metric:
        return self if isinstance(other, _Metric) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return True if other == 0 else NotImplemented


_METRIC = _Metric()


class _Gather:
    """`Accelerator.gather_for_metrics` of one process. To trl's own code it gives numbers for the log."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self._own = own

    def __call__(self, input_data: Any, *rest: Any, **options: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return _METRIC if caller.partition(".")[0] == PACKAGE else self._own(input_data, *rest, **options)


class _NoLog:
    """Takes what is to be logged, by any names."""

    def __getitem__(self, name: str) -> _NoLog:
        return self

    def __setitem__(self, name: str, value: object) -> None: ...

    def append(self, value: object) -> None: ...


FOLLOWED = frozenset(
    {
        # Called while the task is made, or traced with every step.
        *("compute_loss", "loss_is_scaled_for_ga", "create_optimizer", "create_scheduler"),
        *("get_optimizer_cls_and_kwargs", "get_decay_parameter_names", "call_model_init"),
        *("_remove_unused_columns", "_set_signature_columns_if_needed", "_get_collator_with_removed_columns"),
    }
)
"""Methods that a subclass may replace, because a task has what they give."""

WITHOUT_EFFECT = frozenset(
    {
        # Evaluation and prediction.
        *("evaluate", "evaluation_loop", "predict", "prediction_step", "get_eval_dataloader", "get_test_dataloader"),
        *("_get_eval_sampler", "_evaluate", "_determine_best_metric", "num_examples"),
        # Reports and files.
        *("log", "floating_point_ops", "store_flos", "save_model", "push_to_hub", "create_model_card", "init_hf_repo"),
        *("is_local_process_zero", "is_world_process_zero", "end", "_save", "_save_checkpoint", "_save_rng_state"),
        *("_save_optimizer_and_scheduler", "_save_scaler", "_get_output_dir", "_push_from_checkpoint"),
        *("_finish_current_push", "_track_num_input_tokens", "_get_learning_rate"),
        # Searches, and what adds or removes callbacks.
        *("hyperparameter_search", "_report_to_hp_search", "_tune_save_checkpoint"),
        *("add_callback", "pop_callback", "remove_callback"),
    }
)
"""Methods that a subclass may replace, because they change no number of a training run."""

_HOMES = ("transformers", "contextlib", "torch")
"""Packages that the methods of transformers' own `Trainer` come from, decorators included."""

_CALLBACKS = ("DefaultFlowCallback", "ProgressCallback", "PrinterCallback")
_CALLBACK_ROOMS = (
    "transformers.integrations.",
    "transformers.trainer_jit_checkpoint",
    "transformers.utils.notebook",
)


def override_refusals(trainer: Any, base: type) -> Iterator[str]:
    """A sentence for every method of `base`, transformers' own class, that a subclass, the object itself or other code
    replaces though a task would not follow it, and for those of its accelerator. A method that only wraps the one below
    it is followed: `only_wraps` says which."""
    for kind in type(trainer).__mro__[: type(trainer).__mro__.index(base)]:
        contexts = CONTEXTS if kind in kinds_of_trl(trainer) else ()
        for name, method in vars(kind).items():
            if _is_replaced(name, base) and not only_wraps(method, getattr(base, name), contexts):
                yield (
                    f"{kind.__name__} replaces Trainer.{name}, which a job does not follow: compute the loss in "
                    "compute_loss, and leave the rest to Trainer, or only print and log around super()"
                )
    for name in vars(trainer):
        if _is_replaced(name, base) and callable(getattr(base, name)):
            yield f"the trainer's method {name} has been replaced, which a job does not follow: undo it"
    for name, value in vars(base).items():
        home = getattr(getattr(value, "__func__", value), "__globals__", {}).get("__name__", "transformers")
        if _is_replaced(name, base) and home.partition(".")[0] not in _HOMES:
            yield f"Trainer.{name} has been replaced by a function of {home}, which a job does not follow: undo it"
    for name in vars(trainer.accelerator):
        if callable(getattr(type(trainer.accelerator), name, None)):
            yield (
                f"the method {name} of the trainer's accelerator has been replaced, which a job does not follow: "
                "undo it"
            )


def _is_replaced(name: str, base: type) -> bool:
    own = name.startswith("__") and name.endswith("__")
    return not own and hasattr(base, name) and name not in FOLLOWED | WITHOUT_EFFECT


def callback_refusals(trainer: Any) -> Iterator[str]:
    """A sentence for every callback that does more than to report: what it does at a step is no part of a program."""
    for callback in trainer.callback_handler.callbacks:
        kind = type(callback)
        if kind.__module__.startswith(_CALLBACK_ROOMS):
            continue
        if kind.__module__ == "transformers.trainer_callback" and kind.__name__ in _CALLBACKS:
            continue
        yield (
            f"the callback {kind.__name__} may change the training, and a program does not call it: take it out by "
            f"trainer.remove_callback({kind.__name__}) before"
        )
