"""Commands and their options: dataclasses of options that several commands have, and what makes a command of a function
that takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer

from tiebreak import quantities
from tiebreak.cli.failures import OneSentenceErrors

if TYPE_CHECKING:
    from roundlog.training import JobLimits, RunOptions, StepEvent, Validation

_Command = TypeVar("_Command", bound=Callable[..., None])

app = typer.Typer(
    cls=OneSentenceErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hold the trainer of your model to account: bit-exact audits of training, disputes settled on a chain.",
)

_GROUPS = {
    "job": "Jobs: make one, post it, look at it, collect its model.",
    "model": "Language models as files: a folder of a GGUF file, or of what a run has trained.",
    "trainer": "Train jobs and claim their rewards.",
    "auditor": "Repeat claimed trainings, and challenge those that are wrong.",
    "referee": "Decide disputes that the contract cannot.",
    "account": "The key with which you take part.",
}
_TYPERS = {name: typer.Typer(no_args_is_help=True, help=text) for name, text in _GROUPS.items()}
for _name, _typer in _TYPERS.items():
    app.add_typer(_typer, name=_name)


def option(text: str, default: Any = None, metavar: str | None = None, *, name: str = "", **more: Any) -> Any:
    """Return an option of a command, as a field of a dataclass or a default of a parameter, by whose name and type it
    is called and read. default: `...` if it has to be given; a text that `parser` reads is shown as it stands.
    more: as `typer.Option` takes it."""
    return _field(typer.Option, default, (name,) if name else (), {"help": text, "metavar": metavar, **more})


def argument(metavar: str, text: str, default: Any = ..., **more: Any) -> Any:
    """Return an argument of a command, by its place."""
    return _field(typer.Argument, default, (), {"help": text, "metavar": metavar, **more})


def _field(kind: Callable[..., Any], default: Any, names: tuple[str, ...], more: dict[str, Any]) -> Any:
    return field(default=MISSING if default is ... else default, metadata={"of": (kind, names, more)})


def command(name: str, *examples: str) -> Callable[[_Command], _Command]:
    """Register the decorated function as a command. name: with that of its group, `job create`. examples: lines that
    `--help` shows below all options."""
    group, _, own = name.rpartition(" ")
    epilog = "\n".join(("Examples:", *(f"  {line}" for line in examples))) if examples else None

    def register(function: _Command) -> _Command:
        (_TYPERS[group] if group else app).command(own, epilog=epilog)(_flat(function))
        return function

    return register


def _flat(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function as typer reads it: a parameter that is a dataclass is replaced by the fields of it."""
    hints = get_type_hints(function)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(function).parameters.values():
        parameters += _options(groups[one.name]) if one.name in groups else [_parameter(one.name, hints, one.default)]

    @wraps(function)
    def flat(**values: Any) -> None:
        made = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        function(**values, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


@cache
def _options(group: Any) -> list[inspect.Parameter]:
    """Return the options of a dataclass, each in the panel of the class that has its field."""
    hints = get_type_hints(group)
    panels = {name: kind.panel for kind in reversed(group.__mro__) for name in getattr(kind, "__annotations__", ())}
    return [_parameter(one.name, hints, one, panels[one.name]) for one in fields(group)]


def _parameter(name: str, hints: dict[str, Any], value: Field[Any], panel: str | None = None) -> inspect.Parameter:
    kind, names, more = value.metadata["of"]
    if hints[name] is bool and not names:
        names = (f"--{name.replace('_', '-')}",)  # or else typer adds `--no-...`
    annotation: Any = Annotated[hints[name], kind(*names, **{"rich_help_panel": panel} | more)]
    default = inspect.Parameter.empty if value.default is MISSING else value.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


JSON = option("Print JSON, for programs.", False)

DEFAULT_MEMORY = "auto"
"""A default as a user would write it, which is parsed as what a user writes."""

MEMORY = option(
    "Refuse jobs that need more, e.g. 16GiB; auto: more than is free.",
    DEFAULT_MEMORY,
    "SIZE",
    parser=quantities.memory,
    rich_help_panel="This machine",
)
POLL = option(
    "Time between two looks at the chain, e.g. 500ms.",
    "2s",
    "TIME",
    parser=quantities.interval(0.05),
    rich_help_panel="Taking part",
)
VERIFY_LOG = option(
    "Share of the log's decisions to verify, drawn in secret. A bent one among the others goes unnoticed, and then a "
    "wrong claim passes for right.",
    "all",
    "SHARE|all",
    parser=quantities.share,
)
JOB = argument("JOB", "Directory of the job, as `job create` writes it.")
MODEL = "Folder of Hugging Face (config, tokenizer, weights as safetensors), or a GGUF file."


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Options of this machine's kernels, memory and disk; none of them changes a result."""

    panel: ClassVar = "This machine"
    keep_every: int = option("Keep every N-th checkpoint, and the last one.", 1, "N", min=1)
    device: str = option(
        "PyTorch device; the same result on any. `cuda` gives each process of torchrun a device of its own.",
        "cpu",
        "DEVICE",
    )
    threads: int | None = option("Threads of the kernels; the same result for any N.", metavar="N", min=1)
    max_memory: int = MEMORY
    micro_batches: int = option("Cut every batch into N parts: the same result, in less memory.", 1, "N", min=1)

    @property
    def limits(self) -> JobLimits:
        """Limits of a job that is read."""
        from roundlog.training import JobLimits

        return JobLimits(memory_bytes=self.max_memory, micro_batches=self.micro_batches)

    def run_options(
        self,
        on_step: Callable[[StepEvent], None] | None = None,
        on_resume: Callable[[int], None] | None = None,
        validation: Validation | None = None,
    ) -> RunOptions:
        """Return the options of a run of the engine."""
        from roundlog.training import RunOptions

        return RunOptions(
            device=self.device,
            keep_every=self.keep_every,
            micro_batches=self.micro_batches,
            on_step=on_step,
            on_resume=on_resume,
            validation=validation,
        )

    def use_threads(self) -> None:
        """Set the number of threads of this process's kernels; without the option PyTorch's own number stays."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class SpendingLimits:
    """The most wei for new bonds and their gas, and the most bytes for jobs. What was begun is never held back."""

    panel: ClassVar = "Taking part"
    spend_per_day: int | None = option(
        "Most for new bonds and their gas in any 24 hours, e.g. 2ether. What was begun goes on.",
        metavar="AMOUNT",
        parser=quantities.wei,
        envvar="TIEBREAK_SPEND_PER_DAY",
    )
    spend_per_job: int | None = option(
        "Most for new bonds and their gas in one job.",
        metavar="AMOUNT",
        parser=quantities.wei,
        envvar="TIEBREAK_SPEND_PER_JOB",
    )
    most_disk: int | None = option(
        "Most for the files of all jobs together, e.g. 200GiB; those of jobs that the role has left go first, and a "
        "job with a bond at stake takes what it needs (default: half of the disk).",
        metavar="SIZE",
        parser=quantities.size,
        envvar="TIEBREAK_MOST_DISK",
    )
