"""`tiebreak verify-model` and `tiebreak export`: a trained state held against its root, and the model in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli import option_groups, output
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, WrongUsage
from tiebreak.cli.option_groups import examples


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    example = examples("tiebreak verify-model model.safetensors --job job --root 0x...")
    app.command("verify-model", epilog=example)(verify_model)
    app.command(
        epilog=examples(
            "tiebreak export trained --to model.safetensors",
            "tiebreak export collected.safetensors --to my_model/model.safetensors",
        )
    )(export)


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
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    json: option_groups.Json = False,
) -> None:
    """Check that a file holds the state with this root, every bit of it. No chain is asked, and nothing is trained.

    Exit code 0 if it does, 3 if it does not, 1 if that cannot be told.
    """
    from roundlog.training import read_program, wrong_state

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


def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|FILE", help="Directory of a run, or a state as `job collect` fetches it."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where to write the model; ends in .safetensors.")],
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The state after N steps, where the run has kept it. [default: its newest]",
            show_default=False,
        ),
    ] = None,
    max_memory: option_groups.Memory = option_groups.DEFAULT_MEMORY,
    json: option_groups.Json = False,
) -> None:
    """Write the model that a run has trained to a file of its own, for PyTorch and transformers.

    Names are those of the module's `state_dict`, and dtypes those that it was trained in; tied tensors stand under the
    first of their names, and buffers of dtypes that no state has, such as uint8, are left to the model that makes them
    (load it with strict=False then). No root is checked: do that before by `audit` or `verify-model`, where the state
    comes from others.
    """
    from roundlog.training import trained_state

    found = trained_state(source, steps)
    if (need := 2 * found.nbytes) > max_memory:
        raise CommandError(f"writing this model takes up to {need} bytes: allow them with --max-memory.")
    found.export(to)
    beside = len(found.types) - len(found.names)
    if json:
        output.show_json(
            {
                "model": to,
                "state": found.path,
                "steps": found.steps,
                "tensors": len(found.names),
                "bytes": found.nbytes,
                "left_out": beside,
            }
        )
        return
    after = {} if found.steps is None else {"after": f"{found.steps} steps"}
    output.show_facts(
        f"Model in {to}",
        {
            "state": found.path,
            **after,
            "tensors": f"{len(found.names)} ({output.size(found.nbytes)})",
            "left out": f"{beside} tensors that no state_dict holds (of the optimizer, most often)",
        },
    )
