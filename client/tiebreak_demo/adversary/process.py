"""A dishonest party as a process: KIND JOB STEP, then --dir, --poll and --json as for `tiebreak ... run`.

Chain, contract, store and key are in the environment. It does not import the command line: that plays the demo, and the
demo starts this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from eth_utils.address import to_checksum_address
from tiebreak.contract.game import VerificationGame
from tiebreak.process_resources import usable_memory
from tiebreak.quantities import interval
from tiebreak.roles.context import RoleContext, RoleLimits
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import Notice, plain
from tiebreak.rpc.node import connect
from tiebreak.store import locations, open_stores
from tiebreak.transactions.keys import load_account
from tiebreak.transactions.sender import Sender

from tiebreak_demo.adversary.dishonest_queues import silenced
from tiebreak_demo.adversary.parties import lying_auditor, other_weight_trainer, poisoning_trainer


class Misbehaviour(StrEnum):
    """The ways of breaking the rules."""

    POISON = "poison"
    """A trainer that trains one step on wrong labels."""
    LIE = "lie"
    """An auditor with fabricated states from one step on."""
    VANISH = "vanish"
    """A lying auditor that falls silent after one move."""
    WEIGHT = "weight"
    """A trainer whose model has another weight from one step on."""


def play(
    kind: Misbehaviour,
    job: int,
    step: Annotated[int, typer.Argument(help="The step at which the rules are broken, counted from 0.")],
    directory: Annotated[Path, typer.Option("--dir")],
    poll: Annotated[float, typer.Option(parser=interval(0))] = "1s",  # type: ignore[assignment]  # parsed like any other
    as_json: Annotated[
        bool, typer.Option("--json", help="Accepted as every command does; there is no other output.")
    ] = True,
) -> None:
    """Takes part in a job, dishonestly, until the job is over or SIGTERM comes."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    role = _role(kind, job, step, _context(directory, stop))
    progress = role.run(poll=poll)
    _show({"what": "ended", "text": progress.state, "finished": progress.finished})
    sys.exit(not progress.finished)


def _context(directory: Path, stop: threading.Event) -> RoleContext:
    chain, contract, store = (os.environ[f"TIEBREAK_{name}"] for name in ("CHAIN", "CONTRACT", "STORE"))
    directory.mkdir(parents=True, exist_ok=True)
    sender = Sender(connect(chain, stop=stop), load_account(None), directory=directory)
    return RoleContext(
        contract=VerificationGame.at(sender.node, to_checksum_address(contract), sender),
        sender=sender,
        store=open_stores(locations(store), warn=lambda text: None, stop=stop),
        directory=directory,
        limits=RoleLimits(memory_bytes=usable_memory()),
        notify=_tell,
    )


def _tell(notice: Notice) -> None:
    _show(plain(notice))


def _show(content: dict[str, object]) -> None:
    # A line and its end in one writing, since notices come from several threads.
    print(json.dumps(content) + "\n", end="", flush=True)


def _role(kind: Misbehaviour, job: int, step: int, context: RoleContext) -> Role:
    if kind is Misbehaviour.POISON:
        return poisoning_trainer(context, job, poisoned_step=step)
    if kind is Misbehaviour.WEIGHT:
        return other_weight_trainer(context, job, step=step)
    if kind is Misbehaviour.VANISH:
        context = silenced(context, moves=1)
    return lying_auditor(context, job, first_wrong_step=step)


if __name__ == "__main__":
    typer.run(play)
