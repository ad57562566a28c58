"""Options that several commands have, and groups of them: a command names a dataclass, and each field of it becomes an
option of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tiebreak import quantities

if TYPE_CHECKING:
    from roundlog.training import RunOptions, StepEvent, Validation


def panel(name: str) -> Any:
    """`typer.Option` for the options of a panel, in which `--help` shows them together."""
    return partial(typer.Option, rich_help_panel=name)


computing_option = panel("This machine")

taking_part_option = panel("Taking part")

DEFAULT_MEMORY: Any = "auto"
"""A default as a user would write it, which typer parses as it does what a user writes."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Poll = Annotated[
    float,
    taking_part_option(
        parser=quantities.interval(0.05), metavar="TIME", help="Time between two looks at the chain, e.g. 500ms."
    ),
]

DEFAULT_POLL: Any = "2s"

JobDirectory = Annotated[Path, typer.Argument(metavar="JOB", help="Directory of the job, as `job create` writes it.")]

Memory = Annotated[
    int,
    computing_option(
        "--max-memory",
        parser=quantities.memory,
        metavar="SIZE",
        help="Refuse jobs that need more, e.g. 16GiB; auto: more than is free.",
    ),
]

VerifyLog = Annotated[
    float,
    typer.Option(
        "--verify-log",
        parser=quantities.share,
        metavar="SHARE|all",
        help="Share of the log's decisions to verify, drawn in secret. A bent one among the others goes unnoticed, and "
        "then a wrong claim passes for right.",
    ),
]

DEFAULT_VERIFY_LOG: Any = "all"

MicroBatches = Annotated[
    int,
    computing_option(
        "--micro-batches", min=1, metavar="N", help="Cut every batch into N parts: the same result, in less memory."
    ),
]


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


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Options of this machine's kernels, memory and disk; none of them changes a result."""

    keep_every: Annotated[
        int,
        computing_option(min=1, metavar="N", help="Keep every N-th checkpoint, and the last one."),
    ] = 1
    device: Annotated[
        str,
        computing_option(
            metavar="DEVICE",
            help="PyTorch device; the same result on any. `cuda` gives each of the processes that torchrun starts a "
            "device of its own.",
        ),
    ] = "cpu"
    threads: Annotated[
        int | None,
        computing_option(min=1, metavar="N", help="Threads of the kernels; the same result for any N."),
    ] = None
    max_memory: Memory = DEFAULT_MEMORY

    def run_options(
        self,
        micro_batches: int = 1,
        on_step: Callable[[StepEvent], None] | None = None,
        on_resume: Callable[[int], None] | None = None,
        validation: Validation | None = None,
    ) -> RunOptions:
        """The options of a run of the engine."""
        from roundlog.training import RunOptions

        return RunOptions(
            device=self.device,
            keep_every=self.keep_every,
            micro_batches=micro_batches,
            on_step=on_step,
            on_resume=on_resume,
            validation=validation,
        )

    def use_threads(self) -> None:
        """Sets the number of threads of this process's kernels; without the option PyTorch's own number stays."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class SpendingLimits:
    """The most wei for new bonds and their gas, and the most bytes for jobs. What was begun is never held back."""

    spend_per_day: Annotated[
        int | None,
        taking_part_option(
            parser=quantities.wei,
            envvar="TIEBREAK_SPEND_PER_DAY",
            metavar="AMOUNT",
            help="Most for new bonds and their gas in any 24 hours, e.g. 2ether. What was begun goes on.",
        ),
    ] = None
    spend_per_job: Annotated[
        int | None,
        taking_part_option(
            parser=quantities.wei,
            envvar="TIEBREAK_SPEND_PER_JOB",
            metavar="AMOUNT",
            help="Most for new bonds and their gas in one job.",
        ),
    ] = None
    most_disk: Annotated[
        int | None,
        taking_part_option(
            parser=quantities.size,
            envvar="TIEBREAK_MOST_DISK",
            metavar="SIZE",
            help="Most for the files of all jobs together, e.g. 200GiB; those of jobs that the role has left go first, "
            "and a job with a bond at stake takes what it needs (default: half of the disk).",
        ),
    ] = None
