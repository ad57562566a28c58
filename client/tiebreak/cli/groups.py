"""Groups of options: a command names a dataclass, and each field of it becomes an option of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: parameters that are dataclasses are replaced by the fields of these."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            annotated = parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(annotated)
        else:
            parameters += _options(group)

    @wraps(command)
    def flat(**values: Any) -> None:
        made = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**values, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(group)
    ]


def examples(*lines: str) -> str:
    """The text that `--help` shows below all options, a line each."""
    return "\n".join(("Examples:", *(f"  {line}" for line in lines)))
