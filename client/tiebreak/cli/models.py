"""`tiebreak verify-model`: a check of a model file against a state root, without any chain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli import options
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.groups import examples


def register(app: typer.Typer) -> None:
    """Adds the command."""
    example = examples("tiebreak verify-model model.safetensors --job job --root 0x...")
    app.command("verify-model", epilog=example)(verify_model)


def verify_model(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model, or any checkpoint (safetensors).")],
    root: Annotated[
        str,
        typer.Option(
            metavar="ROOT",
            help="Its state root in hex, e.g. the final state root that `train`, `audit` or `job show` print.",
        ),
    ],
    job: Annotated[
        Path,
        typer.Option(
            metavar="JOB",
            help="Directory of the job, whose program says in which order the tensors were hashed. Of its files only "
            "program.json and spec.json are read.",
        ),
    ],
    max_memory: options.Memory = options.DEFAULT_MEMORY,
    json: options.Json = False,
) -> None:
    """Check that a file holds the state with this root, every bit of it. No chain is asked, and nothing is trained.

    Exit code 0 if it does, 3 if it does not, 1 if that cannot be told.
    """
    from roundlog.training.checkpoints import wrong_state
    from roundlog.training.job import read_program

    from tiebreak.cli import output

    if not re.fullmatch("(0x)?[0-9a-fA-F]{64}", root):
        raise WrongUsage(f"{root[:80]!r} is not a root: give the 64 hex digits of a state root, with or without 0x.")
    if not job.is_dir():
        raise CommandError(f"there is no job directory {job}: make one with `tiebreak job create`, or fetch it.")
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name the model's safetensors file.")
    program, _ = read_program(job)
    need = 2 * sum(kind.nbytes for kind in program.states.values())
    if need > max_memory:
        raise CommandError(f"reading a state of this job takes up to {need} bytes: allow them with --max-memory.")
    wanted = bytes.fromhex(root.removeprefix("0x"))
    why = wrong_state(file, program, wanted)
    if json:
        output.show_json({"file": file, "root": wanted, "right": why is None, "why": why})
    elif why is None:
        output.show_line(f"Right: {file} is the state with the root 0x{wanted.hex()}.")
    else:
        output.show_line(f"WRONG: {file} is not the state with the root 0x{wanted.hex()}: {why}.")
    if why is not None:
        raise typer.Exit(ANSWER_IS_NO)
