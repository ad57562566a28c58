"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli import quantities

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

JobDirectory = Annotated[Path, typer.Argument(metavar="JOB", help="Directory of the job, as `job create` writes it.")]

Memory = Annotated[
    int,
    typer.Option(
        "--max-memory",
        parser=quantities.memory,
        metavar="SIZE",
        help="Refuse jobs that need more, e.g. 16GiB; auto: more than is free.",
    ),
]
DEFAULT_MEMORY = "auto"

KeepEvery = Annotated[
    int, typer.Option("--keep-every", min=1, metavar="N", help="Keep every N-th checkpoint on disk, and the last one.")
]

Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", help="Threads for the kernels; the result is the same for any N."),
]


Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="PyTorch device; the result is the same on any.")
]

MicroBatches = Annotated[
    int,
    typer.Option(
        "--micro-batches",
        min=1,
        metavar="N",
        help="Cut every batch into N parts: the same roots and findings, in less memory and with some disk.",
    ),
]

VerifyLog = Annotated[
    float,
    typer.Option(
        "--verify-log",
        parser=quantities.share,
        metavar="SHARE|all",
        help="Share of the log's decisions to verify, drawn in secret. With less than all, the others are "
        "believed: a bent one goes unnoticed with the probability 1 - SHARE, and then a wrong claim passes for right. "
        "Saves time only where resolving a decision exactly is slow.",
    ),
]
DEFAULT_VERIFY_LOG = "all"


def use_threads(count: int | None) -> None:
    """Lets the kernels of this process use so many threads; None leaves it to PyTorch."""
    if count is not None:
        import torch

        torch.set_num_threads(count)
