"""Options that commands share, about a job's directory and about how this machine computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiebreak import quantities

if TYPE_CHECKING:
    from collections.abc import Callable

    from roundlog.training.options import RunOptions, StepEvent
    from roundlog.training.validation import Validation

COMPUTING = "This machine"
DEFAULT_MEMORY: Any = "auto"
"""A default as a user would write it, which typer parses as it does what a user writes."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

JobDirectory = Annotated[Path, typer.Argument(metavar="JOB", help="Directory of the job, as `job create` writes it.")]

Memory = Annotated[
    int,
    typer.Option(
        "--max-memory",
        parser=quantities.memory,
        metavar="SIZE",
        help="Refuse jobs that need more, e.g. 16GiB; auto: more than is free.",
        rich_help_panel=COMPUTING,
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
    typer.Option(
        "--micro-batches",
        min=1,
        metavar="N",
        help="Cut every batch into N parts: the same result, in less memory.",
        rich_help_panel=COMPUTING,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Options of this machine's kernels, memory and disk; none of them changes a result."""

    keep_every: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Keep every N-th checkpoint, and the last one.",
            rich_help_panel=COMPUTING,
        ),
    ] = 1
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="PyTorch device; the same result on any. `cuda` gives each of the processes that torchrun starts a "
            "device of its own.",
            rich_help_panel=COMPUTING,
        ),
    ] = "cpu"
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Threads of the kernels; the same result for any N.",
            rich_help_panel=COMPUTING,
        ),
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
        from roundlog.training.options import RunOptions

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
