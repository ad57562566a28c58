"""The task of `job create`: a function in the customer's Python file, or one of the examples.

A user's Python runs only here, on that user's own machine; everybody else gets data.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from roundlog.capture import Task

EXAMPLES = {
    "digits": "roundlog.examples.digits",
    "gpt": "roundlog.examples.gpt",
    "gpt2": "roundlog.examples.gpt2",
    "logistic": "roundlog.examples.logistic",
    "resnet50": "roundlog.examples.cifar10",
    "vgg11": "roundlog.examples.cifar10",
}
"""Name of the function -> its module."""


def load_task(source: str, settings: Sequence[str]) -> Callable[[], Task]:
    """Return a function that makes the task that `source` names: an example, or FILE.py:FUNCTION. settings:
    `name=value` for its parameters.

    Raises CommandError, in one sentence, for whatever is wrong with them or with the user's code, as the function does;
    that raises DefectError for what is wrong with this program."""
    function, place = _find(source)
    arguments = _arguments(function, settings, source)

    def make_task() -> Task:
        from roundlog.capture import CaptureError, DefectError, Task, is_refusal, is_users_error

        try:
            task = function(**arguments)
        except CaptureError:
            raise
        except Exception as error:
            if is_refusal(error) or is_users_error(error):
                raise _failed(error, place) from error
            raise DefectError(error, place=f" ({_place(error, place)})") from error
        if not isinstance(task, Task):
            raise CommandError(f"{source} returns {type(task).__name__}: let it return a roundlog.capture.Task.")
        return task

    return make_task


def _find(source: str) -> tuple[Callable[..., object], Path]:
    if source in EXAMPLES:
        module = importlib.import_module(EXAMPLES[source])
        return getattr(module, source), Path(module.__file__ or "")
    path_text, separator, name = source.rpartition(":")
    if not separator or not path_text.endswith(".py"):
        raise CommandError(
            f"{source} is no task: name a function in a Python file (my_task.py:function), a job directory, "
            f"or an example ({', '.join(EXAMPLES)})."
        )
    path = Path(path_text)
    module = _import(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise CommandError(f"{path} has no function {name}: check the name after the colon.")
    return function, path


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise CommandError(f"there is no file {path}: check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As for a script: its neighbours can be imported, and its classes know their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(error, path) from error
    return module


def _failed(error: Exception, path: Path) -> CommandError:
    """Return the error of a user's code, with the line of the user's file."""
    return CommandError(f"{_place(error, path)} fails with {type(error).__name__} ({error}): correct it and try again.")


def _place(error: Exception, path: Path) -> str:
    """Return the user's file, and the line of it that an error comes from, if it comes from one."""
    if isinstance(error, SyntaxError):
        line = error.lineno
    else:
        frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        line = next((line for file, line in reversed(frames) if file.exists() and file.samefile(path)), None)
    return f"{path}, line {line}" if line else f"{path}"


def _arguments(function: Callable[..., object], settings: Sequence[str], source: str) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in parameters:
            known = ", ".join(parameters) or "none"
            raise CommandError(f"{setting} sets no parameter of {source}: it has {known} (as --set name=value).")
        if name in arguments:
            raise CommandError(f"{name} is set twice: leave one away.")
        arguments[name] = _convert(text, _type_of(function, parameters[name], source), name)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            option = "--data PATH" if name == "data" else f"--set {name}=VALUE"
            raise CommandError(f"{source} needs a value for {name}: add {option}.")
    return arguments


def _type_of(function: Callable[..., object], parameter: inspect.Parameter, source: str) -> Any:
    """Return the type of a parameter; str where the user has given none. Only that annotation is evaluated: others may
    name what is imported for type checkers alone."""
    if parameter.annotation is inspect.Parameter.empty:
        return str
    alone = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(alone, getattr(inspect.unwrap(function), "__globals__", {}))["it"]
    except Exception as error:
        raise CommandError(
            f"the type of {parameter.name} in {source} cannot be evaluated ({error}): make it int, float, bool, str or "
            "Path."
        ) from error


def _convert(text: str, wanted: Any, name: str) -> object:
    kinds = [kind for kind in typing.get_args(wanted) or (wanted,) if kind is not type(None)]
    if len(kinds) == 1 and kinds[0] is bool and text in ("true", "false"):
        return text == "true"
    if len(kinds) == 1 and kinds[0] in (int, float, str, Path):
        try:
            return kinds[0](text)
        except ValueError:
            pass
    wanted_name = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise CommandError(f"{name}={text} is not a {wanted_name}: give another value.")
