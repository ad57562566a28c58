"""A dishonest party as a process: KIND JOB STEP, then --dir, --poll and --json as for `tiebreak ... run`.

Chain, contract, store and key are in the environment. It does not import the command line: that plays the demo, and the
demo starts this process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from eth_utils.address import to_checksum_address
from tiebreak.contract.game import VerificationGame
from tiebreak.quantities import interval
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import Role
from tiebreak.roles.notices import plain
from tiebreak.rpc.node import connect
from tiebreak.store import locations, open_stores
from tiebreak.transactions.keys import load_account
from tiebreak.transactions.sender import Sender

from tiebreak_demo.adversary.parties import lying_auditor, other_weight_trainer, poisoning_trainer, silenced

KINDS: dict[str, Callable[[RoleContext, int, int], Role]] = {
    "poison": lambda context, job, step: poisoning_trainer(context, job, poisoned_step=step),
    "weight": lambda context, job, step: other_weight_trainer(context, job, step=step),
    "lie": lambda context, job, step: lying_auditor(context, job, first_wrong_step=step),
    "vanish": lambda context, job, step: lying_auditor(silenced(context, moves=1), job, first_wrong_step=step),
}
"""The ways of breaking the rules in a job, at or from a step (counted from 0): a trainer that trains the step on wrong
labels, or with another weight; an auditor with fabricated states, and one that falls silent after its first move."""


def main() -> None:
    """Take part in a job, dishonestly, until the job is over or SIGTERM comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("job", type=int)
    parser.add_argument("step", type=int)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--poll", type=interval(0), default="1s")
    parser.add_argument("--json", action="store_true", help="There is no other output.")
    asked = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    progress = KINDS[asked.kind](_context(asked.dir, stop), asked.job, asked.step).run(poll=asked.poll)
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
        notify=lambda notice: _show(plain(notice)),
    )


def _show(content: dict[str, object]) -> None:
    # A line and its end in one writing, since notices come from several threads.
    print(json.dumps(content) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
